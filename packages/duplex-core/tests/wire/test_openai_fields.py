"""Every field and every value that openai's client events may have is taken, or refused by name and listed here."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import pydantic
from openai.types.realtime import realtime_client_event as ga_client

from duplex_core.capabilities import Capabilities
from duplex_core.commands import ResponseCreate, SessionUpdate
from duplex_core.config import FunctionTool, SessionConfig
from duplex_core.errors import DuplexError, ErrorInfo
from duplex_core.patch import apply_response_params, apply_session_patch
from duplex_core.wire import decode_command

NOT_SERVED = {
    # what the services behind OpenAI's server do
    ("session.include", "unsupported_parameter"),
    ("session.prompt", "unsupported_parameter"),
    ("session.reasoning", "unsupported_parameter"),
    ("session.tracing", "unsupported_parameter"),
    ("session.truncation", "unsupported_parameter"),
    ("response.prompt", "unsupported_parameter"),
    ("response.reasoning", "unsupported_parameter"),
    ("session.audio.input.noise_reduction", "unsupported_parameter"),
    ("session.audio.input.transcription.delay", "unknown_parameter"),
    ("session.audio.input.transcription.keywords", "unknown_parameter"),
    ("session.audio.input.transcription.languages", "unknown_parameter"),
    # tools of MCP servers: the client calls its tools itself
    ("session.tool_choice.server_label", "unknown_parameter"),
    ("session.tools[].server_label", "unknown_parameter"),
    ("response.tool_choice.server_label", "unknown_parameter"),
    ("response.tools[].server_label", "unknown_parameter"),
    ("item.type", "invalid_value"),
    ("response.input[].type", "invalid_value"),
    # other kinds of session, other models, other conversations
    ("session.type", "unsupported_parameter"),
    ("session.model", "unsupported_parameter"),
    ("response.conversation", "invalid_value"),
}
"""What openai's client events may say and this server does not do."""

MALFORMED = {
    # a part's fields go with its type
    ("item.content[].audio", "unknown_parameter"),
    ("item.content[].detail", "unknown_parameter"),
    ("item.content[].image_url", "invalid_value"),
    ("item.content[].image_url", "unknown_parameter"),
    ("item.content[].text", "invalid_value"),
    ("item.content[].transcript", "unknown_parameter"),
    ("item.content[].type", "invalid_value"),
    ("response.input[].content[].audio", "unknown_parameter"),
    ("response.input[].content[].detail", "unknown_parameter"),
    ("response.input[].content[].image_url", "invalid_value"),
    ("response.input[].content[].image_url", "unknown_parameter"),
    ("response.input[].content[].text", "invalid_value"),
    ("response.input[].content[].transcript", "unknown_parameter"),
    ("response.input[].content[].type", "invalid_value"),
    # a tool has a name, and a format or a tool has no type of null
    ("session.tools[].name", "invalid_value"),
    ("session.tools[].type", "invalid_value"),
    ("response.tools[].name", "invalid_value"),
    ("response.tools[].type", "invalid_value"),
    ("session.audio.input.format.type", "invalid_value"),
    ("session.audio.output.format.type", "invalid_value"),
    ("response.audio.output.format.type", "invalid_value"),
}
"""What openai's types admit, being looser than its server, and makes no sense."""

ABLE = Capabilities(
    tools=True,
    temperature=True,
    speed=True,
    input_transcription=True,
    semantic_vad=True,
    image_input=True,
    voices=("x",),
)
CONFIG = SessionConfig(model="x", tools=(FunctionTool(name="x"),))

FITTING = {
    "audio": "AAAAAA==",
    "image_url": "data:image/png;base64,iVBORw0KGgo=",
    "arguments": "{}",
    "output": "{}",
}
"""Values of plain string fields for which any text would not do."""


def values_of(annotation: Any, name: str = "") -> Iterator[Any]:
    """JSON values that openai's annotation admits: each literal, each member of a union, each field of a model once."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from values_of(arguments[0], name)
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from values_of(each, name)
    elif origin is typing.Literal:
        yield from arguments
    elif origin is list:
        yield from ([value] for value in values_of(arguments[0], name))
    elif origin is dict:
        yield {"x": next(values_of(arguments[1]))}
    elif isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield from documents_of(annotation)
    elif annotation is str:
        yield FITTING.get(name, "x")
    else:
        yield {int: 1000, float: 1.0, bool: True, object: {"type": "object"}, type(None): None}[annotation]


def documents_of(model: type[pydantic.BaseModel]) -> Iterator[dict[str, Any]]:
    fields = {name: list(values_of(field.annotation, name)) for name, field in model.model_fields.items()}
    needed = {name: fields[name][0] for name, field in model.model_fields.items() if field.is_required()}
    if "type" in fields:
        needed["type"] = fields["type"][0]
    yield dict(needed)
    for name, values in fields.items():
        yield from ({**needed, name: value} for value in values)


def verdict(document: dict[str, Any]) -> ErrorInfo | None:
    try:
        command = decode_command(json.dumps(document))
        if isinstance(command, SessionUpdate):
            apply_session_patch(CONFIG, command.session, ABLE)
        elif isinstance(command, ResponseCreate) and command.response is not None:
            apply_response_params(CONFIG, command.response, ABLE)
    except DuplexError as refused:
        return refused.info
    return None


def test_what_of_openais_client_events_is_refused() -> None:
    union = typing.get_args(ga_client.RealtimeClientEvent)[0]
    documents = [each for model in typing.get_args(union) for each in documents_of(model)]
    assert len(documents) > 200
    refused: set[tuple[str, str]] = set()
    for document in documents:
        info = verdict(document)
        if info is not None:
            assert info.param, (info, document)
            refused.add((re.sub(r"\[\d+\]", "[]", info.param), info.code.value))
    assert refused == NOT_SERVED | MALFORMED

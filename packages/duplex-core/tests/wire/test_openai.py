"""The vocabulary against the one of the ``openai`` package, both ways: what we send, and what its clients may send."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from openai.types.beta.realtime import realtime_client_event as beta_client
from openai.types.beta.realtime import realtime_server_event as beta_server
from openai.types.realtime import realtime_client_event as ga_client
from openai.types.realtime import realtime_server_event as ga_server
from openai.types.realtime.realtime_translation_client_event import RealtimeTranslationClientEvent

from duplex_core.commands import COMMAND_TYPES
from duplex_core.errors import ErrorCode, error
from duplex_core.events import EVENT_TYPES, ErrorEvent
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import WireError, decode_command, encode_command, encode_event
from duplex_core.wire.dialect import REFUSED_EVENTS

NOT_SENT = {
    "conversation.created": "a session has one conversation; its id stands in every response",
    "conversation.item.input_audio_transcription.segment": "speakers are not told apart",
    "input_audio_buffer.dtmf_event_received": "there is no telephone line",
    "output_audio_buffer.started": "WebRTC only: the server does not play the audio",
    "output_audio_buffer.stopped": "WebRTC only: the server does not play the audio",
    "mcp_list_tools.in_progress": "tools are called by the client",
    "mcp_list_tools.completed": "tools are called by the client",
    "mcp_list_tools.failed": "tools are called by the client",
    "response.mcp_call_arguments.delta": "tools are called by the client",
    "response.mcp_call_arguments.done": "tools are called by the client",
    "response.mcp_call.in_progress": "tools are called by the client",
    "response.mcp_call.completed": "tools are called by the client",
    "response.mcp_call.failed": "tools are called by the client",
    # of the beta protocol
    "response.audio.delta": "the GA protocol says response.output_audio.delta",
    "response.audio.done": "the GA protocol says response.output_audio.done",
    "response.audio_transcript.delta": "the GA protocol says response.output_audio_transcript.delta",
    "response.audio_transcript.done": "the GA protocol says response.output_audio_transcript.done",
    "response.text.delta": "the GA protocol says response.output_text.delta",
    "response.text.done": "the GA protocol says response.output_text.done",
    "transcription_session.updated": "there are no transcription sessions",
}
"""Events of OpenAI's server that this one never sends, with the reason."""

EXTENSIONS = {
    "server_event_seq",
    "error.retryable",
    "session.id",
    "session.object",
    "session.resume_token",
    "session.temperature",
    "session.playback",
    "session.overlap",
    "session.options",
    "session.epoch",
    "session.attachment_generation",
    "session.capabilities",
    "response.output_audio.delta: format",
    "response.output_audio.delta: sample_rate_hz",
    "response.output_audio.delta: metadata",
    "response.created: turn_id",
    "response.done: turn_id",
    "response.done: metrics",
    "output_audio_buffer.cleared: epoch",
    "output_audio_buffer.cleared: audio_end_ms",
}
"""Every field that we add to an event of OpenAI's: ``event: field`` for one, ``field`` for several."""


def members(union: Any) -> dict[str, type[pydantic.BaseModel]]:
    """The models of one of the package's event unions, by event type."""
    if typing.get_origin(union) is typing.Annotated:
        union = typing.get_args(union)[0]
    return {typing.get_args(model.model_fields["type"].annotation)[0]: model for model in typing.get_args(union)}


SERVER = members(ga_server.RealtimeServerEvent)
CLIENT = members(ga_client.RealtimeClientEvent)
BETA_SERVER = members(beta_server.RealtimeServerEvent)
BETA_CLIENT = members(beta_client.RealtimeClientEvent)
TRANSLATION_CLIENT = members(RealtimeTranslationClientEvent)


def text_of(name: str) -> str:
    return encode_event(EVENT_EXAMPLES[name], event_id="event_1", seq=7)


def added_fields(value: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields that openai's models do not know."""
    if isinstance(value, pydantic.BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}{name}"
        for name in type(value).model_fields:
            yield from added_fields(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, list):
        for each in value:
            yield from added_fields(each, path)


def test_the_lists_are_the_packages() -> None:
    assert len(SERVER) > 40
    assert len(CLIENT) >= 11
    assert len(BETA_SERVER) > 30
    assert len(BETA_CLIENT) >= 12


def test_every_server_event_of_openai_is_sent_or_has_a_reason() -> None:
    known = SERVER.keys() | BETA_SERVER.keys()
    assert not known - EVENT_TYPES.keys() - NOT_SENT.keys()
    assert not NOT_SENT.keys() - known, "a reason for an event that the package does not have"
    assert not NOT_SENT.keys() & EVENT_TYPES.keys()


@pytest.mark.parametrize("name", sorted(EVENT_TYPES.keys() & SERVER.keys()))
def test_an_event_is_the_type_of_its_name(name: str) -> None:
    parsed = SERVER[name].model_validate_json(text_of(name), strict=True)
    extra = {
        field for field in added_fields(parsed) if field not in EXTENSIONS and f"{name}: {field}" not in EXTENSIONS
    }
    assert not extra
    whole = pydantic.TypeAdapter[Any](ga_server.RealtimeServerEvent).validate_json(text_of(name))
    assert type(whole) is SERVER[name]


@pytest.mark.parametrize(
    "name", sorted(EVENT_TYPES.keys() & BETA_SERVER.keys() - {"session.created", "session.updated"})
)
def test_an_event_that_the_beta_protocol_has_is_its_type_too(name: str) -> None:
    """But for the content parts' names and the session's shape, which the GA protocol changed."""
    text = text_of(name).replace('"output_audio"', '"audio"').replace('"output_text"', '"text"')
    BETA_SERVER[name].model_validate_json(text)


def test_every_declared_extension_is_there() -> None:
    shed = ErrorEvent(error=error(ErrorCode.RESOURCE_EXHAUSTED, "all sessions are taken"))
    texts = [(name, text_of(name)) for name in EVENT_TYPES.keys() & SERVER.keys()]
    found: set[str] = set()
    for name, text in [*texts, ("error", encode_event(shed, event_id="event_1", seq=1))]:
        for field in added_fields(SERVER[name].model_validate_json(text)):
            found |= {field, f"{name}: {field}"}
    assert not EXTENSIONS - found


def test_every_client_event_of_openai_is_a_command_or_refused_by_name() -> None:
    known = CLIENT.keys() | BETA_CLIENT.keys() | TRANSLATION_CLIENT.keys()
    assert not known - COMMAND_TYPES.keys() - REFUSED_EVENTS.keys()
    assert not REFUSED_EVENTS.keys() - known
    for name in REFUSED_EVENTS:
        with pytest.raises(WireError) as caught:
            decode_command(f'{{"type":"{name}","event_id":"evt_1"}}')
        assert caught.value.info.code is ErrorCode.UNSUPPORTED_EVENT
        assert caught.value.info.event_id == "evt_1"
        assert name in caught.value.info.message


@pytest.mark.parametrize("name", sorted(COMMAND_TYPES.keys() & CLIENT.keys()))
def test_our_commands_are_openais_client_events(name: str) -> None:
    parsed = CLIENT[name].model_validate_json(encode_command(COMMAND_EXAMPLES[name]), strict=True)
    assert set(added_fields(parsed)) <= {"session.playback"}

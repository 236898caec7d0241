"""The page on the wire protocol, the typed vocabulary and the examples name the same things."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duplex_core.commands import COMMAND_TYPES
from duplex_core.errors import ErrorCode, error
from duplex_core.events import EVENT_TYPES
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import encode_command, encode_event

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
FROM_CLIENT, TO_CLIENT = PAGE.split("\n## From the client\n")[1].split("\n## To the client\n")

COMMANDS = [
    "session.update",
    "session.heartbeat",
    "session.event_ack",
    "session.resume",
    "session.close",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "input.cancel",
    "input.text.append",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
    "output_audio_buffer.clear",
    "playback.ack",
    "barge_in",
    "turn.signal",
]
EVENTS = [
    "session.created",
    "session.updated",
    "session.heartbeat_ack",
    "session.resumed",
    "session.replaced",
    "session.expired",
    "session.resync_required",
    "session.closed",
    "error",
    "rate_limits.updated",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "input_audio_buffer.cleared",
    "input_audio_buffer.timeout_triggered",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
    "conversation.item.input_audio_transcription.failed",
    "conversation.item.added",
    "conversation.item.created",
    "conversation.item.done",
    "conversation.item.retrieved",
    "conversation.item.truncated",
    "conversation.item.deleted",
    "response.created",
    "response.done",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.speak",
    "response.listen",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.delta",
    "response.output_audio_transcript.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "overlap.decision",
    "turn.event",
    "playback.acknowledged",
    "output_audio_buffer.cleared",
]
"""The contract's names, written out: taking one out of the code must fail here."""


def sections(half: str) -> dict[str, str]:
    """The text under each heading that names an event."""
    pieces = re.split(r"^#### `([^`]+)`$", half, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def shown(section: str) -> Any:
    """The JSON that a section shows."""
    return json.loads(section.split("```json\n")[1].split("```", maxsplit=1)[0])


def test_every_name_of_the_contract_has_a_type_an_example_and_a_section() -> None:
    assert set(COMMANDS) == set(COMMAND_TYPES) == set(COMMAND_EXAMPLES) == set(sections(FROM_CLIENT))
    assert set(EVENTS) == set(EVENT_TYPES) == set(EVENT_EXAMPLES) == set(sections(TO_CLIENT))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_shown_as_it_is_rendered(name: str) -> None:
    rendered = json.loads(encode_command(COMMAND_EXAMPLES[name]))
    assert rendered["type"] == name
    assert shown(sections(FROM_CLIENT)[name]) == rendered, json.dumps(rendered, indent=2)


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_shown_as_it_is_rendered(name: str) -> None:
    rendered = json.loads(encode_event(EVENT_EXAMPLES[name], event_id="event_8d31", seq=42))
    assert rendered["type"] == name
    assert shown(sections(TO_CLIENT)[name]) == rendered, json.dumps(rendered, indent=2)


def test_every_error_code_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (yes|no) \| \S.* \|$", PAGE, flags=re.MULTILINE)
    infos = [error(code, "why") for code in ErrorCode]
    assert rows == [(info.code.value, info.type.value, "yes" if info.retryable else "no") for info in infos]

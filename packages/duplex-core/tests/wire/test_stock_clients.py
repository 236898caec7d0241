"""Messages in the spelling of stock clients become the commands that they mean."""

from __future__ import annotations

import json

import pytest

from duplex_core.audio import AudioEncoding, AudioFormat
from duplex_core.capabilities import Capabilities
from duplex_core.commands import Command, ConversationItemCreate, ResponseCreate, SessionUpdate
from duplex_core.config import Modality, SemanticVad, ServerVad, SessionConfig, ToolMode
from duplex_core.errors import ErrorCode
from duplex_core.items import (
    ContentPart,
    FunctionCallOutputItem,
    InputText,
    ItemStatus,
    MessageItem,
    OutputAudio,
    OutputText,
)
from duplex_core.patch import apply_session_patch
from duplex_core.wire import WireError, decode_command

CAN = Capabilities(tools=True, temperature=True, speed=True, input_transcription=True, semantic_vad=True)
TOOL = {"type": "function", "name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}}


def decode(**document: object) -> Command:
    return decode_command(json.dumps(document))


def configured(session: dict[str, object]) -> SessionConfig:
    command = decode(type="session.update", session=session)
    assert isinstance(command, SessionUpdate)
    return apply_session_patch(SessionConfig(model="m"), command.session, CAN)


def test_a_beta_session_update() -> None:
    config = configured(
        {
            "modalities": ["text", "audio"],
            "instructions": "Be kind.",
            "voice": "alloy",
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "pcm16",
            "input_audio_transcription": {"model": "whisper-1"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.4,
                "prefix_padding_ms": 200,
                "silence_duration_ms": 600,
                "create_response": False,
            },
            "tools": [TOOL],
            "tool_choice": "auto",
            "temperature": 0.8,
            "max_response_output_tokens": 4096,
        }
    )
    assert config.modality is Modality.AUDIO
    assert config.input_format == AudioFormat(encoding=AudioEncoding.PCMU, rate_hz=8000)
    assert config.output_format == AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=24000)
    assert config.transcription is not None
    assert config.turn_detection == ServerVad(
        threshold=0.4, prefix_padding_ms=200, silence_duration_ms=600, create_response=False
    )
    assert [tool.name for tool in config.tools] == ["look_up"]
    assert (config.temperature, config.max_output_tokens) == (0.8, 4096)


def test_a_ga_session_update_with_what_its_caller_did_not_set() -> None:
    config = configured(
        {
            "type": "realtime",
            "model": None,
            "instructions": None,
            "output_modalities": ["audio"],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "noise_reduction": None,
                    "transcription": {"model": "gpt-4o-mini-transcribe", "language": None, "prompt": None},
                    "turn_detection": {"type": "semantic_vad", "eagerness": "high", "create_response": None},
                },
                "output": {"format": None, "voice": "marin", "speed": None},
            },
            "tools": None,
            "tool_choice": None,
            "max_output_tokens": None,
            "tracing": None,
            "truncation": "auto",
            "include": [],
            "prompt": None,
        }
    )
    assert isinstance(config.turn_detection, SemanticVad)
    assert config.turn_detection.create_response
    assert config.tool_choice is ToolMode.AUTO
    assert config.instructions == ""


def test_null_turns_off_what_can_be_off() -> None:
    base = configured({"audio": {"input": {"transcription": {"model": "x"}}}})
    assert base.transcription is not None
    off = configured({"audio": {"input": {"transcription": None, "turn_detection": None}}})
    assert (off.transcription, off.turn_detection) == (None, None)
    assert configured({"turn_detection": None}).turn_detection is None


@pytest.mark.parametrize(
    ("role", "part", "meant"),
    [
        ("user", {"type": "text", "text": "Hi."}, InputText(text="Hi.")),
        ("system", {"type": "text", "text": "Hi."}, InputText(text="Hi.")),
        ("assistant", {"type": "text", "text": "Hi."}, OutputText(text="Hi.")),
        ("assistant", {"type": "audio", "transcript": "Hi."}, OutputAudio(transcript="Hi.")),
        ("user", {"type": "input_text", "text": "Hi.", "audio": None, "transcript": None}, InputText(text="Hi.")),
    ],
)
def test_content_parts_in_other_spellings(role: str, part: dict[str, object], meant: ContentPart) -> None:
    item = {
        "type": "message",
        "role": role,
        "content": [part],
        "id": "i",
        "object": "realtime.item",
        "status": "completed",
    }
    created = decode(type="conversation.item.create", item=item, previous_item_id="root")
    assert isinstance(created, ConversationItemCreate)
    assert isinstance(created.item, MessageItem)
    assert created.item.content == (meant,)
    assert (created.item.id, created.item.status) == ("i", ItemStatus.COMPLETED)
    asked = decode(type="response.create", response={"conversation": "none", "input": [item]})
    assert isinstance(asked, ResponseCreate)
    assert asked.response is not None
    assert asked.response.input == (created.item,)


def test_a_tools_answer() -> None:
    item = {"type": "function_call_output", "call_id": "call_1", "output": "42", "id": None, "status": None}
    command = decode(type="conversation.item.create", item=item)
    assert isinstance(command, ConversationItemCreate)
    assert command.item == FunctionCallOutputItem(call_id="call_1", output="42")


def test_an_unserved_session_type_is_named() -> None:
    with pytest.raises(WireError) as caught:
        decode(type="session.update", session={"type": "transcription", "audio": {}}, event_id="e1")
    assert caught.value.info.code is ErrorCode.UNSUPPORTED_PARAMETER
    assert "transcription" in caught.value.info.message
    assert caught.value.info.event_id == "e1"

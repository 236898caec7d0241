"""A patch applies wholly or not at all, in both dialects, and every refusal names its field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duplex_core.audio import AudioEncoding, AudioFormat
from duplex_core.capabilities import Capabilities
from duplex_core.config import FunctionTool, Modality, ServerVad, SessionConfig, ToolFunction, ToolMode
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo
from duplex_core.ledger import CommitPolicy
from duplex_core.patch import ResponseParams, SessionPatch, apply_response_params, apply_session_patch

ABLE = Capabilities(
    tools=True, temperature=True, speed=True, input_transcription=True, semantic_vad=True, voices=("low", "high")
)
PLAIN = Capabilities(output_modalities=(Modality.TEXT,), instructions=False)
CONFIG = SessionConfig(
    model="m", instructions="Before.", tools=(FunctionTool(name="a"),), tool_choice=ToolFunction(name="a"), voice="low"
)
SILENT_PCM = {"type": "audio/pcm", "rate": 16000}


def patch_of(fields: dict[str, Any]) -> SessionPatch:
    return msgspec.convert(fields, SessionPatch)


def after(fields: dict[str, Any], capabilities: Capabilities = ABLE) -> SessionConfig:
    return apply_session_patch(CONFIG, patch_of(fields), capabilities)


def refusal(fields: dict[str, Any], capabilities: Capabilities = ABLE) -> ErrorInfo:
    before = msgspec.structs.asdict(CONFIG)
    with pytest.raises(DuplexError) as caught:
        after(fields, capabilities)
    assert msgspec.structs.asdict(CONFIG) == before
    return caught.value.info


@pytest.mark.parametrize(
    ("ga", "beta"),
    [
        ({"output_modalities": ["text"]}, {"modalities": ["text"]}),
        ({"audio": {"output": {"voice": "high"}}}, {"voice": "high"}),
        ({"audio": {"output": {"voice": {"id": "high"}}}}, {"voice": "high"}),
        ({"audio": {"output": {"speed": 1.25}}}, {"speed": 1.25}),
        ({"audio": {"input": {"format": {"type": "audio/pcmu"}}}}, {"input_audio_format": "g711_ulaw"}),
        ({"audio": {"output": {"format": {"type": "audio/pcma"}}}}, {"output_audio_format": "g711_alaw"}),
        ({"audio": {"input": {"format": {"type": "audio/pcm"}}}}, {"input_audio_format": "pcm16"}),
        (
            {"audio": {"input": {"transcription": {"language": "de"}}}},
            {"input_audio_transcription": {"language": "de"}},
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 0.7}}}},
            {"turn_detection": {"type": "server_vad", "threshold": 0.7}},
        ),
        ({"audio": {"input": {"turn_detection": None}}}, {"turn_detection": None}),
        ({"max_output_tokens": 50}, {"max_response_output_tokens": 50}),
    ],
)
def test_both_dialects_say_the_same(ga: dict[str, Any], beta: dict[str, Any]) -> None:
    assert after(ga) == after(beta)


def test_both_dialects_change_something() -> None:
    assert after({"max_output_tokens": 50}) != CONFIG
    assert after({"audio": {"output": {"voice": "high"}}}).voice == "high"


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"output_modalities": ["text"], "modalities": ["audio"]}, "modality", Modality.TEXT),
        ({"audio": {"output": {"voice": "high"}}, "voice": "low"}, "voice", "high"),
        ({"audio": {"output": {"speed": 0.5}}, "speed": 1.5}, "speed", 0.5),
        ({"max_output_tokens": 5, "max_response_output_tokens": 9}, "max_output_tokens", 5),
        (
            {"audio": {"input": {"turn_detection": None}}, "turn_detection": {"type": "server_vad"}},
            "turn_detection",
            None,
        ),
        (
            {"audio": {"input": {"format": SILENT_PCM}}, "input_audio_format": "g711_ulaw"},
            "input_format",
            AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=16000),
        ),
    ],
)
def test_the_ga_spelling_wins(fields: dict[str, Any], name: str, value: object) -> None:
    assert getattr(after(fields), name) == value
    assert getattr(after(dict(reversed(fields.items()))), name) == value


REFUSALS: list[tuple[dict[str, Any], str, ErrorCode]] = [
    ({"model": "other"}, "session.model", ErrorCode.UNSUPPORTED_PARAMETER),
    ({"prompt": {"id": "p"}}, "session.prompt", ErrorCode.UNSUPPORTED_PARAMETER),
    ({"tracing": "auto"}, "session.tracing", ErrorCode.UNSUPPORTED_PARAMETER),
    ({"truncation": "disabled"}, "session.truncation", ErrorCode.UNSUPPORTED_PARAMETER),
    ({"include": ["x"]}, "session.include", ErrorCode.UNSUPPORTED_PARAMETER),
    ({"reasoning": {}}, "session.reasoning", ErrorCode.UNSUPPORTED_PARAMETER),
    (
        {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}},
        "session.audio.input.noise_reduction",
        ErrorCode.UNSUPPORTED_PARAMETER,
    ),
    (
        {"input_audio_noise_reduction": {"type": "near_field"}},
        "session.input_audio_noise_reduction",
        ErrorCode.UNSUPPORTED_PARAMETER,
    ),
    ({"output_modalities": []}, "session.output_modalities", ErrorCode.INVALID_VALUE),
    ({"modalities": []}, "session.modalities", ErrorCode.INVALID_VALUE),
    ({"voice": "tenor"}, "session.voice", ErrorCode.INVALID_VALUE),
    ({"audio": {"output": {"voice": "tenor"}}}, "session.audio.output.voice", ErrorCode.INVALID_VALUE),
    ({"speed": 3.0}, "session.speed", ErrorCode.INVALID_VALUE),
    ({"audio": {"output": {"speed": 0.1}}}, "session.audio.output.speed", ErrorCode.INVALID_VALUE),
    ({"temperature": 2.5}, "session.temperature", ErrorCode.INVALID_VALUE),
    ({"max_output_tokens": 0}, "session.max_output_tokens", ErrorCode.INVALID_VALUE),
    ({"max_output_tokens": 2**31}, "session.max_output_tokens", ErrorCode.INVALID_VALUE),
    ({"max_response_output_tokens": -1}, "session.max_response_output_tokens", ErrorCode.INVALID_VALUE),
    ({"input_audio_format": "mp3"}, "session.input_audio_format", ErrorCode.INVALID_VALUE),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 44100}}}},
        "session.audio.input.format.rate",
        ErrorCode.INVALID_VALUE,
    ),
    (
        {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 0}}}},
        "session.audio.output.format.rate",
        ErrorCode.INVALID_VALUE,
    ),
    (
        {"audio": {"output": {"format": {"type": "audio/pcmu", "rate": 16000}}}},
        "session.audio.output.format.rate",
        ErrorCode.INVALID_VALUE,
    ),
    (
        {"turn_detection": {"type": "server_vad", "threshold": 1.5}},
        "session.turn_detection.threshold",
        ErrorCode.INVALID_VALUE,
    ),
    (
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": -5}}}},
        "session.audio.input.turn_detection.silence_duration_ms",
        ErrorCode.INVALID_VALUE,
    ),
    ({"tools": [{"name": "a"}, {"name": "a"}]}, "session.tools", ErrorCode.INVALID_VALUE),
    ({"tool_choice": {"type": "function", "name": "b"}}, "session.tool_choice", ErrorCode.INVALID_VALUE),
    ({"tools": [{"name": "b"}]}, "session.tool_choice", ErrorCode.INVALID_VALUE),
    ({"tools": [], "tool_choice": "required"}, "session.tool_choice", ErrorCode.INVALID_VALUE),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSALS)
def test_a_refusal_names_the_field_and_changes_nothing(fields: dict[str, Any], param: str, code: ErrorCode) -> None:
    info = refusal(fields)
    assert (info.param, info.code) == (param, code)
    assert info.message


@pytest.mark.parametrize(("fields", "param", "code"), REFUSALS)
def test_good_fields_beside_a_refused_one_are_not_applied(fields: dict[str, Any], param: str, code: ErrorCode) -> None:
    info = refusal(
        {"instructions": "After.", "parallel_tool_calls": False, "playback": {"commit_policy": "ack_only"}} | fields
    )
    assert (info.param, info.code) == (param, code)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"instructions": "x"}, "session.instructions"),
        ({"output_modalities": ["audio"]}, "session.output_modalities"),
        ({"tools": [{"name": "a"}]}, "session.tools"),
        ({"temperature": 0.8}, "session.temperature"),
        ({"temperature": 0.0}, "session.temperature"),
        ({"speed": 1.2}, "session.speed"),
        ({"audio": {"output": {"speed": 1.2}}}, "session.audio.output.speed"),
        ({"input_audio_transcription": {}}, "session.input_audio_transcription"),
        ({"audio": {"input": {"transcription": {}}}}, "session.audio.input.transcription"),
        ({"turn_detection": {"type": "semantic_vad"}}, "session.turn_detection.type"),
    ],
)
def test_what_the_model_cannot_do_is_refused_and_what_it_can_is_not(fields: dict[str, Any], param: str) -> None:
    info = refusal(fields, PLAIN)
    assert (info.param, info.code) == (param, ErrorCode.UNSUPPORTED_PARAMETER)
    assert after(fields, ABLE).model == "m"


@pytest.mark.parametrize(
    "fields", [{}, {"instructions": ""}, {"tools": []}, {"speed": 1.0}, {"audio": {"input": {"transcription": None}}}]
)
def test_asking_a_plain_model_for_nothing_is_fine(fields: dict[str, Any]) -> None:
    config = SessionConfig(model="m", modality=Modality.TEXT)
    assert apply_session_patch(config, patch_of(fields), PLAIN).modality is Modality.TEXT


def test_absent_fields_stay() -> None:
    changed = after({"instructions": "After."})
    assert changed == msgspec.structs.replace(CONFIG, instructions="After.")


def test_a_stock_voice_is_the_models_default_voice() -> None:
    assert after({"voice": "alloy"}).voice == "low"
    assert after({"voice": "alloy"}, Capabilities()).voice is None


def test_options_are_merged_and_the_playback_policy_is_taken() -> None:
    config = msgspec.structs.replace(CONFIG, options={"a": 1, "b": 2})
    patch = patch_of({"options": {"b": 3}, "playback": {"commit_policy": "ack_only"}})
    changed = apply_session_patch(config, patch, ABLE)
    assert changed.options == {"a": 1, "b": 3}
    assert changed.commit_policy is CommitPolicy.ACK_ONLY
    assert config.options == {"a": 1, "b": 2}


def test_tools_may_change_together_with_their_choice() -> None:
    changed = after({"tools": [{"name": "b"}], "tool_choice": "auto"})
    assert changed.tool_choice is ToolMode.AUTO
    assert [tool.name for tool in changed.tools] == ["b"]


def test_one_response_has_its_own_configuration() -> None:
    params = msgspec.convert(
        {"instructions": "Once.", "output_modalities": ["text"], "tool_choice": "none", "max_output_tokens": 7},
        ResponseParams,
    )
    once = apply_response_params(CONFIG, params, ABLE)
    assert (once.instructions, once.modality, once.tool_choice, once.max_output_tokens) == (
        "Once.",
        Modality.TEXT,
        ToolMode.NONE,
        7,
    )
    assert CONFIG.instructions == "Before."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "tenor"}, "response.voice"),
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 1}}}}, "response.audio.output.format.rate"),
        ({"prompt": {"id": "p"}}, "response.prompt"),
        ({"tool_choice": {"name": "zzz"}}, "response.tool_choice"),
        ({"max_output_tokens": 0}, "response.max_output_tokens"),
    ],
)
def test_a_refused_override_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(DuplexError) as caught:
        apply_response_params(CONFIG, msgspec.convert(fields, ResponseParams), ABLE)
    assert caught.value.info.param == param


def test_the_defaults_are_openais() -> None:
    assert ServerVad() == ServerVad(
        threshold=0.5,
        prefix_padding_ms=300,
        silence_duration_ms=500,
        create_response=True,
        interrupt_response=True,
        idle_timeout_ms=None,
    )

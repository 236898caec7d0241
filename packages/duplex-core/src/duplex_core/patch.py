"""Partial configuration as clients send it, and its application to the whole.

Owns the two dialects (GA ``audio.input.format``, beta ``input_audio_format``) and the rule that a patch applies wholly or
not at all. Called by the session machine for ``session.update`` and ``response.create``. Absent (``UNSET``) and ``null``
are different things here: absent leaves a field alone, ``null`` turns off what can be off (turn detection, transcription).
On the wire, ``null`` for any other field is as if absent.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from duplex_core.audio import PCM_RATES_HZ, TELEPHONE_RATE_HZ, AudioEncoding, AudioFormat
from duplex_core.capabilities import Capabilities
from duplex_core.config import (
    FunctionTool,
    Modality,
    OverlapMode,
    SemanticVad,
    ServerVad,
    SessionConfig,
    ToolChoice,
    ToolFunction,
    ToolMode,
    Transcription,
    TurnDetection,
)
from duplex_core.errors import ErrorCode, refuse
from duplex_core.items import Item
from duplex_core.ledger import CommitPolicy

OPENAI_VOICES = frozenset({"alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar"})
"""Names that stock clients send unasked (the ``openai`` package's ``voice`` literals); each means the default voice."""

_BETA_FORMATS = {
    "pcm16": AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=24000),
    "g711_ulaw": AudioFormat(encoding=AudioEncoding.PCMU, rate_hz=TELEPHONE_RATE_HZ),
    "g711_alaw": AudioFormat(encoding=AudioEncoding.PCMA, rate_hz=TELEPHONE_RATE_HZ),
}

MAX_OUTPUT_TOKENS = 2**31 - 1
"""Largest limit on an answer's tokens; more is ``"inf"``."""

SPEED_RANGE = (0.25, 1.5)
"""Limits of ``speed``, as in the GA protocol."""
OVERLAP_MAX_MS = 10_000
"""Longest time in ``session.overlap``."""
TEMPERATURE_RANGE = (0.0, 2.0)


class WireFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``{"type": "audio/pcm", "rate": 24000}``."""

    type: AudioEncoding
    rate: int | None = None


class VoiceId(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``{"id": "..."}``: the GA protocol's long form of a voice name."""

    id: str


class InputPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``session.audio.input``."""

    format: WireFormat | UnsetType = UNSET
    noise_reduction: Any = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET


class OutputPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``session.audio.output`` and ``response.audio.output``."""

    format: WireFormat | UnsetType = UNSET
    voice: str | VoiceId | UnsetType = UNSET
    speed: float | UnsetType = UNSET


class AudioPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``session.audio``."""

    input: InputPatch | UnsetType = UNSET
    output: OutputPatch | UnsetType = UNSET


class ResponseAudioPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``response.audio``."""

    output: OutputPatch | UnsetType = UNSET


class PlaybackPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``session.playback`` (duplex extension)."""

    commit_policy: CommitPolicy | UnsetType = UNSET


class OverlapPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``session.overlap`` (duplex extension)."""

    mode: OverlapMode | UnsetType = UNSET
    noise_ms: int | UnsetType = UNSET
    short_ms: int | UnsetType = UNSET
    long_ms: int | UnsetType = UNSET
    settle_ms: int | UnsetType = UNSET
    longest_backchannel_ms: int | UnsetType = UNSET
    backchannels: tuple[str, ...] | UnsetType = UNSET
    interruptions: tuple[str, ...] | UnsetType = UNSET


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ``session`` object of ``session.update``, both dialects, and the duplex extensions at its end."""

    type: Literal["realtime"] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    output_modalities: list[Modality] | UnsetType = UNSET
    audio: AudioPatch | UnsetType = UNSET
    tools: list[FunctionTool] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    max_output_tokens: int | Literal["inf"] | UnsetType = UNSET
    include: Any = UNSET
    prompt: Any = UNSET
    reasoning: Any = UNSET
    tracing: Any = UNSET
    truncation: Any = UNSET
    # beta spellings
    modalities: list[Modality] | UnsetType = UNSET
    voice: str | UnsetType = UNSET
    speed: float | UnsetType = UNSET
    input_audio_format: str | UnsetType = UNSET
    output_audio_format: str | UnsetType = UNSET
    input_audio_transcription: Transcription | UnsetType | None = UNSET
    input_audio_noise_reduction: Any = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET
    temperature: float | UnsetType = UNSET
    max_response_output_tokens: int | Literal["inf"] | UnsetType = UNSET
    # duplex extensions
    playback: PlaybackPatch | UnsetType = UNSET
    overlap: OverlapPatch | UnsetType = UNSET
    options: dict[str, Any] | UnsetType = UNSET


class ItemReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="item_reference"):
    """Names an item that is already in the conversation, in ``response.input``."""

    id: str


class ResponseParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ``response`` object of ``response.create``: overrides for one response, both dialects."""

    instructions: str | UnsetType = UNSET
    output_modalities: list[Modality] | UnsetType = UNSET
    audio: ResponseAudioPatch | UnsetType = UNSET
    tools: list[FunctionTool] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    max_output_tokens: int | Literal["inf"] | UnsetType = UNSET
    metadata: dict[str, str] | None = None
    conversation: Literal["auto", "none"] = "auto"
    input: tuple[Item | ItemReference, ...] | None = None
    prompt: Any = UNSET
    reasoning: Any = UNSET
    # beta spellings
    modalities: list[Modality] | UnsetType = UNSET
    voice: str | UnsetType = UNSET
    output_audio_format: str | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    max_response_output_tokens: int | Literal["inf"] | UnsetType = UNSET


class _Change:
    """Collects checked field values, then makes the new configuration in one step."""

    def __init__(self, config: SessionConfig, capabilities: Capabilities, root: str) -> None:
        self._config = config
        self._can = capabilities
        self._root = root
        self._fields: dict[str, Any] = {}

    def finish(self) -> SessionConfig:
        return msgspec.structs.replace(self._config, **self._fields)

    def refuse_set(self, **values: object) -> None:
        """Refuse fields that are known to the protocol and cannot be served; ``null`` and absent are fine."""
        for name, value in values.items():
            if value is not UNSET and value is not None and value != []:
                path = f"{self._root}.{name.replace('__', '.')}"
                raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, f"{path} is not supported by this server", param=path)

    def put(self, name: str, value: object) -> None:
        if value is not UNSET:
            self._fields[name] = value

    def gate(self, path: str, value: object, allowed: bool, what: str) -> None:
        """Refuse ``value`` when it was sent and the served model cannot do it."""
        if value is UNSET or allowed or value in (None, "", []):
            return
        param = f"{self._root}.{path}"
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, f"the served model has no {what}; leave {param} out", param=param)

    def modality(self, path: str, value: list[Modality] | UnsetType) -> None:
        if isinstance(value, UnsetType):
            return
        param = f"{self._root}.{path}"
        if not value:
            raise refuse(ErrorCode.INVALID_VALUE, f"{param} must name at least one of: audio, text", param=param)
        chosen = Modality.AUDIO if Modality.AUDIO in value else Modality.TEXT
        if chosen not in self._can.output_modalities:
            served = ", ".join(each.value for each in self._can.output_modalities)
            message = f"the served model cannot answer in {chosen.value}; it can in: {served}"
            raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=param)
        self._fields["modality"] = chosen

    def format(self, path: str, name: str, value: WireFormat | str | UnsetType) -> None:
        if isinstance(value, UnsetType):
            return
        param = f"{self._root}.{path}"
        if isinstance(value, str):
            if value not in _BETA_FORMATS:
                message = f"{param} is {value!r}; use one of: {', '.join(_BETA_FORMATS)}"
                raise refuse(ErrorCode.INVALID_VALUE, message, param=param)
            self._fields[name] = _BETA_FORMATS[value]
            return
        try:
            self._fields[name] = parse_format(value.type, value.rate)
        except ValueError as exc:
            raise refuse(ErrorCode.INVALID_VALUE, str(exc), param=f"{param}.rate") from None

    def voice(self, path: str, value: str | VoiceId | UnsetType) -> None:
        if isinstance(value, UnsetType):
            return
        name = value.id if isinstance(value, VoiceId) else value
        if name in self._can.voices:
            self._fields["voice"] = name
        elif name in OPENAI_VOICES:
            self._fields["voice"] = self._can.voices[0] if self._can.voices else None
        else:
            param = f"{self._root}.{path}"
            served = ", ".join(self._can.voices) or "none to choose from"
            message = f"there is no voice {name!r}; the served model has: {served}"
            raise refuse(ErrorCode.INVALID_VALUE, message, param=param)

    def number(self, path: str, name: str, value: float | UnsetType, limits: tuple[float, float]) -> None:
        if isinstance(value, UnsetType):
            return
        low, high = limits
        if not low <= value <= high:
            param = f"{self._root}.{path}"
            raise refuse(ErrorCode.INVALID_VALUE, f"{param} is {value}; it must lie in {low} to {high}", param=param)
        self._fields[name] = value

    def max_tokens(self, path: str, value: int | Literal["inf"] | UnsetType) -> None:
        if isinstance(value, UnsetType):
            return
        if value != "inf" and not 1 <= value <= MAX_OUTPUT_TOKENS:
            param = f"{self._root}.{path}"
            message = f'{param} is {value}; it must lie in 1 to {MAX_OUTPUT_TOKENS}, or be "inf"'
            raise refuse(ErrorCode.INVALID_VALUE, message, param=param)
        self._fields["max_output_tokens"] = None if value == "inf" else value

    def turn_detection(self, path: str, value: TurnDetection | UnsetType | None) -> None:
        if isinstance(value, UnsetType):
            return
        param = f"{self._root}.{path}"
        if isinstance(value, SemanticVad) and not self._can.semantic_vad:
            message = "semantic_vad is not served here; use server_vad, or null to commit by hand"
            raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=f"{param}.type")
        if isinstance(value, ServerVad):
            check_server_vad(value, param)
        self._fields["turn_detection"] = value

    def overlap(self, patch: OverlapPatch) -> None:
        given = {name: getattr(patch, name) for name in patch.__struct_fields__}
        for name, value in given.items():
            if isinstance(value, int) and not 0 <= value <= OVERLAP_MAX_MS:
                param = f"{self._root}.overlap.{name}"
                message = f"{param} is {value}; it must lie in 0 to {OVERLAP_MAX_MS}"
                raise refuse(ErrorCode.INVALID_VALUE, message, param=param)
        known = {name: value for name, value in given.items() if value is not UNSET}
        self._fields["overlap"] = msgspec.structs.replace(self._config.overlap, **known)

    def tools(self, tools: list[FunctionTool] | UnsetType, choice: ToolChoice | UnsetType) -> None:
        self.gate("tools", tools, self._can.tools, "tools")
        if not isinstance(tools, UnsetType):
            names = [tool.name for tool in tools]
            if len(set(names)) != len(names):
                param = f"{self._root}.tools"
                raise refuse(ErrorCode.INVALID_VALUE, "two tools have the same name", param=param)
            self._fields["tools"] = tuple(tools)
        self.put("tool_choice", choice)
        after: tuple[FunctionTool, ...] = self._fields.get("tools", self._config.tools)
        chosen = self._fields.get("tool_choice", self._config.tool_choice)
        named = isinstance(chosen, ToolFunction) and chosen.name not in {tool.name for tool in after}
        sent = not isinstance(tools, UnsetType) or not isinstance(choice, UnsetType)
        if sent and (named or (chosen is ToolMode.REQUIRED and not after)):
            message = (
                f"tool_choice asks for {'a function' if not named else repr(chosen.name)} that tools does not have"
            )
            raise refuse(ErrorCode.INVALID_VALUE, message, param=f"{self._root}.tool_choice")


def parse_format(encoding: AudioEncoding, rate_hz: int | None) -> AudioFormat:
    """The format named by an encoding and an optional rate in Hz.

    Raises:
        ValueError: the encoding has no such rate.
    """
    telephone = encoding in (AudioEncoding.PCMU, AudioEncoding.PCMA)
    default = TELEPHONE_RATE_HZ if telephone else PCM_RATES_HZ[2]
    return AudioFormat(encoding=encoding, rate_hz=default if rate_hz is None else rate_hz)


def check_server_vad(vad: ServerVad, path: str) -> None:
    """Refuse figures that no detector can serve.

    Raises:
        DuplexError: a threshold outside 0 to 1, or a negative or unreasonably long time.
    """
    limits: tuple[tuple[str, float | None, float, float], ...] = (
        ("threshold", vad.threshold, 0.0, 1.0),
        ("prefix_padding_ms", vad.prefix_padding_ms, 0, 5000),
        ("silence_duration_ms", vad.silence_duration_ms, 32, 10_000),
        ("idle_timeout_ms", vad.idle_timeout_ms, 1000, 600_000),
    )
    for name, value, low, high in limits:
        if value is not None and not low <= value <= high:
            param = f"{path}.{name}"
            raise refuse(ErrorCode.INVALID_VALUE, f"{param} is {value}; it must lie in {low} to {high}", param=param)


def apply_session_patch(config: SessionConfig, patch: SessionPatch, capabilities: Capabilities) -> SessionConfig:
    """The configuration after ``patch``. Where both dialects name one thing, the GA spelling wins.

    Raises:
        DuplexError: a field that cannot be served or has an impossible value, named in ``info.param``; ``config`` stands.
    """
    change = _Change(config, capabilities, "session")
    change.refuse_set(
        include=patch.include,
        prompt=patch.prompt,
        reasoning=patch.reasoning,
        tracing=patch.tracing,
        truncation=None if patch.truncation == "auto" else patch.truncation,
        input_audio_noise_reduction=patch.input_audio_noise_reduction,
    )
    if not isinstance(patch.model, UnsetType) and patch.model != config.model:
        message = f"the model of a session cannot change; this one is served by {config.model}"
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param="session.model")
    _beta_fields(change, patch, capabilities)
    change.gate("instructions", patch.instructions, capabilities.instructions, "instructions")
    change.put("instructions", patch.instructions)
    change.modality("output_modalities", patch.output_modalities)
    change.max_tokens("max_output_tokens", patch.max_output_tokens)
    change.put("parallel_tool_calls", patch.parallel_tool_calls)
    change.tools(patch.tools, patch.tool_choice)
    if not isinstance(patch.audio, UnsetType):
        _audio_fields(change, patch.audio, capabilities)
    if not isinstance(patch.playback, UnsetType):
        change.put("commit_policy", patch.playback.commit_policy)
    if not isinstance(patch.overlap, UnsetType):
        change.overlap(patch.overlap)
    if not isinstance(patch.options, UnsetType):
        change.put("options", {**config.options, **patch.options})
    return change.finish()


def _beta_fields(change: _Change, patch: SessionPatch, can: Capabilities) -> None:
    change.modality("modalities", patch.modalities)
    change.voice("voice", patch.voice)
    change.gate("speed", patch.speed, can.speed or patch.speed == 1.0, "speaking speed")
    change.number("speed", "speed", patch.speed, SPEED_RANGE)
    change.format("input_audio_format", "input_format", patch.input_audio_format)
    change.format("output_audio_format", "output_format", patch.output_audio_format)
    change.gate("input_audio_transcription", patch.input_audio_transcription, can.input_transcription, "transcription")
    change.put("transcription", patch.input_audio_transcription)
    change.turn_detection("turn_detection", patch.turn_detection)
    change.gate("temperature", patch.temperature, can.temperature, "temperature")
    change.number("temperature", "temperature", patch.temperature, TEMPERATURE_RANGE)
    change.max_tokens("max_response_output_tokens", patch.max_response_output_tokens)


def _audio_fields(change: _Change, audio: AudioPatch, can: Capabilities) -> None:
    if not isinstance(audio.input, UnsetType):
        change.refuse_set(audio__input__noise_reduction=audio.input.noise_reduction)
        change.format("audio.input.format", "input_format", audio.input.format)
        wanted = audio.input.transcription
        change.gate("audio.input.transcription", wanted, can.input_transcription, "transcription")
        change.put("transcription", wanted)
        change.turn_detection("audio.input.turn_detection", audio.input.turn_detection)
    if not isinstance(audio.output, UnsetType):
        _output_fields(change, audio.output, can)


def _output_fields(change: _Change, output: OutputPatch, can: Capabilities) -> None:
    change.format("audio.output.format", "output_format", output.format)
    change.voice("audio.output.voice", output.voice)
    change.gate("audio.output.speed", output.speed, can.speed or output.speed == 1.0, "speaking speed")
    change.number("audio.output.speed", "speed", output.speed, SPEED_RANGE)


def apply_response_params(config: SessionConfig, params: ResponseParams, capabilities: Capabilities) -> SessionConfig:
    """The configuration that holds for one response with the overrides ``params``.

    Raises:
        DuplexError: a field that cannot be served or has an impossible value, named in ``info.param``.
    """
    change = _Change(config, capabilities, "response")
    change.refuse_set(prompt=params.prompt, reasoning=params.reasoning)
    change.gate("instructions", params.instructions, capabilities.instructions, "instructions")
    change.put("instructions", params.instructions)
    change.modality("modalities", params.modalities)
    change.modality("output_modalities", params.output_modalities)
    change.voice("voice", params.voice)
    change.format("output_audio_format", "output_format", params.output_audio_format)
    change.gate("temperature", params.temperature, capabilities.temperature, "temperature")
    change.number("temperature", "temperature", params.temperature, TEMPERATURE_RANGE)
    change.max_tokens("max_response_output_tokens", params.max_response_output_tokens)
    change.max_tokens("max_output_tokens", params.max_output_tokens)
    change.put("parallel_tool_calls", params.parallel_tool_calls)
    change.tools(params.tools, params.tool_choice)
    if not isinstance(params.audio, UnsetType) and not isinstance(params.audio.output, UnsetType):
        _output_fields(change, params.audio.output, capabilities)
    return change.finish()

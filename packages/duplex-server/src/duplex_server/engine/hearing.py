"""What a client's audio bytes mean: every command that carries audio, turned into 16-bit PCM at the model's rate.

Owns the check of an append's format fields and the state of the input resampler of one session. Called by the session
runner before the machine sees a command. Must never buffer for turns or decide about them; a command that is refused leaves
its state as it was.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from duplex_core.audio import AudioEncoding, AudioFormat
from duplex_core.commands import (
    Command,
    ConversationItemCreate,
    InputAudioBufferAppend,
    ResponseCreate,
)
from duplex_core.errors import ErrorCode, refuse
from duplex_core.items import InputAudio, Item, MessageItem
from duplex_core.patch import WireFormat, parse_format
from duplex_server.audio import AudioFormatError, StreamResampler, decode

_NAMES: Final = {
    **{encoding.value: encoding for encoding in AudioEncoding},
    "pcm16": AudioEncoding.PCM16,
    "g711_ulaw": AudioEncoding.PCMU,
    "g711_alaw": AudioEncoding.PCMA,
    "float32": AudioEncoding.FLOAT32,
}
_LINEAR: Final = (AudioEncoding.PCM16, AudioEncoding.FLOAT32)
_DURATION_SLACK_MS: Final = 2.0


class Hearing:
    """One session's way from audio on the wire to audio for the model."""

    def __init__(self, rate_hz: int) -> None:
        """Make it for a model that hears ``rate_hz``."""
        self._rate_hz = rate_hz
        self._stream = StreamResampler(rate_hz, rate_hz)

    def convert(self, command: Command, session_format: AudioFormat) -> Command:
        """``command`` with its audio as 16-bit mono PCM at the model's rate; without audio it comes back as it is.

        Args:
            command: what the client said.
            session_format: the session's input format, which holds unless an append names another.

        Raises:
            DuplexError: the audio is not what it is said to be; nothing of it was taken.
        """
        if isinstance(command, InputAudioBufferAppend):
            return self._append(command, session_format)
        if isinstance(command, ConversationItemCreate):
            return msgspec.structs.replace(command, item=self._item(command.item, session_format, "item"))
        if isinstance(command, ResponseCreate) and command.response is not None and command.response.input:
            entries = tuple(
                self._item(entry, session_format, f"response.input[{index}]") if isinstance(entry, Item) else entry
                for index, entry in enumerate(command.response.input)
            )
            response = msgspec.structs.replace(command.response, input=entries)
            return msgspec.structs.replace(command, response=response)
        return command

    def flush(self) -> bytes:
        """What the resampler still holds back of the audio so far, at the model's rate; the next append begins anew."""
        return self._stream.flush().tobytes()

    def _append(self, command: InputAudioBufferAppend, session_format: AudioFormat) -> InputAudioBufferAppend:
        audio_format = append_format(command, session_format)
        samples = _decoded(audio_format.encoding, command.audio, "audio")
        if not samples.size and not command.video_frames:
            raise refuse(ErrorCode.EMPTY_AUDIO, "audio is empty; send at least one sample", param="audio")
        if command.duration_ms is not None:
            _check_duration(command.duration_ms, samples.size * 1000 / audio_format.rate_hz)
        before = b""
        if audio_format.rate_hz != self._stream.source_hz:
            before = self.flush()
            self._stream = StreamResampler(audio_format.rate_hz, self._rate_hz)
        pcm = before + self._stream.push(samples).tobytes()
        return InputAudioBufferAppend(
            event_id=command.event_id, audio=pcm, is_speech=command.is_speech, video_frames=command.video_frames
        )

    def _item(self, item: Item, audio_format: AudioFormat, path: str) -> Item:
        """An item whose audio, each part a sound of its own, is at the model's rate."""
        if not isinstance(item, MessageItem):
            return item
        parts = list(item.content)
        for index, part in enumerate(parts):
            if isinstance(part, InputAudio) and part.audio is not None:
                samples = _decoded(audio_format.encoding, part.audio, f"{path}.content[{index}].audio")
                stream = StreamResampler(audio_format.rate_hz, self._rate_hz)
                pcm = np.concatenate([stream.push(samples), stream.flush()])
                parts[index] = msgspec.structs.replace(part, audio=pcm.tobytes())
        return msgspec.structs.replace(item, content=tuple(parts))


def append_format(command: InputAudioBufferAppend, session_format: AudioFormat) -> AudioFormat:
    """The format of one append: its own fields where it has them, else the session's.

    Raises:
        DuplexError: an unknown format, a rate that it does not have, or two rates that disagree.
    """
    given = command.format
    if given is None and command.sample_rate_hz is None:
        return session_format
    rate = _given_rate(command)
    if isinstance(given, str):
        if given not in _NAMES:
            message = f"format is {given!r}; use one of: {', '.join(_NAMES)}"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="format")
        encoding = _NAMES[given]
    else:
        encoding = given.type if given is not None else session_format.encoding
    if rate is None and encoding in _LINEAR and session_format.encoding in _LINEAR:
        rate = session_format.rate_hz
    if rate is not None and rate <= 0:
        raise refuse(ErrorCode.INVALID_VALUE, f"a rate of {rate} Hz is no rate", param="sample_rate_hz")
    try:
        return parse_format(encoding, rate)
    except ValueError as exc:
        raise refuse(ErrorCode.INVALID_VALUE, str(exc), param="sample_rate_hz") from None


def _given_rate(command: InputAudioBufferAppend) -> int | None:
    """The rate that an append names, in Hz, in whichever of the two places."""
    named = command.format.rate if isinstance(command.format, WireFormat) else None
    rate = command.sample_rate_hz
    if rate is not None and named is not None and rate != named:
        message = f"format.rate says {named} Hz and sample_rate_hz says {rate} Hz; send one of them"
        raise refuse(ErrorCode.INVALID_VALUE, message, param="sample_rate_hz")
    return named if rate is None else rate


def _decoded(encoding: AudioEncoding, data: bytes, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    try:
        return decode(encoding, data)
    except AudioFormatError as exc:
        raise refuse(ErrorCode.INVALID_AUDIO, str(exc), param=path) from None


def _check_duration(said: float, actual_ms: float) -> None:
    if abs(said - actual_ms) <= max(_DURATION_SLACK_MS, 0.01 * actual_ms):
        return
    message = (
        f"duration_ms says {said:g} and the audio lasts {actual_ms:.1f} ms in the format that holds for it; "
        "check format and sample_rate_hz, or leave duration_ms out"
    )
    raise refuse(ErrorCode.INVALID_VALUE, message, param="duration_ms")

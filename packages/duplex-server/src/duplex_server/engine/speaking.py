"""The model's audio, turned into the format that its response goes out in.

Owns the state of the output resampler of one session. Called by the session runner with each decision of the model, before
the machine sees it. Must never hold sound back longer than the filter does: the tail comes out before what ends it.
"""

from __future__ import annotations

import msgspec

from duplex_core.audio import PCM16_BYTES_PER_SAMPLE, AudioEncoding, AudioFormat
from duplex_core.fence import Fence
from duplex_core.model import Decision, EndTurn, Speak, ToolCall
from duplex_server.audio import StreamResampler, encode, samples_of


class Speaking:
    """One session's way from the model's audio to audio for the wire."""

    def __init__(self, rate_hz: int) -> None:
        """Make it for a model that speaks at ``rate_hz``."""
        self._rate_hz = rate_hz
        self._stream = StreamResampler(rate_hz, rate_hz)
        self._format: AudioFormat | None = None
        self._fence: Fence | None = None

    def convert(self, decision: Decision, audio_format: AudioFormat) -> tuple[Decision, ...]:
        """``decision`` as the machine takes it: audio encoded, and before the end of the speech what was held back of it.

        Args:
            decision: of the turn that is open; its fence tells one answer's stream from the next.
            audio_format: the open response's output format.
        """
        if isinstance(decision, Speak):
            return (self._speak(decision, audio_format),)
        if isinstance(decision, EndTurn | ToolCall):
            tail = self._tail(decision.fence)
            return (tail, decision) if tail is not None else (decision,)
        return (decision,)

    def reset(self) -> None:
        """The answer is over: forget what is held back."""
        self._stream.reset()
        self._fence = None

    def _speak(self, piece: Speak, audio_format: AudioFormat) -> Speak:
        if len(piece.pcm) % PCM16_BYTES_PER_SAMPLE:
            raise ValueError(f"the model spoke {len(piece.pcm)} bytes, which end in the middle of a sample")
        if not piece.pcm or self._goes_as_it_is(audio_format):
            return piece
        if self._fence != piece.fence or self._format != audio_format:
            self._begin(piece.fence, audio_format)
        spoken = self._stream.push(samples_of(piece.pcm))
        return msgspec.structs.replace(piece, pcm=encode(audio_format.encoding, spoken))

    def _goes_as_it_is(self, audio_format: AudioFormat) -> bool:
        """Whether the model speaks what the client wants; then there is nothing to convert and nothing is held back."""
        return audio_format.encoding is AudioEncoding.PCM16 and audio_format.rate_hz == self._rate_hz

    def _begin(self, fence: Fence, audio_format: AudioFormat) -> None:
        if self._stream.target_hz != audio_format.rate_hz:
            self._stream = StreamResampler(self._rate_hz, audio_format.rate_hz)
        else:
            self._stream.reset()
        self._fence = fence
        self._format = audio_format

    def _tail(self, fence: Fence) -> Speak | None:
        if self._fence != fence or self._format is None:
            return None
        data = encode(self._format.encoding, self._stream.flush())
        self._fence = None
        return Speak(fence=fence, pcm=data) if data else None

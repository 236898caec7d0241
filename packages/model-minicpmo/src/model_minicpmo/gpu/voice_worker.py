"""The worker of the voice's stage: audio codes in, sound out, for all sessions in batched steps.

Owns: a slot's voice, its stream of sound, and which codes wait. Called by: the `torch` runtime, in the stage's worker process
(:class:`duplex_core.workers.BatchedWorker`). Never: decides what is said or when a turn ends.

A step makes one chunk for each slot that has one; a unit of 1 s is one chunk or two.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from duplex_core.errors import ErrorCode, error
from duplex_core.workers import SlotResult, SlotWork
from model_minicpmo.errors import CheckpointError, InputError, RecordingError
from model_minicpmo.gpu.checkpoint import Checkpoint, DtypeName, find_token2wav, open_checkpoint
from model_minicpmo.gpu.hub import checkpoint_folder
from model_minicpmo.gpu.recordings import decode_recording, find_default_voice
from model_minicpmo.gpu.token2wav.chunks import Due, WaitingCodes, chat_chunks, silence_before
from model_minicpmo.gpu.token2wav.flow import Voice as Timbre
from model_minicpmo.gpu.token2wav.noise import SeededNoise, SourceNoise, no_noise
from model_minicpmo.gpu.token2wav.synthesis import Chunk, StreamState, Token2Wav, load_token2wav, pcm16
from model_minicpmo.gpu.voice.reader import VoiceReader
from model_minicpmo.payloads import Codes, Sound, Voice
from model_minicpmo.rules.units import UNIT_MS

log = logging.getLogger(__name__)

_CANNOT_READ = error(
    ErrorCode.UNSUPPORTED_PARAMETER,
    "the checkpoint that is served here lacks what reads a reference voice; leave reference_audio out",
    param=RecordingError.param,
)
_BRING_ONE = error(
    ErrorCode.INVALID_VALUE,
    "the checkpoint that is served here brings no voice of its own; send one as the option reference_audio",
    param=RecordingError.param,
)
_MUTE = error(
    ErrorCode.INTERNAL_ERROR,
    "there is no voice to speak with: the checkpoint that is served here brings none, and lacks what reads one",
)
_UNSPOKEN = error(
    ErrorCode.UNSUPPORTED_PARAMETER,
    "the checkpoint that is served here brings no voice of its own, so a chat is answered in writing alone",
)


@dataclass(slots=True, kw_only=True)
class _Speaker:
    """One slot: its voice, and the stream that is under way."""

    base: StreamState | None = None
    noise: SourceNoise = no_noise
    stream: StreamState | None = None
    waiting: WaitingCodes = field(default_factory=WaitingCodes)
    due: deque[Due] = field(default_factory=deque)
    codes: Codes | None = None
    samples: list[torch.Tensor] = field(default_factory=list)

    def quiet(self) -> None:
        """Forget the turn; the voice stays."""
        self.stream, self.codes = None, None
        self.waiting = WaitingCodes()
        self.due.clear()
        self.samples.clear()


class VoiceWorker:
    """Gives codes a sound: `Voice` and `Codes` in, `Sound` for the session out.

    Args:
        checkpoint: a checkpoint's folder, or its name on the hub.
        dtype: taken for the sake of likeness; the flow and the vocoder compute in float32, as published.
        flow_steps: steps of the flow for each chunk.
        noise: `seeded` draws the vocoder's noise from a seed; `none` takes zeros, for tests.
        default_voice: the voice of sessions that bring none, in place of the checkpoint's own recording; for tests.
    """

    frame_ms: float | None = UNIT_MS
    """A second of sound has to be made within a second."""

    def __init__(
        self,
        *,
        checkpoint: str,
        dtype: DtypeName = "auto",
        flow_steps: int = 10,
        noise: Literal["seeded", "none"] = "seeded",
        default_voice: Timbre | None = None,
    ) -> None:
        self._name = checkpoint
        self._steps = flow_steps
        self._noise = noise
        self._timbre = default_voice
        self._synthesis: Token2Wav
        self._reader: VoiceReader | CheckpointError
        self._own: StreamState | None = None
        self._speakers: list[_Speaker] = []

    def start(self, slots: int, device: str) -> None:
        """Load flow, vocoder and the reader of voices, and take in the checkpoint's own voice.

        Raises:
            CheckpointError: a file is not there or does not fit, or the checkpoint's own voice cannot be read.
        """
        checkpoint = open_checkpoint(checkpoint_folder(self._name))
        files = find_token2wav(checkpoint.folder)
        self._synthesis = load_token2wav(files, device=device, steps=self._steps)
        try:
            self._reader = VoiceReader(files)
        except CheckpointError as lacking:
            log.warning("voice: no session can bring a voice of its own: %s", lacking)
            self._reader = lacking
        timbre = self._timbre if self._timbre is not None else self._own_timbre(checkpoint)
        self._own = None if timbre is None else self._synthesis.open(timbre)
        self._speakers = [_Speaker() for _ in range(slots)]
        log.info("voice: %d slots on %s, %d steps of the flow", slots, device, self._steps)

    def reset(self, slot: int) -> None:
        """Forget all of a slot's speaking and its voice."""
        self._speakers[slot] = _Speaker(base=self._own, noise=self._draws(0))

    def interrupted(self, slot: int) -> None:
        """Give up the slot's turn."""
        self._speakers[slot].quiet()

    def close(self) -> None:
        """Release the slots' memory."""
        self._speakers.clear()

    def step(self, work: Sequence[SlotWork]) -> list[SlotResult]:
        """Make one chunk for each of these slots that has one due; see :class:`duplex_core.workers.BatchedWorker`."""
        results: dict[int, SlotResult] = {}
        for item in work:
            if item.payload is not None:
                done = self._begin(item.slot, item.payload)
                if done is not None:
                    results[item.slot] = done
        self._advance([item.slot for item in work if item.slot not in results])
        for item in work:
            if item.slot not in results:
                results[item.slot] = self._result(item.slot)
        return [results[item.slot] for item in work]

    def _begin(self, slot: int, payload: Any) -> SlotResult | None:
        """Take a request; the result of one that makes no sound."""
        match payload:
            case Voice():
                return self._take_voice(slot, payload)
            case Codes(abandoned=True):
                self._speakers[slot].quiet()
                return SlotResult(slot=slot)
            case Codes():
                return self._take_codes(slot, payload)
            case _:
                return SlotResult(slot=slot, failed=f"the voice takes audio codes, not a {type(payload).__name__}")

    def _take_voice(self, slot: int, voice: Voice) -> SlotResult:
        speaker = _Speaker(base=self._own, noise=self._draws(voice.seed))
        readable = not isinstance(self._reader, CheckpointError)
        if voice.reference and not readable:
            return SlotResult(slot=slot, failed=_CANNOT_READ)
        if not voice.reference and speaker.base is None:
            return SlotResult(slot=slot, failed=_BRING_ONE if readable else _MUTE)
        if voice.reference:
            try:
                speaker.base = self._read(voice.reference)
            except InputError as refused:
                return SlotResult(slot=slot, failed=refused.info)
        self._speakers[slot] = speaker
        return SlotResult(slot=slot)

    def _read(self, reference: bytes) -> StreamState:
        assert isinstance(self._reader, VoiceReader), "looked at before"
        recording = decode_recording(reference)
        return self._synthesis.open(self._reader.read(recording.samples, rate=recording.rate))

    def _take_codes(self, slot: int, codes: Codes) -> SlotResult | None:
        speaker = self._speakers[slot]
        if speaker.base is None:
            return SlotResult(slot=slot, failed=_UNSPOKEN)
        if codes.chat:
            due = chat_chunks(codes.codes)
        else:
            due, speaker.waiting = speaker.waiting.add(codes.codes, closes_turn=codes.ends_turn)
        speaker.codes = codes
        speaker.due.extend(due)
        speaker.stream = speaker.stream or speaker.base
        return None if speaker.due else self._result(slot)

    def _advance(self, slots: Sequence[int]) -> None:
        """Make the next chunk of each of these slots, together."""
        speaking = [self._speakers[slot] for slot in slots if self._speakers[slot].due]
        chunks = []
        for speaker in speaking:
            due = speaker.due.popleft()
            assert speaker.stream is not None, "codes have begun a stream"
            chunks.append(Chunk(state=speaker.stream, codes=due.codes, last=due.last, noise=speaker.noise))
        for speaker, sound in zip(speaking, self._synthesis.advance(chunks) if chunks else (), strict=True):
            speaker.stream = sound.state
            speaker.samples.append(sound.samples)

    def _result(self, slot: int) -> SlotResult:
        speaker = self._speakers[slot]
        codes = speaker.codes
        assert codes is not None, "a slot that takes part in a step has been given codes"
        if speaker.due:
            return SlotResult(slot=slot, done=False)
        samples = torch.cat(speaker.samples) if speaker.samples else torch.zeros(0)
        ends = codes.ends_turn or codes.chat
        samples = torch.cat([torch.zeros(silence_before(len(samples), closes_turn=ends)), samples])
        speaker.samples.clear()
        speaker.codes = None
        if ends:
            speaker.stream = None
        sound = Sound(number=codes.number, pcm=pcm16(samples), ends_turn=ends)
        return SlotResult(slot=slot, outputs=(sound,))

    def _draws(self, seed: int) -> SourceNoise:
        return no_noise if self._noise == "none" else SeededNoise(seed)

    def _own_timbre(self, checkpoint: Checkpoint) -> Timbre | None:
        """The checkpoint's own voice, if it brings a recording and this server can read one."""
        path = find_default_voice(checkpoint.folder)
        if path is None or isinstance(self._reader, CheckpointError):
            return None
        try:
            recording = decode_recording(path.read_bytes())
            return self._reader.read(recording.samples, rate=recording.rate)
        except RecordingError as unread:
            raise CheckpointError(path, str(unread)) from unread

"""The worker of the senses stage: it hears and sees for all sessions, in batched steps.

Owns: a slot's stream of sound, the checkpoint's own voice, and what of a step goes through the encoders together.
Called by: the `torch` runtime, in the stage's worker process (:class:`duplex_core.workers.BatchedWorker`).
Never: lets one slot's bad input touch another's, or decides anything about a conversation.

A unit is one step. A chat takes one step for each 30 s of sound and each picture in it, so that units never wait for all of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import torch

from duplex_core.workers import SlotResult, SlotWork
from model_minicpmo.errors import CheckpointError, InputError, RecordingError
from model_minicpmo.gpu.audio import UNIT, AudioFrontEnd, AudioStream
from model_minicpmo.gpu.checkpoint import Checkpoint, DtypeName, choose_dtype, open_checkpoint
from model_minicpmo.gpu.hub import checkpoint_folder
from model_minicpmo.gpu.mel import SAMPLE_RATE
from model_minicpmo.gpu.recordings import decode_recording, find_default_voice
from model_minicpmo.gpu.senses_work import ChatWork, OpenWork, Piece, UnitWork
from model_minicpmo.gpu.vision import VisionFrontEnd
from model_minicpmo.payloads import Chat, Open, Unit
from model_minicpmo.rules.units import UNIT_MS

log = logging.getLogger(__name__)

Work = OpenWork | UnitWork | ChatWork


class SensesWorker:
    """Hears and sees: `Open`, `Unit` and `Chat` in; `Opened`, `Sensed` and `ChatSensed` for the thinker out.

    Args:
        checkpoint: A checkpoint's folder, or its name on the hub.
        dtype: The type of the weights; `auto` is the published one, and float32 on a CPU.
        positions: How many positions of a context a chat may take; no limit when left out.
    """

    frame_ms: float | None = UNIT_MS
    """A second of sound has to be taken in before the next one comes."""

    def __init__(self, *, checkpoint: str, dtype: DtypeName = "auto", positions: int | None = None) -> None:
        self._name = checkpoint
        self._positions = positions
        self._dtype: DtypeName = dtype
        self._audio: AudioFrontEnd
        self._vision: VisionFrontEnd
        self._voice: torch.Tensor | None = None
        self._streams: list[AudioStream] = []
        self._chats: dict[int, ChatWork] = {}

    def start(self, slots: int, device: str) -> None:
        """Load both encoders, take memory for every slot's cache, and hear the checkpoint's own voice.

        Raises:
            CheckpointError: The checkpoint is not there, does not fit its configuration, or its own voice cannot be read.
        """
        checkpoint = open_checkpoint(checkpoint_folder(self._name))
        dtype = choose_dtype(self._dtype, config=checkpoint.config, device=torch.device(device))
        self._audio = AudioFrontEnd.load(checkpoint, dtype=dtype, device=device)
        self._vision = VisionFrontEnd.load(checkpoint, dtype=dtype, device=device)
        self._voice = self._own_voice(checkpoint)
        self._streams = [self._audio.open() for _ in range(slots)]
        each = self._streams[0].cache.store.nbytes if slots else 0
        log.info("senses: %d slots of %.1f MB each, %s on %s", slots, each / 1e6, dtype, device)
        if torch.device(device).type != "cpu" and slots:
            self._warm_up()

    def reset(self, slot: int) -> None:
        """Forget all of a slot's sound and its chat; its memory stays its own."""
        self._streams[slot] = self._audio.reset(self._streams[slot])
        self._chats.pop(slot, None)

    def interrupted(self, slot: int) -> None:
        """Give up the slot's chat; what was heard stays heard."""
        self._chats.pop(slot, None)

    def close(self) -> None:
        """Release the slots' memory."""
        self._streams.clear()
        self._chats.clear()

    def step(self, work: Sequence[SlotWork]) -> list[SlotResult]:
        """Take in what came for these slots; see :class:`duplex_core.workers.BatchedWorker`.

        Every input is checked and decoded before anything is computed, so that one that is bad fails its own request and leaves
        the slot's stream where it was. What comes to light later, while a slot's own clip is encoded or in its embeddings, fails
        that slot's request, too, and no other's.
        """
        failed: dict[int, SlotResult] = {}
        begun: dict[int, Work] = {}
        pieces: dict[int, Piece] = {}
        for item in work:
            with self._alone(item.slot, failed):
                begun[item.slot] = self._begun(item)
                pieces[item.slot] = begun[item.slot].next_piece()
        self._hear(pieces, failed)
        self._see(pieces)
        results: dict[int, SlotResult] = {}
        for slot, piece in pieces.items():
            if slot not in failed:
                with self._alone(slot, failed):
                    results[slot] = self._result(slot, begun[slot], piece)
        return [*failed.values(), *results.values()]

    @contextlib.contextmanager
    def _alone(self, slot: int, failed: dict[int, SlotResult]) -> Iterator[None]:
        """What is found wrong in here is wrong with this slot's input, and fails its request alone."""
        try:
            yield
        except ValueError as error:
            self._chats.pop(slot, None)
            cause = error.info if isinstance(error, InputError) else str(error)
            failed[slot] = SlotResult(slot=slot, failed=cause)

    def _begun(self, item: SlotWork) -> Work:
        """Give the work on a request: what goes on, or a new one."""
        match item.payload:
            case None:
                return self._chats[item.slot]
            case Unit():
                return UnitWork(item.payload, self._vision)
            case Open():
                return OpenWork(item.payload, own=self._voice)
            case Chat():
                work = ChatWork(
                    item.payload, self._vision, shortest=self._audio.shortest_clip, positions=self._positions
                )
                self._chats[item.slot] = work
                return work
            case other:
                raise ValueError(f"the senses take an opening, a unit or a chat, not a {type(other).__name__}")

    def _hear(self, pieces: dict[int, Piece], failed: dict[int, SlotResult]) -> None:
        """Encode the units of all slots together, and each clip on its own."""
        units = {slot: piece.unit for slot, piece in pieces.items() if piece.unit is not None}
        inputs = [(self._streams[slot], samples) for slot, samples in units.items()]
        for slot, (stream, encoded) in zip(units, self._audio.encode(inputs) if inputs else (), strict=True):
            self._streams[slot] = stream
            pieces[slot].heard = encoded.embeds
        for slot, piece in pieces.items():
            if piece.clip is not None:
                with self._alone(slot, failed):
                    piece.heard = self._audio.encode_clip(piece.clip).embeds

    def _see(self, pieces: dict[int, Piece]) -> None:
        """Encode the views of all pictures of all slots together."""
        views = [strip for piece in pieces.values() for strip in piece.views]
        if not views:
            return
        encoded = self._vision.encode(views).cpu()
        begin = 0
        for piece in pieces.values():
            piece.seen = encoded[begin : begin + len(piece.views)]
            begin += len(piece.views)

    def _result(self, slot: int, work: Work, piece: Piece) -> SlotResult:
        if not piece.finite:
            self._streams[slot] = self._audio.forget(self._streams[slot])
            raise InputError("what was sent becomes embeddings that hold no numbers; the model cannot take it in")
        forward = work.take(piece)
        if forward is None:
            return SlotResult(slot=slot, done=False)
        self._chats.pop(slot, None)
        return SlotResult(slot=slot, outputs=(forward,))

    def _own_voice(self, checkpoint: Checkpoint) -> torch.Tensor | None:
        path = find_default_voice(checkpoint.folder)
        if path is None:
            log.warning("senses: %s has no reference voice in assets; prompts are without one", checkpoint.folder)
            return None
        try:
            recording = decode_recording(path.read_bytes())
        except (OSError, RecordingError) as error:
            raise CheckpointError(path, f"is the checkpoint's own reference voice, but: {error}") from error
        return self._audio.encode_clip(torch.from_numpy(recording.at(SAMPLE_RATE))).embeds.cpu()

    def _warm_up(self) -> None:
        """Have the accelerator's kernels chosen and loaded before somebody waits for them."""
        silence = torch.zeros(UNIT)
        for _ in range(2):  # a stream's first unit has fewer frames than the second
            [(self._streams[0], _)] = self._audio.encode([(self._streams[0], silence)])
        self.reset(0)

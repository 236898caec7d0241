"""One clip over a sounding answer: the real machine, detector and recogniser, in virtual time.

Used by ``run.py`` and by the test that holds its figures. The client sends 20 ms of audio every 20 ms; the answer streams at
the pace at which it sounds, a little ahead. The detector is Silero, the recogniser the cascade's, and what they take is
charged to the virtual clock. There is no network in it, and the answer does not come back through the microphone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
import numpy as np
import pydantic

from benchmarks.overlap.noises import coloured
from benchmarks.overlap.recorded import RATE_HZ, Clip, Kind, Part
from duplex_core.audio import pcm16_bytes
from duplex_core.capabilities import Capabilities
from duplex_core.commands import ResponseCreate
from duplex_core.config import OverlapSettings, ServerVad, SessionConfig
from duplex_core.detection import SpeechFrame
from duplex_core.events import (
    Event,
    OutputAudioDelta,
    OutputBufferCleared,
    OverlapDecision,
    OverlapVerdict,
    TurnEvent,
    TurnEventKind,
)
from duplex_core.machine.io import SpeechFrames
from duplex_core.model import Deadline, Interrupted, ModelInput, ModelOutput, Respond, Speak, UserTranscript, WakeAt
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan, StageReply, StageRequest
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.stages import StageHost
from duplex_core.transcribing import TranscribedSession
from duplex_server.detectors import SileroBatch
from model_cascade.plugin import duplex_register_transcribers

E = TypeVar("E")

CHUNK_MS: Final = 20.0
DETECTOR_MS: Final = 5.0
"""From a frame to its verdict: what the detector's service lets a small batch wait, and the network's own time."""
LEAD_MS: Final = 1200.0
"""Room noise before the clip, while the answer sounds."""
REST_MS: Final = 1600.0
"""Room noise after it, in which everything is decided."""
SLICE_MS: Final = 400.0
AFTER_MS: Final = 800.0
"""How long a scene goes on after the answer was stopped: what comes of the interruption is not the question here."""
TRANSCRIBER: Final = duplex_register_transcribers()[0].stage

Charge = Callable[[StageRequest, float], float]
"""How many milliseconds a piece of work takes: of the request, and of the processor time that it took here."""


class NoSettings(pydantic.BaseModel):
    """The storyteller has none."""


class Storyteller:
    """A model that answers anything with half a minute of sound, 200 ms at a time."""

    PIECE_MS: Final = 200
    PIECES: Final = 150

    def __init__(self, context: SessionContext) -> None:
        """Begin in silence."""
        self._turn: Respond | None = None
        self._given = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case Respond():
                self._turn, self._given = event, 0
            case Interrupted():
                self._turn = None
            case Deadline():
                pass
            case _:
                return ()
        if self._turn is None or self._given == self.PIECES:
            return ()
        self._given += 1
        piece = Speak(fence=self._turn.fence, text="once more ", pcm=bytes(48 * self.PIECE_MS))
        return (piece, WakeAt(key="piece", at_ms=now_ms + self.PIECE_MS * (0 if self._given == 1 else 1)))


def _storyteller(transcribes: bool) -> ModelSpec:
    def create(context: SessionContext) -> Storyteller | TranscribedSession:
        model = Storyteller(context)
        return TranscribedSession(model, stage=TRANSCRIBER.name, rate_hz=RATE_HZ) if transcribes else model

    return ModelSpec(
        id="storyteller",
        summary="talks for half a minute",
        claims=lambda checkpoint: False,
        claims_text="only its name",
        capabilities=lambda deploy: Capabilities(input_rate_hz=RATE_HZ, input_transcription=transcribes),
        session_config=lambda deploy: SessionConfig(model="storyteller", turn_detection=ServerVad()),
        stage_plan=lambda checkpoint, deploy: StagePlan(),
        create_session=create,
        deploy_model=NoSettings,
    )


class Recognising(StageHost):
    """The recogniser, loaded once for all scenes, with the processor time that its last work took."""

    def __init__(self) -> None:
        """Take the stage that the cascade offers to all models."""
        super().__init__(StagePlan(stages=(TRANSCRIBER,)))
        self.took_ms = 0.0

    def work(self, request: StageRequest) -> list[StageReply]:  # type: ignore[override]
        """The replies, made at once and timed."""
        self.worker(request.stage)
        began = time.thread_time()
        replies = list(super().work(request))
        self.took_ms = (time.thread_time() - began) * 1000.0
        return replies


class Hearing:
    """Silero on the audio of one session, frame by frame."""

    def __init__(self, detector: SileroBatch) -> None:
        """Begin at 0 ms."""
        self._detector = detector
        self.reset(0.0)

    def reset(self, start_ms: float) -> None:
        """Forget everything; what follows begins at ``start_ms``."""
        self._state = self._detector.new_state()
        self._at_ms = start_ms
        self._rest = np.zeros(0, np.float32)

    def judge(self, pcm: bytes) -> tuple[SpeechFrame, ...]:
        """Verdicts on the frames that ``pcm`` completes."""
        self._rest = np.concatenate((self._rest, np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0))
        size, found = self._detector.frame_samples, []
        frame_ms = size * 1000 / RATE_HZ
        while self._rest.size >= size:
            frame, self._rest = self._rest[None, :size], self._rest[size:]
            (probability,) = self._detector.probabilities(frame, [self._state])
            found.append(SpeechFrame(start_ms=self._at_ms, duration_ms=frame_ms, probability=probability))
            self._at_ms += frame_ms
        return tuple(found)


class Got(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """An event, when the client got it, and where the newest audio ends on which it rests.

    That is the frame just judged or, after a recognition, what had been judged when it was asked for.
    """

    event: E
    at_ms: float
    rests_on_ms: float


class Scene(ConversationDriver):
    """A conversation whose detector and recogniser are real, and which notes when the client was told what."""

    def __init__(
        self, parts: Parts, *, transcribes: bool, overlap: OverlapSettings, charge: Charge, session_id: str
    ) -> None:
        """Open the session."""
        spec = _storyteller(transcribes)
        config = msgspec.structs.replace(spec.session_config(NoSettings()), overlap=overlap)
        self._got: list[Got[Event]] = []
        self._judged_ms = self._rests_on_ms = 0.0
        self._asked_ms: dict[str, float] = {}

        def charged(request: StageRequest) -> float:
            self._asked_ms[request.request_id] = self._judged_ms
            return charge(request, parts.recognising.took_ms)

        super().__init__(
            spec,
            config=config,
            host=parts.recognising,
            checkpoint=Checkpoint(name=spec.id),
            session_id=session_id,
            charge=charged,
            detector=Hearing(parts.detector),
            ms_to_hear=DETECTOR_MS,
        )
        self.watch = self._note
        self.heed = self._rest_on

    def got(self, kind: type[E]) -> list[Got[E]]:
        """The client's events of one type, in order."""
        return [got for got in self._got if isinstance(got.event, kind)]  # type: ignore[misc]

    def _note(self, event: Event) -> None:
        self._got.append(Got(event=event, at_ms=self.now_ms, rests_on_ms=self._rests_on_ms))

    def _rest_on(self, taken: SpeechFrames | StageReply) -> None:
        """What is told next rests on ``taken``."""
        if isinstance(taken, SpeechFrames):
            newest = taken.frames[-1]
            self._judged_ms = self._rests_on_ms = newest.start_ms + newest.duration_ms
        else:
            self._rests_on_ms = self._asked_ms[taken.request_id]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded once."""

    detector: SileroBatch
    recognising: Recognising

    @classmethod
    def load(cls) -> Parts:
        """Load the networks; the first recognition would be slower than all others, so it is done here."""
        parts = cls(detector=SileroBatch(), recognising=Recognising())
        parts.recognising.worker(TRANSCRIBER.name)
        return parts


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the answer under one clip. Times are in milliseconds from the clip's true onset, unless they say otherwise.

    ``decided_ms`` is when the verdict that counts came: the interruption, else the first; ``late_ms`` the time from the
    decision frame to the last audio of the old answer; ``paused_ms`` how long the answer was held in all.
    """

    file: str
    kind: Kind
    part: Part
    human: bool
    text: str
    snr_db: float | None
    peak_dbfs: float
    yielded: bool
    held_ms: float | None
    decided_ms: float | None
    late_ms: float | None
    paused_ms: float
    verdicts: tuple[str, ...]
    heard: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether it is what should have become of it."""
        return self.yielded is self.kind.yields


def session_audio(clip: Clip, seed: int) -> tuple[bytes, float]:
    """The microphone's audio of the whole scene, and the clip's onset in it in ms.

    The room sounds all the time; when the clip begins differs from scene to scene, so that its onset falls anywhere in the
    client's chunks and the detector's frames.
    """
    rng = np.random.default_rng(seed)
    samples = clip.samples().astype(np.float64)
    lead = round((LEAD_MS + float(rng.uniform(0, 400))) * RATE_HZ / 1000)
    size = lead + samples.size + round(REST_MS * RATE_HZ / 1000)
    room = coloured(rng, size, {"white": 0.0, "pink": 0.5, "brown": 1.0}[clip.bed.colour])
    mixed = room * (10 ** (clip.bed.dbfs / 20) * 32767 / np.sqrt((room**2).mean()))
    mixed[lead : lead + samples.size] += samples
    pcm = np.clip(np.round(mixed), -32768, 32767).astype("<i2").tobytes()
    return pcm, lead * 1000 / RATE_HZ + clip.onset_ms


def play(
    clip: Clip,
    parts: Parts,
    *,
    transcribes: bool = True,
    overlap: OverlapSettings | None = None,
    charge: Charge = lambda request, took_ms: took_ms,
    seed: int = 0,
) -> Outcome:
    """Play one clip over an answer and see what becomes of it."""
    pcm, onset_ms = session_audio(clip, seed)
    scene = Scene(
        parts,
        transcribes=transcribes,
        overlap=overlap or OverlapSettings(),
        charge=charge,
        session_id=f"sess_{clip.file}",
    )
    scene.send(ResponseCreate())
    size = pcm16_bytes(SLICE_MS, RATE_HZ)
    for start in range(0, len(pcm), size):
        scene.stream(pcm[start : start + size], chunk_ms=CHUNK_MS)
        cleared = scene.got(OutputBufferCleared)
        if cleared and scene.now_ms >= cleared[0].at_ms + AFTER_MS:
            break
    return _outcome(clip, scene, onset_ms)


def _outcome(clip: Clip, scene: Scene, onset_ms: float) -> Outcome:
    decisions, cleared = scene.got(OverlapDecision), scene.got(OutputBufferCleared)
    interruptions = [got for got in decisions if got.event.decision is OverlapVerdict.INTERRUPTION]
    counts = next(iter(interruptions or decisions), None)
    late_ms = None
    if cleared:
        stopped = cleared[0].event.response_id
        old = [got.at_ms for got in scene.got(OutputAudioDelta) if got.event.response_id == stopped]
        late_ms = max(cleared[0].at_ms, *old) - cleared[0].rests_on_ms
    turns = scene.got(TurnEvent)
    held = [got.at_ms for got in turns if got.event.kind is TurnEventKind.HELD]
    return Outcome(
        file=clip.file,
        kind=clip.kind,
        part=clip.part,
        human=clip.human,
        text=clip.text,
        snr_db=clip.snr_db,
        peak_dbfs=clip.peak_dbfs,
        yielded=bool(cleared),
        held_ms=held[0] - onset_ms if held else None,
        decided_ms=counts.at_ms - onset_ms if counts else None,
        late_ms=late_ms,
        paused_ms=_paused_ms(turns, cleared[0].at_ms if cleared else scene.now_ms),
        verdicts=tuple(got.event.decision.value for got in decisions),
        heard=tuple(
            output.text for told in scene.told for output in told.outputs if isinstance(output, UserTranscript)
        ),
    )


def _paused_ms(turns: Sequence[Got[TurnEvent]], until_ms: float) -> float:
    """How long the answer was held, up to the time at which it was over."""
    total, since_ms = 0.0, None
    for got in turns:
        if got.event.kind is TurnEventKind.HELD:
            since_ms = got.at_ms
        elif since_ms is not None:
            total, since_ms = total + got.at_ms - since_ms, None
    return total if since_ms is None else total + until_ms - since_ms

"""A model for tests whose one stage does what its text says, when a test lets it.

Texts: ``fail at once``, ``fail after a word``, ``refuse``, ``die``; anything else is said word by word, but for ``hold``, at
which the stage waits until it is cancelled or let go. Used by the tests of the server; the stage's factory is found under
:data:`MODULE`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.items import item_text
from duplex_core.model import (
    EndTurn,
    Failed,
    ModelInput,
    ModelOutput,
    ModelSession,
    Respond,
    Speak,
    Submit,
)
from duplex_core.spec import ModelSpec
from duplex_core.stages import Lane, StageFailed, StageOutput, StagePlan, StageRequest, StageSpec
from duplex_core.transcribing import Recognize, Recognized

MODULE = "tests.support.stages"
RATE_HZ = 16_000


class Gate:
    """What a test and the stage's threads tell each other."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.holding = threading.Semaphore(0)
        self.stopped = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.threads: set[str] = set()
        self.closed = 0
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()


class Worker:
    """The stage's worker."""

    def __init__(self, gate: Gate, broken: bool = False) -> None:
        if broken:
            raise OSError("weights.bin: checksum differs")
        self.gate = gate
        self.thread = threading.current_thread().name
        gate.threads.add(self.thread)

    def run(self, payload: str, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        assert threading.current_thread().name == self.thread, "a worker stays on the thread that made it"
        gate = self.gate
        with gate.lock:
            gate.running += 1
            gate.most = max(gate.most, gate.running)
        try:
            self._do(payload, emit, cancelled)
        finally:
            with gate.lock:
                gate.running -= 1
            gate.stopped.release()

    def _do(self, payload: str, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        self.gate.begun.release()
        if payload == "die":
            raise SystemExit(3)
        if payload == "refuse":
            raise refuse(ErrorCode.ENGINE_ERROR, "no words today") from ConnectionError(
                "http://words cannot be reached"
            )
        if payload == "fail at once":
            raise ValueError("no such word")
        for index, word in enumerate(payload.split()):
            if payload == "fail after a word" and index:
                raise ValueError("no such word")
            if word == "hold":
                self._hold(emit, cancelled)
            else:
                emit(word + " ")

    def _hold(self, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        self.gate.holding.release()
        while not cancelled() and not self.gate.let_go.is_set():
            time.sleep(0.002)
        emit("late ")

    def close(self) -> None:
        assert threading.current_thread().name == self.thread
        self.gate.closed += 1


class Clock:
    """A transcriber's worker that hears how long somebody spoke."""

    def run(self, payload: Recognize, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        emit(Recognized(text=f"{len(payload.pcm) / 2 / payload.rate_hz * 1000:.0f} ms at {payload.rate_hz} Hz"))

    def close(self) -> None:
        pass


class Session:
    """Says what its stage says, with 20 ms of sound for each word."""

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case Respond():
                self.asked += 1
                return (Submit(request=request(item_text(event.history[-1]), f"r{self.asked}", event.fence)),)
            case StageOutput(final=True):
                return (EndTurn(fence=event.fence),)
            case StageOutput():
                return (Speak(fence=event.fence, text=event.payload, pcm=bytes(640)),)
            case StageFailed():
                return (Failed(fence=event.fence, error=event.error),)
            case _:
                return ()


def request(text: str, request_id: str, fence: Any, lane: Lane = Lane.OUTPUT) -> StageRequest:
    return StageRequest(stage="work", request_id=request_id, fence=fence, lane=lane, payload=text)


def spec_of(gate: Gate, concurrency: int = 1, **options: Any) -> StageSpec:
    return StageSpec(
        name="work", factory=f"{MODULE}:Worker", options={"gate": gate, **options}, concurrency=concurrency
    )


@dataclasses.dataclass(frozen=True)
class Gated:
    """The model and the gate of its stage."""

    spec: ModelSpec
    gate: Gate

    @property
    def begun(self) -> threading.Semaphore:
        return self.gate.begun

    @property
    def stopped(self) -> threading.Semaphore:
        return self.gate.stopped


def gated_model(create: Callable[[], ModelSession] = Session, **options: Any) -> Gated:
    gate = Gate()
    spec = ModelSpec(
        id="gated",
        summary="does what its text says",
        claims=lambda checkpoint: False,
        claims_text="only the name gated",
        capabilities=lambda deploy: Capabilities(input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ, chat=True),
        session_config=lambda deploy: SessionConfig(model="gated", turn_detection=None),
        stage_plan=lambda checkpoint, deploy: StagePlan(stages=(spec_of(gate, **options),)),
        create_session=lambda context: create(),
    )
    return Gated(spec, gate)

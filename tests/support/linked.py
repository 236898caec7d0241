"""A runtime whose stages a test plays itself, and a model of two linked stages on it.

Owns no expectation. The thinker's words are the answer's text; what it forwards is work for the talker, whose bytes are its
sound. The host, the links, the manager and the socket around it are the server's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, error, refuse
from duplex_core.hookspecs import hookimpl
from duplex_core.items import item_text
from duplex_core.model import EndTurn, Failed, ModelInput, ModelOutput, ModelSession, Respond, Speak, Submit
from duplex_core.spec import ModelSpec
from duplex_core.stages import (
    Forward,
    Lane,
    LinkKind,
    Resources,
    StageFailed,
    StageLink,
    StageLost,
    StageMetrics,
    StageNews,
    StageOutput,
    StagePlan,
    StageRequest,
    StageRuntimeSpec,
    StageSpec,
)

THINKER, TALKER = "thinker", "talker"
RATE_HZ = 24_000


class PlayedStage:
    """A running stage that does what the test says."""

    def __init__(self, spec: StageSpec, tell: Callable[[StageNews], None]) -> None:
        self.name = spec.name
        self.seats = None if spec.resources.sessions is None else spec.resources.sessions * spec.replicas
        self.up = True
        self.placed: set[str] = set()
        self.released: list[str] = []
        self.open: dict[tuple[str, str], StageRequest] = {}
        self.aborted: list[StageRequest] = []
        self.closed = False
        self._tell = tell
        self._came: asyncio.Queue[StageRequest] = asyncio.Queue()

    # -- what the host asks -------------------------------------------------------------------------------------------

    def place(self, session_id: str) -> None:
        if session_id in self.placed:
            return
        if not self.up:
            raise refuse(ErrorCode.ENGINE_ERROR, "no replica is up")
        if self.seats is not None and len(self.placed) >= self.seats:
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, f"all {self.seats} seats are taken")
        self.placed.add(session_id)

    def release(self, session_id: str) -> None:
        self.abort(session_id)
        self.placed.discard(session_id)
        self.released.append(session_id)

    def submit(self, request: StageRequest) -> None:
        self.open[request.fence.session_id, request.request_id] = request
        self._came.put_nowait(request)

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        for key in [key for key in self.open if key[0] == session_id and request_id in {None, key[1]}]:
            self.aborted.append(self.open.pop(key))

    def healthy(self) -> bool:
        return self.up

    async def aclose(self) -> None:
        self.closed = True

    # -- what the test does -------------------------------------------------------------------------------------------

    async def asked(self) -> StageRequest:
        """The next request that comes."""
        async with asyncio.timeout(20):
            return await self._came.get()

    def say(
        self,
        request: StageRequest,
        payload: Any = None,
        *,
        forward: Any = None,
        kind: LinkKind = LinkKind.TOKENS,
        final: bool = False,
        metrics: tuple[StageMetrics, ...] = (),
    ) -> None:
        """Answer ``request`` with a piece, or with something for the talker."""
        if final:
            del self.open[request.fence.session_id, request.request_id]
        along = None if forward is None else Forward(kind=kind, payload=forward)
        self._tell(request.output(payload, final=final, forward=along, metrics=metrics))

    def fail(self, request: StageRequest, message: str = "no words", *, fatal: bool = False) -> None:
        """End ``request`` without an answer."""
        del self.open[request.fence.session_id, request.request_id]
        info = error(ErrorCode.ENGINE_ERROR, message)
        self._tell(request.failed(info, fatal=fatal))

    def lose(self, session_id: str) -> None:
        """Lose the replica that had a seat for this session."""
        for key in [key for key in self.open if key[0] == session_id]:
            del self.open[key]
        info = error(ErrorCode.ENGINE_ERROR, f"stage {self.name} lost the session; open another")
        self._tell(StageLost(stage=self.name, session_id=session_id, error=info))


class Played:
    """The runtime; a plugin too, which registers it."""

    def __init__(self) -> None:
        self.stages: dict[str, PlayedStage] = {}

    @property
    def thinker(self) -> PlayedStage:
        return self.stages[THINKER]

    @property
    def talker(self) -> PlayedStage:
        return self.stages[TALKER]

    async def start(self, spec: StageSpec, tell: Callable[[StageNews], None]) -> PlayedStage:
        stage = self.stages[spec.name] = PlayedStage(spec, tell)
        return stage

    @hookimpl
    def duplex_register_stage_runtimes(self) -> list[StageRuntimeSpec]:
        return [StageRuntimeSpec(id="played", summary="does what a test says", start=self.start)]


class LinkedSession:
    """The model's side: words from the thinker, sound from the talker."""

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case Respond():
                self.asked += 1
                request = StageRequest(
                    stage=THINKER,
                    request_id=f"r{self.asked}",
                    fence=event.fence,
                    lane=Lane.OUTPUT,
                    payload=item_text(event.history[-1]),
                )
                return (Submit(request=request),)
            case StageOutput():
                said: list[ModelOutput] = []
                if isinstance(event.payload, bytes):
                    said.append(Speak(fence=event.fence, pcm=event.payload))
                elif event.payload is not None:
                    said.append(Speak(fence=event.fence, text=event.payload))
                return (*said, EndTurn(fence=event.fence)) if event.final else said
            case StageFailed():
                return (Failed(fence=event.fence, error=event.error),)
            case _:
                return ()


@dataclasses.dataclass(frozen=True)
class Linked:
    """The model and the runtime that its stages are on."""

    spec: ModelSpec
    runtime: Played


def linked_model(
    *,
    sessions: int | None = None,
    talker_sessions: int | None = None,
    replicas: int = 1,
    talkers: int = 1,
    create: Callable[[], ModelSession] = LinkedSession,
) -> Linked:
    """The model, with this many seats at each replica of its stages; ``None`` is no limit. Each talker gets what is forwarded."""
    of_talker = sessions if talker_sessions is None else talker_sessions

    def stage(name: str, seats: int | None, *inputs: StageLink) -> StageSpec:
        return StageSpec(
            name=name,
            factory="none:none",
            runtime="played",
            replicas=replicas,
            inputs=inputs,
            resources=Resources(sessions=seats),
        )

    link = StageLink(source=THINKER, kind=LinkKind.TOKENS)
    names = [TALKER, *(f"{TALKER} {number}" for number in range(2, talkers + 1))]
    plan = StagePlan(stages=(stage(THINKER, sessions), *(stage(name, of_talker, link) for name in names)))
    spec = ModelSpec(
        id="linked",
        summary="thinks, then talks",
        claims=lambda checkpoint: False,
        claims_text="only the name linked",
        capabilities=lambda deploy: Capabilities(output_rate_hz=RATE_HZ, chat=True),
        session_config=lambda deploy: SessionConfig(model="linked", turn_detection=None),
        stage_plan=lambda checkpoint, deploy: plan,
        create_session=lambda context: create(),
    )
    return Linked(spec, Played())

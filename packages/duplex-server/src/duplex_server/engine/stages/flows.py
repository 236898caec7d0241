"""Flows: what becomes of one request of a session's on its way through linked stages.

Owns which pieces of work belong to a request, when all of it has ended, and the times of each piece. Used by
:class:`duplex_server.engine.stages.host.StageHost` alone, which performs what is returned here, in order. Pure: it holds no
stage, reads no clock and looks inside no payload. It must never give a session anything of a request that has ended, failed
or been aborted, nor forget a piece of work before its stage has let go of it.

A request is the root of its flow. Each :class:`~duplex_core.stages.Forward` of a stage becomes a part: a request to the next
stage, under the root's fence, lane and purpose. The flow ends when the root and every part have ended, or when one of them
fails; what the session sees of it bears the root's stage and id.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from duplex_core.errors import ErrorCode, error
from duplex_core.stage_metrics import merged, moved
from duplex_core.stages import (
    Forward,
    StageFailed,
    StageMetrics,
    StageOutput,
    StagePlan,
    StageReply,
    StageRequest,
)


class Give(msgspec.Struct, frozen=True, kw_only=True):
    """Submit this part to its stage."""

    request: StageRequest


class Withdraw(msgspec.Struct, frozen=True, kw_only=True):
    """Abort this piece of work, of which nothing is wanted any more; :meth:`Flows.withdrawn` says that it is done."""

    request: StageRequest


class Deliver(msgspec.Struct, frozen=True, kw_only=True):
    """Hand this to who submitted the root."""

    reply: StageReply


FlowAction = Give | Withdraw | Deliver

Key = tuple[str, str, str]
"""Session, stage, request id."""


class _Part:
    """One piece of work that a stage has, the root included."""

    __slots__ = ("begun_ms", "first_ms", "flow", "forwarded", "request")

    def __init__(self, flow: _Flow, request: StageRequest, begun_ms: float) -> None:
        self.flow = flow
        self.request = request
        self.begun_ms = begun_ms
        self.first_ms: float | None = None
        self.forwarded = 0

    def spent(self, told: tuple[StageMetrics, ...], now_ms: float, *, whole: bool) -> tuple[StageMetrics, ...]:
        """What was done for it, counted from the root's submission: as the stage told it, else by the clock."""
        if not told:
            first_ms = None if self.first_ms is None else self.first_ms - self.begun_ms
            total_ms = now_ms - self.begun_ms
            told = (StageMetrics(stage=self.request.stage, first_ms=first_ms, total_ms=total_ms, whole=whole),)
        return moved(told, self.begun_ms - self.flow.begun_ms)


class _Flow:
    """One root and the work that is open for it; once it is ``over``, that is what stages have not let go of yet."""

    __slots__ = ("begun_ms", "open", "over", "root", "spent")

    def __init__(self, root: StageRequest, begun_ms: float) -> None:
        self.root = root
        self.begun_ms = begun_ms
        self.open: dict[Key, _Part] = {}
        self.spent: list[StageMetrics] = []
        self.over = False

    def known(self, now_ms: float, *, whole: bool = False) -> tuple[StageMetrics, ...]:
        """All that was done so far, one entry a stage."""
        running = (each for part in self.open.values() for each in part.spent((), now_ms, whole=whole))
        return merged([*self.spent, *running])


class Flows:
    """All flows of one host."""

    def __init__(self, plan: StagePlan) -> None:
        """Begin with none; ``plan`` says what is linked to what."""
        self._plan = plan
        self._parts: dict[Key, _Part] = {}
        self._sessions: dict[str, dict[Key, _Flow]] = {}

    def __len__(self) -> int:
        """How many requests are open, or have work that no stage has let go of."""
        return sum(map(len, self._sessions.values()))

    def holds(self, request: StageRequest) -> bool:
        """Whether this piece of work is wanted still."""
        part = self._parts.get(_key(request))
        return part is not None and not part.flow.over

    def begin(self, root: StageRequest, now_ms: float) -> None:
        """A session submits ``root``, which its stage is about to get.

        Raises:
            ValueError: a request of this session with this id is open there.
        """
        key = _key(root)
        if key in self._parts:
            session_id = root.fence.session_id
            raise ValueError(f"stage {root.stage}: request {root.request_id} of {session_id} is open already")
        flow = _Flow(root, now_ms)
        self._sessions.setdefault(root.fence.session_id, {})[key] = flow
        self._add(flow, root, now_ms)

    def take(self, reply: StageReply, now_ms: float) -> list[FlowAction]:
        """A stage has answered; what follows from it. Nothing does for work that is not wanted any more."""
        part = self._parts.get(_key(reply))
        if part is None:
            return []
        if part.flow.over:
            if isinstance(reply, StageFailed) or reply.final:
                self._forget(part)
            return []
        if isinstance(reply, StageFailed):
            return self._failed(part, reply, now_ms)
        if part.first_ms is None and (reply.payload is not None or reply.forward is not None):
            part.first_ms = now_ms
        actions: list[FlowAction] = []
        if reply.forward is not None:
            actions += self._forward(part, reply.forward, now_ms)
        return actions + self._output(part, reply, now_ms)

    def abort(self, session_id: str, stage: str, request_id: str) -> list[Withdraw]:
        """End a root and all of its parts. Nothing happens when it has ended already and every stage has let go of it."""
        flow = self._flow(session_id, stage, request_id)
        return self._end(flow) if flow is not None else []

    def refused(self, root: StageRequest) -> None:
        """The stage did not take ``root``: it is as if it had never been."""
        for each in self.abort(root.fence.session_id, root.stage, root.request_id):
            self.withdrawn(each.request)

    def drop(self, session_id: str) -> None:
        """Forget everything of a session's, of which its stages are told in another way."""
        for flow in list(self._sessions.get(session_id, {}).values()):
            for each in self._end(flow):
                self.withdrawn(each.request)

    def withdrawn(self, request: StageRequest) -> None:
        """A stage has let go of a piece of work that was withdrawn."""
        part = self._parts.get(_key(request))
        if part is not None and part.flow.over:
            self._forget(part)

    def known(self, session_id: str, stage: str, request_id: str, now_ms: float) -> tuple[StageMetrics, ...]:
        """What has been done so far for a root that is open, one entry a stage; nothing for another."""
        flow = self._flow(session_id, stage, request_id)
        return flow.known(now_ms) if flow is not None and not flow.over else ()

    def _flow(self, session_id: str, stage: str, request_id: str) -> _Flow | None:
        return self._sessions.get(session_id, {}).get((session_id, stage, request_id))

    def _add(self, flow: _Flow, request: StageRequest, now_ms: float) -> None:
        part = _Part(flow, request, now_ms)
        flow.open[_key(request)] = self._parts[_key(request)] = part

    def _forward(self, part: _Part, forward: Forward, now_ms: float) -> Iterator[Give]:
        """The parts that one forward makes, one for each stage that is linked; none when it has no payload."""
        if forward.payload is None:
            return
        source, root = part.request, part.flow.root
        for stage in self._plan.after(source.stage, forward.kind):
            part.forwarded += 1
            request = msgspec.structs.replace(
                root,
                stage=stage,
                request_id=f"{source.request_id}/{source.stage}.{part.forwarded}",
                payload=forward.payload,
            )
            self._add(part.flow, request, now_ms)
            yield Give(request=request)

    def _output(self, part: _Part, reply: StageOutput, now_ms: float) -> list[FlowAction]:
        flow, root = part.flow, part.flow.root
        if reply.final:
            flow.spent += part.spent(reply.metrics, now_ms, whole=True)
            self._forget(part)
        over = not flow.open
        if reply.payload is None and not over:
            return []
        made_by = "" if part.request is root else part.request.stage
        told = msgspec.structs.replace(
            reply,
            stage=root.stage,
            request_id=root.request_id,
            fence=root.fence,
            lane=root.lane,
            final=over,
            made_by=made_by,
            forward=None,
            metrics=merged(flow.spent) if over else (),
        )
        if over:
            self._end(flow)
        return [Deliver(reply=told)]

    def _failed(self, part: _Part, reply: StageFailed, now_ms: float) -> list[FlowAction]:
        """One piece has failed: so has the whole, and the rest of it is withdrawn before that is told."""
        flow, root = part.flow, part.flow.root
        flow.spent += part.spent(reply.metrics, now_ms, whole=False)
        self._forget(part)
        told = msgspec.structs.replace(
            reply,
            stage=root.stage,
            request_id=root.request_id,
            fence=root.fence,
            lane=root.lane,
            metrics=flow.known(now_ms),
        )
        return [*self._end(flow), Deliver(reply=told)]

    def _end(self, flow: _Flow) -> list[Withdraw]:
        """The flow is over: nothing of it is wanted any more."""
        flow.over = True
        self._settle(flow)
        return [Withdraw(request=part.request) for part in flow.open.values()]

    def _forget(self, part: _Part) -> None:
        """A stage has nothing of this piece any more."""
        key = _key(part.request)
        del self._parts[key], part.flow.open[key]
        self._settle(part.flow)

    def _settle(self, flow: _Flow) -> None:
        """Forget a flow of which nothing is left."""
        session_id = flow.root.fence.session_id
        flows = self._sessions.get(session_id, {})
        if flow.over and not flow.open and flows.pop(_key(flow.root), None) is not None and not flows:
            del self._sessions[session_id]


def down(request: StageRequest) -> StageFailed:
    """The reply to work for a stage that is down."""
    return request.failed(error(ErrorCode.ENGINE_ERROR, f"stage {request.stage} is down; try again later"), fatal=True)


def _key(work: StageRequest | StageReply) -> Key:
    return (work.fence.session_id, work.stage, work.request_id)

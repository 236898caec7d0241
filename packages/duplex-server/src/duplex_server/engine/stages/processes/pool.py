"""A running stage whose workers are processes: its replicas, who sits on which, and the requests that are open.

Owns the requests between :meth:`Pool.submit` and their end, so that each is answered once or aborted, whatever becomes of the
process that works on it. Made by :func:`duplex_server.engine.stages.processes.runtime`; called by the host of the stages. Must
never block the loop, look inside a payload, or let a late output of what was aborted, released or lost get out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import assert_never

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.stages import (
    Forward,
    Purpose,
    StageLost,
    StageMetrics,
    StageNews,
    StageRequest,
    StageSpec,
    StageStats,
)
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes import messages as say
from duplex_server.engine.stages.processes.driver import Seats
from duplex_server.engine.stages.processes.framing import Buffer, FrameError
from duplex_server.engine.stages.processes.payloads import PayloadError, Payloads
from duplex_server.engine.stages.processes.replica import Replica, State
from duplex_server.engine.stages.processes.requests import Requests
from duplex_server.engine.stages.processes.seats import Seating
from duplex_server.engine.stages.processes.settings import ProcessSettings
from duplex_server.engine.stages.starting import accelerators, start_together

log = logging.getLogger(__name__)


class Pool:
    """A running stage (:class:`duplex_core.stages.RunningStage`) on one or more worker processes."""

    def __init__(
        self, spec: StageSpec, news: Callable[[StageNews], None], *, driver: str, settings: ProcessSettings
    ) -> None:
        """Prepare the replicas of ``spec``; :meth:`start` starts them.

        Raises:
            StageLoadError: the spec lacks something that a stage on processes needs.
        """
        _check_options(spec)
        seats = _seats(spec)
        self._spec = spec
        self._news = news
        self._payloads = Payloads(spec)
        self._loop = asyncio.get_running_loop()
        self._seating = Seating(spec.name, seats, line=settings.line)
        self._replicas = [
            Replica(index, spec, driver=driver, seats=seats, settings=settings, owner=self)
            for index in range(spec.replicas)
        ]
        self._requests = Requests(spec.name)
        self._lost: set[str] = set()
        self._transfers: list[list[float]] = [[] for _ in self._replicas]
        self._gauges: list[set[str]] = [set() for _ in self._replicas]
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that there are now."""
        return [pid for replica in self._replicas if (pid := replica.pid) is not None]

    async def start(self) -> None:
        """Start all replicas, and wait for them: those that share an accelerator one after the other.

        Raises:
            StageLoadError: one did not become ready. What runs is for :meth:`aclose`.
        """
        starts = [(accelerators((replica.device,)), replica.start) for replica in self._replicas]
        await start_together(starts, StageLoadError)

    def place(self, session_id: str) -> None:
        """Give a session a seat; see :class:`~duplex_core.stages.StagePort`."""
        if self._seating.where(session_id) is not None:
            return
        if self._closed:
            raise DuplexError(_error(self._spec.name, "is closed"))
        replica = self._seating.place(session_id)
        self._lost.discard(session_id)
        self._replicas[replica].send(say.Place(session_id))
        self._tell_load()

    def release(self, session_id: str) -> None:
        """Forget a session or a chat request, and free its seat for whoever waits."""
        self._requests.forget(session_id)
        self._lost.discard(session_id)
        replica = self._seating.leave(session_id)
        if replica is not None:
            self._replicas[replica].send(say.Release(session_id))
        self._move_line()
        self._tell_load()

    def submit(self, request: StageRequest) -> None:
        """Send ``request`` to the replica where its session sits, or have its chat wait for a seat.

        Raises:
            ValueError: a request of this session with this id is open.
            RuntimeError: the stage is closed.
        """
        if self._closed:
            raise RuntimeError(f"stage {self._spec.name} is closed")
        who = request.fence.session_id
        key = self._requests.add(request, time.monotonic())
        replica = self._seating.where(who)
        if replica is not None:
            self._send(key, replica)
        elif refusal := self._unseated(request):
            self._loop.call_soon(self._fail, key, refusal, True)

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's."""
        keys = self._requests.of(session_id, request_id)
        for key in keys:
            self._requests.close(key)
        replica = self._seating.where(session_id)
        if keys and replica is not None:
            self._replicas[replica].send(say.Abort(session_id, request_id))

    def healthy(self) -> bool:
        """Whether a replica is up."""
        return not self._closed and self._seating.up > 0

    async def aclose(self) -> None:
        """End all processes. Requests still open get no reply."""
        self._closed = True
        self._requests = Requests(self._spec.name)
        async with asyncio.TaskGroup() as closing:
            for replica in self._replicas:
                closing.create_task(replica.aclose())

    # -- what replicas tell ----------------------------------------------------------------------------------------

    def replica_up(self, index: int) -> None:
        """A replica takes work."""
        self._seating.replica_up(index)
        self._move_line()
        self._tell_load()

    def replica_down(self, index: int) -> None:
        """A replica is lost, with all that it held."""
        lost = self._seating.replica_down(index)
        info = _error(self._spec.name, "failed; the server's log says why")
        self._lost.update(lost)
        for who, purpose in lost.items():
            if purpose is Purpose.SESSION:
                self._requests.forget(who)
            else:
                for key in self._requests.of(who):
                    self._fail(key, info, True)
        if self._closed:
            return
        self._news(StageStats(stage=self._spec.name, replica=index, gauges=dict.fromkeys(self._gauges[index], 0.0)))
        self._tell_load(deaths=1)
        for who, purpose in lost.items():
            if purpose is Purpose.SESSION:
                self._news(StageLost(stage=self._spec.name, session_id=who, error=info))

    def replica_failed(self, index: int) -> None:
        """A replica could not be started again. Who waits for one waits no longer when there is no other."""
        self._tell_load(failed_starts=1)
        if any(replica.state in (State.UP, State.STARTING) for replica in self._replicas):
            return
        info = _error(self._spec.name, "is down; the server's log says why")
        for who in self._seating.clear_line():
            for key in self._requests.of(who):
                self._fail(key, info, True)

    def replica_says(self, index: int, message: say.FromWorker, buffers: list[bytearray]) -> None:
        """A message from the process of a replica that is up."""
        if isinstance(message, say.Output):
            self._put_out(index, message, buffers)
        elif isinstance(message, say.Failed):
            self._fail(message.key, message.error, False, message.metrics, worker=index)
        elif isinstance(message, say.Measured):
            transfers, self._transfers[index] = self._transfers[index], []
            samples = {**message.samples, "transfer_out": transfers}
            self._gauges[index].update(message.gauges)
            self._news(
                StageStats(
                    stage=self._spec.name,
                    replica=index,
                    gauges=message.gauges,
                    counts=message.counts,
                    samples=samples,
                )
            )
        elif isinstance(message, say.Ready | say.Pong | say.Dead):
            raise TypeError(f"{message} is the replica's own")
        else:
            assert_never(message)

    def _put_out(self, index: int, message: say.Output, buffers: list[bytearray]) -> None:
        answered = self._requests.get(message.key)
        if answered is None:
            return
        request = answered.request
        try:
            payload = self._payloads.decode(message.payload, buffers)
            passed = None if message.kind is None else self._payloads.decode(message.forward, buffers)
        except PayloadError:
            log.exception("stage %s put out what is not of its payloads type %s", self._spec.name, self._spec.payloads)
            self._fail(message.key, _error(self._spec.name, "failed; the server's log says why"), False, worker=index)
            return
        self._transfers[index].append(max(0.0, time.monotonic() - message.at))
        if message.final:
            self._requests.close(message.key)
        self._news(
            request.output(
                payload,
                final=message.final,
                forward=None if message.kind is None else Forward(kind=message.kind, payload=passed),
                metrics=message.metrics,
            )
        )

    # -- requests --------------------------------------------------------------------------------------------------

    def _unseated(self, request: StageRequest) -> ErrorInfo | None:
        """Have a chat wait for a seat, or give it one; why not, if that cannot be."""
        who = request.fence.session_id
        if who in self._lost:
            return _error(self._spec.name, "has lost what it held for this request")
        if request.purpose is Purpose.SESSION:
            log.error("stage %s: session %s has no seat and submits %s", self._spec.name, who, request.request_id)
            return _error(self._spec.name, "has no seat for this session")
        if self._seating.waits(who):
            return None
        try:
            replica = self._seating.join(who)
        except DuplexError as exc:
            return exc.info
        if replica is not None:
            self._seat_chat(who, replica)
        self._tell_load()
        return None

    def _move_line(self) -> None:
        if not self._closed:
            for who, replica in self._seating.seated():
                self._seat_chat(who, replica)

    def _seat_chat(self, who: str, replica: int) -> None:
        self._replicas[replica].send(say.Place(who))
        for key in self._requests.of(who):
            self._send(key, replica)

    def _send(self, key: int, replica: int) -> None:
        """Encode a request and send it to the replica on which it sits."""
        waiting = self._requests.get(key)
        assert waiting is not None
        request = waiting.request
        buffers: list[Buffer] = []
        try:
            message = say.Submit(
                key=key,
                at=waiting.at,
                request_id=request.request_id,
                fence=request.fence,
                lane=request.lane,
                purpose=request.purpose,
                payload=self._payloads.encode(request.payload, buffers),
            )
            self._replicas[replica].send(message, buffers)
        except (PayloadError, FrameError):
            log.exception("stage %s: request %s cannot be sent", self._spec.name, request.request_id)
            self._loop.call_soon(self._fail, key, _error(self._spec.name, "failed; the server's log says why"), False)

    def _fail(
        self,
        key: int,
        info: ErrorInfo,
        fatal: bool,
        metrics: tuple[StageMetrics, ...] = (),
        *,
        worker: int | None = None,
    ) -> None:
        """End a request; nothing more of it is wanted of the ``worker`` that may be in the middle of it."""
        closed = self._requests.close(key)
        if closed is None:
            return
        request = closed.request
        if worker is not None:
            self._replicas[worker].send(say.Abort(request.fence.session_id, request.request_id))
        self._news(request.failed(info, fatal=fatal, metrics=metrics))

    def _tell_load(self, **counts: int) -> None:
        if self._closed:
            return
        seating = self._seating
        gauges = {
            "replicas_up": seating.up,
            "sessions": seating.taken(Purpose.SESSION),
            "chats": seating.taken(Purpose.CHAT),
            "chats_waiting": seating.waiting,
        }
        self._news(StageStats(stage=self._spec.name, gauges=gauges, counts=counts))


def check(spec: StageSpec) -> None:
    """Refuse a spec that lacks something that a stage on processes needs.

    Raises:
        StageLoadError: it does.
    """
    _check_options(spec)
    _seats(spec)
    Payloads(spec)


def _check_options(spec: StageSpec) -> None:
    try:
        msgspec.msgpack.encode(spec.options)
    except (TypeError, ValueError, OverflowError) as exc:
        raise StageLoadError(
            f"its options go to another process and must be plain values (numbers, text, lists, mappings): {exc}"
        ) from exc


def _seats(spec: StageSpec) -> Seats:
    resources = spec.resources
    if resources.sessions is None:
        raise StageLoadError(
            "the plan does not say how many sessions a replica of it holds, for which it is made ready when it starts: "
            "set resources.sessions"
        )
    seats = Seats(sessions=resources.sessions, chats=resources.chats)
    if min(seats.sessions, seats.chats) < 0 or not seats.total:
        raise StageLoadError(f"a replica of it cannot hold {seats.sessions} sessions and {seats.chats} chat requests")
    return seats


def _error(stage: str, what: str) -> ErrorInfo:
    return error(ErrorCode.ENGINE_ERROR, f"the model's stage {stage} {what}")

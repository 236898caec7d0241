"""The ``thread`` runtime: a stage's workers on threads of the server's own process.

Owns the threads, the queue before them and the fairness between sessions. Registered by :mod:`duplex_server.builtins`;
started and called by :mod:`duplex_server.engine.stages.host`. Everything but a worker's own code runs on the event loop,
so nothing here needs a lock. Must never block the loop, run a factory or a worker on it, or let one request's exception
touch another request.

Each of the stage's ``concurrency`` threads has a worker of its own. A session's requests run one at a time, in the order
submitted; sessions take turns, so that one session's long queue delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.stages import StageNews, StageRequest, StageSpec, StageWorker
from duplex_server.engine.stages.loading import StageLoadError, describe, make

log = logging.getLogger(__name__)

Reply = Callable[[StageNews], None]

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for a worker that is in the middle of a request."""

__all__ = ["StageLoadError", "ThreadStage", "check", "make_worker", "start"]


class _Job:
    """One request and how far it is. Compared by identity: an id that is used again is another job."""

    __slots__ = ("cancelled", "request")

    def __init__(self, request: StageRequest) -> None:
        self.request = request
        self.cancelled = threading.Event()


class _Seat:
    """One thread and the worker that was made on it and never leaves it."""

    __slots__ = ("job", "thread", "worker")

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self.worker: StageWorker | None = None
        self.job: _Job | None = None


def make_worker(spec: StageSpec) -> StageWorker:
    """Resolve a stage's factory and call it with the stage's options. Runs on the worker's thread.

    Raises:
        StageLoadError: the import path is malformed or names nothing.
    """
    return cast("StageWorker", make(spec, StageWorker))


def check(stage: StageSpec) -> None:
    """Refuse a stage that cannot run on threads.

    Raises:
        StageLoadError: it wants replicas.
    """
    if stage.replicas != 1:
        raise StageLoadError("the thread runtime has one replica; raise concurrency instead")


async def start(stage: StageSpec, reply: Reply) -> ThreadStage:
    """Start ``stage``: make its workers, all on their own threads, and return when each is ready.

    Raises:
        StageLoadError: a worker could not be made; the threads are gone again.
    """
    check(stage)
    running = ThreadStage(stage, reply)
    try:
        await running.load()
    except BaseException:
        await running.aclose()
        raise
    return running


class _Seatless:
    """Whose workers keep nothing of a session between two requests: there is a seat for everybody."""

    def place(self, session_id: str) -> None:
        """Nothing to do."""

    def release(self, session_id: str) -> None:
        """Forget what is left of a session or a chat request."""
        self.abort(session_id)

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's."""
        raise NotImplementedError


class ThreadStage(_Seatless):
    """A running stage (:class:`duplex_core.stages.RunningStage`) whose workers are threads."""

    def __init__(self, spec: StageSpec, reply: Reply) -> None:
        """Prepare the threads of ``spec``; :meth:`load` makes their workers."""
        self._spec = spec
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._seats = [_Seat(f"stage-{spec.name}-{index}") for index in range(max(1, spec.concurrency))]
        self._idle: deque[_Seat] = deque()
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._running: set[str] = set()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._dead: str | None = None
        self._closed = False

    async def load(self) -> None:
        """Make every seat's worker; loading runs on the threads.

        Raises:
            StageLoadError: a factory raised.
        """
        for seat in self._seats:
            future = self._loop.run_in_executor(seat.thread, _fill, seat, self._spec)
            try:
                await future
            except StageLoadError:
                raise
            except Exception as exc:
                raise StageLoadError(describe(exc)) from exc
            self._idle.append(seat)

    def healthy(self) -> bool:
        """Whether the stage takes requests."""
        return not self._closed and self._dead is None

    def submit(self, request: StageRequest) -> None:
        """Queue ``request``; it is started now when a worker is free.

        Raises:
            ValueError: a request of this session with this id is open.
            RuntimeError: the stage is closed.
        """
        if self._closed:
            raise RuntimeError(f"stage {self._spec.name} is closed")
        session_id = request.fence.session_id
        key = (session_id, request.request_id)
        if key in self._jobs:
            raise ValueError(f"stage {self._spec.name}: request {request.request_id} of {session_id} is open already")
        job = _Job(request)
        self._jobs[key] = job
        if self._dead is not None:
            self._loop.call_soon(self._fail, job, self._error("died"))
            return
        self._queues.setdefault(session_id, deque()).append(job)
        self._dispatch()

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's: queued ones never start, running ones are told; no output follows."""
        keys = [(session_id, request_id)] if request_id is not None else [k for k in self._jobs if k[0] == session_id]
        for key in keys:
            job = self._jobs.pop(key, None)
            if job is None:
                continue
            job.cancelled.set()
            queue = self._queues.get(session_id)
            if queue is not None and job in queue:
                queue.remove(job)
                if not queue:
                    del self._queues[session_id]

    async def aclose(self) -> None:
        """Tell every running request to stop, wait for the threads, close the workers on them."""
        self._closed = True
        for job in self._jobs.values():
            job.cancelled.set()
        for seat in self._seats:
            if seat.job is not None:
                seat.job.cancelled.set()
        self._jobs.clear()
        self._queues.clear()
        closings = [self._loop.run_in_executor(seat.thread, _close, seat) for seat in self._seats]
        idle = False
        try:
            idle = await self._closed_workers(closings)
        finally:
            for seat in self._seats:
                seat.thread.shutdown(wait=idle)  # an idle thread ends at once

    async def _closed_workers(self, closings: list[asyncio.Future[None]]) -> bool:
        """Wait for the workers to be closed; whether all were, so that no thread is in the middle of anything."""
        done, hanging = await asyncio.wait(closings, timeout=CLOSE_TIMEOUT_S)
        for future in done:
            if (failure := future.exception()) is not None:
                log.warning("stage %s: a worker failed to close: %s", self._spec.name, describe(failure))
        if hanging:
            log.warning(
                "stage %s: %d workers ignored their cancellation for %.0f s",
                self._spec.name,
                len(hanging),
                CLOSE_TIMEOUT_S,
            )
        return not hanging

    def _dispatch(self) -> None:
        """Give free workers the next jobs, one session after the other."""
        while self._idle:
            session_id = next((each for each in self._queues if each not in self._running), None)
            if session_id is None:
                return
            queue = self._queues.pop(session_id)
            job = queue.popleft()
            if queue:
                self._queues[session_id] = queue  # at the end of the line
            self._run(self._idle.popleft(), job)

    def _run(self, seat: _Seat, job: _Job) -> None:
        assert seat.worker is not None
        seat.job = job
        self._running.add(job.request.fence.session_id)
        emit = partial(self._emit_from_thread, job)
        future = seat.thread.submit(seat.worker.run, job.request.payload, emit, job.cancelled.is_set)
        future.add_done_callback(partial(self._done_on_thread, seat, job))

    def _emit_from_thread(self, job: _Job, payload: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everyone who would listen
            self._loop.call_soon_threadsafe(self._emitted, job, payload)

    def _done_on_thread(self, seat: _Seat, job: _Job, future: Future[None]) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._done, seat, job, future)

    def _wanted(self, job: _Job) -> bool:
        request = job.request
        return self._jobs.get((request.fence.session_id, request.request_id)) is job

    def _emitted(self, job: _Job, payload: Any) -> None:
        if self._wanted(job):
            self._reply(job.request.output(payload))

    def _done(self, seat: _Seat, job: _Job, future: Future[None]) -> None:
        """A worker has returned or raised: answer its request and take the next."""
        seat.job = None
        self._running.discard(job.request.fence.session_id)
        failure = future.exception()
        if failure is not None and not isinstance(failure, Exception):
            self._die(failure)
        else:
            self._idle.append(seat)
        if failure is not None and self._wanted(job):
            self._failed(job, failure)
        elif self._wanted(job):
            self._finish(job)
            self._reply(job.request.output(final=True))
        if self._dead is None:
            self._dispatch()

    def _failed(self, job: _Job, failure: BaseException) -> None:
        """Answer a request whose worker raised: what it foresaw is a line in the log, anything else has its traceback."""
        which = (self._spec.name, job.request.request_id, job.request.fence.session_id)
        if isinstance(failure, DuplexError):
            log.warning("stage %s: request %s of %s failed: %s", *which, failure.__cause__ or failure)
            self._fail(job, failure.info)
        else:
            log.error("stage %s: request %s of %s failed", *which, exc_info=failure)
            self._fail(job, self._error("failed" if self._dead is None else "died"))

    def _error(self, what: str) -> ErrorInfo:
        """What a client is told of a fault that nobody foresaw: where, and that the log has the rest."""
        return error(ErrorCode.ENGINE_ERROR, f"the model's stage {self._spec.name} {what}; the server's log says why")

    def _die(self, failure: BaseException) -> None:
        """The worker ended its thread (``SystemExit`` and the like): the stage takes no more, and says so to all."""
        self._dead = describe(failure)
        log.error("stage %s died: %s", self._spec.name, self._dead)
        running = [seat.job for seat in self._seats if seat.job is not None]
        queued = [job for queue in self._queues.values() for job in queue]
        self._queues.clear()
        for job in [*running, *queued]:
            job.cancelled.set()
            self._fail(job, self._error("died"))

    def _fail(self, job: _Job, info: ErrorInfo) -> None:
        if not self._wanted(job):
            return
        self._finish(job)
        self._reply(job.request.failed(info, fatal=self._dead is not None))

    def _finish(self, job: _Job) -> None:
        request = job.request
        del self._jobs[request.fence.session_id, request.request_id]


def _fill(seat: _Seat, spec: StageSpec) -> None:
    """Runs on the seat's thread, so that a worker whose loading nobody waits for any more is closed all the same."""
    seat.worker = make_worker(spec)


def _close(seat: _Seat) -> None:
    """Runs on the seat's thread, after whatever it was doing."""
    worker, seat.worker = seat.worker, None
    if worker is not None:
        worker.close()

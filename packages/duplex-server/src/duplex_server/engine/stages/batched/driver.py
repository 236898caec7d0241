"""The driver of the ``torch`` runtime: it calls a :class:`~duplex_core.workers.BatchedWorker`.

Owns the worker, on the event loop's thread, which is the only one: while a step runs nothing else does, and frames that come
meanwhile wait in the socket for the next one, of which they could not be part sooner. Made by
:mod:`duplex_server.engine.stages.processes.child`, for which whatever is raised here is the process's end. Must never import
torch but to ask which devices there are.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from typing import Any, cast

from duplex_core.stages import Forward, StageRequest, StageSpec
from duplex_core.workers import BatchedWorker
from duplex_server.engine.stages.batched.slots import Answer, Slots
from duplex_server.engine.stages.loading import StageLoadError, make
from duplex_server.engine.stages.processes.driver import Seats, Sink

log = logging.getLogger(__name__)

GATHER_MS = 2.0
"""How long work waits for other slots' work, where the worker has no ``gather_ms`` of its own."""
TELL_S = 1.0
"""How often measurements are told."""


class BatchedDriver:
    """Gathers what is due and steps the worker (:class:`~duplex_server.engine.stages.processes.driver.Driver`)."""

    def __init__(self, sink: Sink) -> None:
        """A driver without a worker yet."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._worker: BatchedWorker | None = None
        self._slots: Slots
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._stopped = False

    async def start(self, spec: StageSpec, device: str, seats: Seats) -> None:
        """Make the worker and have it load.

        Raises:
            StageLoadError: the factory made something else, or the device is not there.
        """
        worker = cast("BatchedWorker", make(spec, BatchedWorker))
        self._worker = worker
        worker.start(seats.total, _device(device))
        gather_ms = float(getattr(worker, "gather_ms", GATHER_MS))
        self._slots = Slots(spec.name, seats.total, frame_ms=worker.frame_ms, gather_s=gather_ms / 1000)

    def place(self, session_id: str) -> None:
        """A session, or a chat request, gets a slot in a new session's state."""
        self._made.reset(self._slots.place(session_id))
        self._tell_soon()

    def release(self, session_id: str) -> None:
        """Its slot is free."""
        self.abort(session_id)
        self._made.reset(self._slots.release(session_id))
        self._schedule()
        self._tell_soon()

    def submit(self, request: StageRequest) -> None:
        """Queue it for the next step."""
        self._slots.submit(request, submitted=self._sink.submitted_at(request), now=time.monotonic())
        self._schedule()

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Take requests out of the next step."""
        slot = self._slots.abort(session_id, request_id)
        if slot is not None:
            self._made.interrupted(slot)

    async def stop(self) -> None:
        """Close the worker."""
        self._stopped = True
        for handle in (self._next, self._timer, self._telling):
            if handle is not None:
                handle.cancel()
        if self._worker is not None:
            self._worker.close()

    @property
    def _made(self) -> BatchedWorker:
        assert self._worker is not None
        return self._worker

    def _schedule(self) -> None:
        """Look what is due when all that has come together has been taken in."""
        if self._next is None and not self._stopped:
            self._next = self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Step now, or when that is due."""
        self._next = None
        due = self._slots.due(now := time.monotonic())
        if due is None:
            return
        if due > now:
            if self._timer is None or self._timer.when() > self._loop.time() + due - now:
                self._wake(due - now)
            return
        self._step()
        if self._slots.queued:
            self._next = self._loop.call_soon(self._after_reading)

    def _after_reading(self) -> None:
        """Look again when the loop has read the socket: what has come during a step takes part in the next."""
        self._next = self._loop.call_soon(self._look)

    def _wake(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(after_s, self._rung)

    def _rung(self) -> None:
        self._timer = None
        self._schedule()

    def _step(self) -> None:
        work = self._slots.begin(time.monotonic())
        results = self._made.step(work)
        for answer in self._slots.finish(results, time.monotonic()):
            self._tell(answer)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = self._loop.call_later(TELL_S, self._tell_measured)

    def _tell(self, answer: Answer) -> None:
        """Send what a step gave for one request; its last output is the final one."""
        metrics = () if answer.metrics is None else (answer.metrics,)
        if answer.failed is not None:
            log.warning("request %s was refused: %s", answer.request.request_id, answer.failed.message)
            self._sink.failed(answer.request, answer.failed, metrics=metrics)
            return
        last = len(answer.outputs) - 1
        for index, output in enumerate(answer.outputs):
            final = bool(metrics) and index == last
            self._send(answer.request, output, final, metrics if final else ())
        if metrics and last < 0:
            self._sink.output(answer.request, None, final=True, metrics=metrics)

    def _send(self, request: StageRequest, output: Any, final: bool, metrics: tuple[Any, ...]) -> None:
        if isinstance(output, Forward):
            self._sink.output(request, None, forward=output, final=final, metrics=metrics)
        else:
            self._sink.output(request, output, final=final, metrics=metrics)

    def _tell_measured(self) -> None:
        self._telling = None
        counts, samples = self._slots.measured()
        gauges = {"slots_taken": float(self._slots.taken), "requests_open": float(self._slots.queued)}
        self._sink.stats(gauges, counts=counts, samples=samples)


def _device(wanted: str) -> str:
    """Where a worker computes: where its plan says, else on the GPU if torch sees one.

    Raises:
        StageLoadError: torch sees no such GPU.
    """
    if (wanted and not wanted.startswith("cuda")) or importlib.util.find_spec("torch") is None:
        return wanted or "cpu"
    import torch  # noqa: PLC0415 - the first that this process needs of it

    count = torch.cuda.device_count()
    for each in filter(None, wanted.split(",")):
        number = each.partition(":")[2] or "0"
        if not number.isdecimal() or int(number) >= count:
            raise StageLoadError(f"device {each} was asked for, but torch {torch.__version__} sees {count} GPUs here")
    return wanted or ("cuda" if count else "cpu")

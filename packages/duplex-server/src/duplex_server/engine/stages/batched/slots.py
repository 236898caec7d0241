"""The slots of one worker: who has which, what is due, and what each step and each request took.

Owns the books between the requests and the steps. Pure: the time is an argument, in seconds, and nothing is called from here.
Used by :mod:`.driver`. Must never have two requests of one session in a step, or let one that was aborted be answered.

**When a step begins.** At once when a request is in the middle of its steps, when everyone who is placed has work, or when the
oldest work has waited for ``gather_s``; else when that is so. All that have work by then take part.

**Deadlines.** A request of a frame-locked stage is due one frame after its submission, and each further step of it one frame
later; a step that ends after that is a miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.stages import StageMetrics, StageRequest
from duplex_core.workers import SlotResult, SlotWork


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave for one request. ``metrics`` are there when it is its last."""

    request: StageRequest
    outputs: tuple[Any, ...]
    failed: ErrorInfo | None
    metrics: StageMetrics | None


class WrongAnswers(RuntimeError):
    """A worker has answered other slots than it was asked for."""


class _Job:
    """One request."""

    __slots__ = ("begun", "compute", "first", "last", "misses", "received", "request", "steps", "submitted")

    def __init__(self, request: StageRequest, submitted: float, received: float) -> None:
        self.request = request
        self.submitted = submitted
        self.received = received
        self.begun: float | None = None
        self.first: float | None = None
        self.last: float | None = None
        self.compute = 0.0
        self.steps = 0
        self.misses = 0


class _Sitter:
    """A session, or a chat request, in its slot."""

    __slots__ = ("answered", "jobs", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.jobs: deque[_Job] = deque()
        self.answered: float | None = None
        """When the step before ended, for the gap to the next one."""


class Slots:
    """The slots of one worker."""

    def __init__(self, stage: str, count: int, *, frame_ms: float | None, gather_s: float) -> None:
        """``count`` empty slots of a worker for ``stage`` whose frames last ``frame_ms`` milliseconds, if it has any."""
        self._stage = stage
        self._frame_s = None if frame_ms is None else frame_ms / 1000
        self._gather_s = gather_s
        self._free = list(range(count - 1, -1, -1))
        self._sitters: dict[str, _Sitter] = {}
        self._step: dict[int, tuple[_Sitter, _Job]] = {}
        self._step_began = 0.0
        self._counts: dict[str, int] = {}
        self._samples: dict[str, list[float]] = {}

    @property
    def taken(self) -> int:
        """Slots that somebody has."""
        return len(self._sitters)

    @property
    def queued(self) -> int:
        """Requests that have not ended."""
        return sum(len(sitter.jobs) for sitter in self._sitters.values())

    def place(self, who: str) -> int:
        """Somebody begins: the slot."""
        slot = self._free.pop()
        self._sitters[who] = _Sitter(slot)
        return slot

    def release(self, who: str) -> int:
        """Somebody has ended, with all requests: the slot."""
        sitter = self._sitters.pop(who)
        self._free.append(sitter.slot)
        return sitter.slot

    def submit(self, request: StageRequest, *, submitted: float, now: float) -> None:
        """Queue a request of somebody who is placed."""
        self._sitters[request.fence.session_id].jobs.append(_Job(request, submitted, now))

    def abort(self, who: str, request_id: str | None = None) -> int | None:
        """One request, or all of somebody's, are not wanted any more: the slot, if one was in the middle of its steps."""
        sitter = self._sitters[who]
        gone = [job for job in sitter.jobs if request_id in (None, job.request.request_id)]
        for job in gone:
            sitter.jobs.remove(job)
        if gone:
            sitter.answered = None
        return sitter.slot if any(job.begun is not None for job in gone) else None

    def due(self, now: float) -> float | None:
        """When the next step is to begin: ``now`` or earlier is at once, and ``None`` is when there is work again."""
        heads = [sitter.jobs[0] for sitter in self._sitters.values() if sitter.jobs]
        if not heads:
            return None
        if len(heads) == len(self._sitters) or any(job.begun is not None for job in heads):
            return now
        return min(job.received for job in heads) + self._gather_s

    def begin(self, now: float) -> list[SlotWork]:
        """A step begins: what takes part."""
        self._step_began = now
        self._step = {sitter.slot: (sitter, sitter.jobs[0]) for sitter in self._sitters.values() if sitter.jobs}
        work = []
        for slot, (_, job) in self._step.items():
            if job.begun is None:
                job.begun = now
                work.append(SlotWork(slot=slot, payload=job.request.payload))
            else:
                work.append(SlotWork(slot=slot))
        return work

    def finish(self, results: Sequence[SlotResult], now: float) -> list[Answer]:
        """The step has ended with these results.

        Raises:
            WrongAnswers: not every slot that took part is answered once, or what answers is not as it must be.
        """
        step, self._step = self._step, {}
        if not isinstance(results, tuple | list):
            raise WrongAnswers(f"the worker's step returned a {type(results).__name__}, not a list of SlotResult")
        for result in results:
            if not isinstance(result, SlotResult) or not isinstance(result.outputs, tuple | list):
                raise WrongAnswers(
                    f"the worker's step returned {result!r:.200}, not a SlotResult with a tuple of outputs"
                )
            if not isinstance(result.failed, str | ErrorInfo | None):
                raise WrongAnswers(
                    f"the worker's step refused a request with {result.failed!r:.200}, not a sentence or an ErrorInfo"
                )
        if sorted(result.slot for result in results) != sorted(step):
            answered = sorted(result.slot for result in results)
            raise WrongAnswers(f"the worker was asked for a step of the slots {sorted(step)} and answered {answered}")
        self._count("steps", 1)
        self._count("slot_steps", len(step))
        self._sample("step", now - self._step_began)
        return [self._answer(*step[result.slot], result, now) for result in results]

    def measured(self) -> tuple[dict[str, int], dict[str, list[float]]]:
        """Counts and samples, in seconds, since this was last called."""
        counts, self._counts = self._counts, {}
        samples, self._samples = self._samples, {}
        return counts, samples

    def _answer(self, sitter: _Sitter, job: _Job, result: SlotResult, now: float) -> Answer:
        job.steps += 1
        job.compute += now - self._step_began
        if job.first is None and result.outputs:
            job.first = now
        if self._frame_s is not None and now > job.submitted + job.steps * self._frame_s:
            job.misses += 1
            self._count("deadline_misses", 1)
        self._rhythm(sitter, now)
        over = result.done or result.failed is not None
        if over:
            sitter.jobs.popleft()
            self._unit(job)
            if self._frame_s is None:
                sitter.answered = None
        return Answer(
            request=job.request,
            outputs=result.outputs,
            failed=result.refusal,
            metrics=self._metrics(job, now) if over else None,
        )

    def _rhythm(self, sitter: _Sitter, now: float) -> None:
        """How long after the step before this one ended, and how far that is from a frame."""
        if sitter.answered is not None:
            gap = now - sitter.answered
            self._sample("gap", gap)
            if self._frame_s is not None:
                self._sample("jitter", abs(gap - self._frame_s))
        sitter.answered = now

    def _unit(self, job: _Job) -> None:
        assert job.begun is not None
        self._sample("queue", job.begun - job.received)
        self._sample("compute", job.compute)
        self._sample("transfer_in", max(0.0, job.received - job.submitted))

    def _metrics(self, job: _Job, now: float) -> StageMetrics:
        assert job.begun is not None
        return StageMetrics(
            stage=self._stage,
            queue_ms=(job.begun - job.submitted) * 1000,
            first_ms=None if job.first is None else (job.first - job.submitted) * 1000,
            total_ms=(now - job.submitted) * 1000,
            steps=job.steps,
            deadline_misses=job.misses,
        )

    def _count(self, what: str, count: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + count

    def _sample(self, what: str, value: float) -> None:
        self._samples.setdefault(what, []).append(value)

"""One detector for all sessions: frames are judged in batches on a worker thread and handed back in order.

Owns the worker thread and the batches. Called by the session runner; every method here belongs to the one
event loop on which the service was made. Must never block that loop, decide about turns, lose audio without
telling, or let one session's trouble reach another.

There is one batch at a time, and whatever arrives while the worker has it forms the next, so batches grow
with the load. A detector that needs less for a few frames than the way to the worker and back judges these on
the loop, and ten times as many where there is one core: there a worker takes the loop's time as well, and the
way besides. At a middling load batches would stay small, and small ones waste the processor. So a small
batch starts no sooner than `PACE_MS` after the one before; a frame that comes after a pause of a third of it,
and audio that is behind by more than one batch takes of a session, never wait. A longer pace delays every interruption: at 100
sessions its median is 5 ms at a pace of 5 and 10 at 12, and the whole server takes less of the
processor (`docs/benchmarks.md`).
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from duplex_core.detection import RunDetector, SpeechDetector, SpeechFrame
from duplex_server.detectors.lanes import Entry, Frame, Lane, OnFrames, OnUnjudged, Samples, judge, judge_runs
from duplex_server.detectors.reports import (
    DetectorClosed,
    DetectorFailed,
    DetectorOverrun,
    DetectorStats,
    UnjudgedAudio,
)

MAX_BATCH: Final = 128
"""Most sessions of one batch, and most frames of one call of the detector."""
MAX_STEPS: Final = 8
"""Most frames of one session in one batch: bounds how long the others wait while one catches up."""
MAX_BACKLOG_MS: Final = 60_000.0
"""Most audio of one session that may wait to be judged."""
PACE_MS: Final = 12.0
"""Least time from the start of a small batch to the start of the next."""
PAUSE: Final = 1 / 3
"""Share of the pace after which the next frame comes after a pause: so few come that to wait would gather no more."""
ENOUGH: Final = 20
"""Sessions from which on a batch is not small: a frame costs no less in larger ones, which leave the near caches."""

ALONE: Final = 10
"""How many times as many frames are few to a process with one core: the loop would hold still for them anyway."""

_Delivery: TypeAlias = tuple[Lane, int, Callable[[Any], None], Any]
"""Whose it is, under which generation, who is told, and what."""


class DetectorFeed:
    """One session's way into the detector. Made by :meth:`DetectorService.attach`."""

    __slots__ = ("_arrived", "_detach", "_detector", "_lane")

    def __init__(
        self,
        lane: Lane,
        detector: SpeechDetector,
        arrived: Callable[[Lane], None],
        detach: Callable[[Lane], None],
    ) -> None:
        self._lane: Final = lane
        self._detector: Final = detector
        self._arrived: Final = arrived
        self._detach: Final = detach

    @property
    def position_ms(self) -> float:
        """How much audio was pushed so far, in ms."""
        return self._lane.pushed * 1000 / self._detector.rate_hz

    @property
    def backlog_ms(self) -> float:
        """How much audio waits for the worker, in ms; what the worker has just now is not counted."""
        return len(self._lane.pending) * self._detector.frame_samples * 1000 / self._detector.rate_hz

    def push(self, pcm: Samples) -> None:
        """Add audio; returns at once.

        Args:
            pcm: int16[n], mono, at the detector's rate, any n; it is copied. What does not fill a frame waits
                for the next push.

        Raises:
            TypeError: It is not int16[n].
            RuntimeError: The feed or the service is closed.
        """
        if self._lane.closed:
            raise RuntimeError(f"the detector feed of {self._lane.key} is closed")
        if pcm.dtype != np.int16 or pcm.ndim != 1:
            raise TypeError(f"a detector feed takes int16[n] samples, got {pcm.dtype}{list(pcm.shape)}")
        if self._lane.add(pcm):
            self._arrived(self._lane)

    def reset(self) -> None:
        """Forget all audio that has no verdict yet and the detector's state; none of it is reported later.

        Positions go on counting: the next frame starts where the last push ended.
        """
        self._lane.drop()
        self._lane.state = self._detector.new_state()

    def close(self) -> None:
        """End the feed: nothing is reported after this call. Idempotent."""
        self._lane.drop()
        self._lane.closed = True
        self._detach(self._lane)


class DetectorService:
    """Runs one detector for many sessions.

    Attributes:
        detector: The detector. The worker thread calls its ``probabilities``, the loop its ``new_state``.
    """

    def __init__(
        self,
        detector: SpeechDetector,
        *,
        max_batch: int = MAX_BATCH,
        max_backlog_ms: float = MAX_BACKLOG_MS,
        pace_ms: float = PACE_MS,
        cores: int | None = None,
    ) -> None:
        """Make the service on the event loop that it shall serve; its thread starts with the first frame.

        Args:
            detector: Loaded already, since loading blocks. When a call of it raises, it must leave the states
                as they were: the frames are then judged one by one, to find out whose it was.
            max_batch: Most sessions of one batch.
            max_backlog_ms: Most audio of one session that may wait; beyond it the oldest is given up and
                reported.
            pace_ms: Least time from one small batch to the next, in ms; 0 to judge whatever there is at once.
            cores: How many processor cores this process may use; looked up by default.

        Raises:
            ValueError: A limit is too small to work with.
        """
        frame_ms = detector.frame_samples * 1000 / detector.rate_hz
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        if max_backlog_ms < frame_ms:
            raise ValueError(f"max_backlog_ms must hold a frame of {frame_ms} ms, got {max_backlog_ms}")
        self.detector: Final = detector
        self._runs: Final = detector if isinstance(detector, RunDetector) else None
        alone = (_cores() if cores is None else cores) == 1
        self._few_frames: Final = 0 if self._runs is None else self._runs.few_frames * (ALONE if alone else 1)
        self._max_batch: Final = max_batch
        self._max_pending: Final = int(max_backlog_ms / frame_ms)
        self._loop: Final = asyncio.get_running_loop()
        self._executor: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="speech-detector")
        self._lanes: Final[dict[str, Lane]] = {}
        self._ready: Final[deque[Lane]] = deque()
        self._suspects: Final[deque[Lane]] = deque()
        self._in_worker: Sequence[Entry] = ()
        self._one_by_one = True
        self._pace_s: Final = pace_ms / 1000
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._busy = False
        self._closing = False
        self._quiet: Final = asyncio.Event()
        self._frames = self._batches = self._failed = self._overrun = 0

    @property
    def stats(self) -> DetectorStats:
        """What has been done so far."""
        return DetectorStats(
            frames=self._frames,
            batches=self._batches,
            failed=self._failed,
            overrun=self._overrun,
            waiting=sum(len(lane.pending) for lane in self._lanes.values()),
        )

    def attach(self, key: str, on_frames: OnFrames, on_unjudged: OnUnjudged) -> DetectorFeed:
        """Open a feed for one session.

        An exception from a callback goes to the loop's exception handler; no other session notices.

        Args:
            key: The session's name, unique among the open feeds.
            on_frames: Called on the loop with the verdicts of one batch: one or more frames, in order of
                time.
            on_unjudged: Called on the loop when audio stays without a verdict, with the reason and the place.
                The feed goes on, unless the reason is :class:`DetectorClosed`.

        Raises:
            ValueError: A feed of this name is open.
            RuntimeError: The service is closed.
        """
        if self._closing:
            raise RuntimeError("the detector service is closed")
        if key in self._lanes:
            raise ValueError(f"a detector feed of {key} is open already; close it first")
        lane = Lane(key, self.detector.frame_samples, on_frames, on_unjudged, self.detector.new_state())
        self._lanes[key] = lane
        return DetectorFeed(lane, self.detector, self._arrived, self._detach)

    async def aclose(self) -> None:
        """Hand out what the worker is at, tell every feed that has audio left, end the thread. Idempotent."""
        self._closing = True
        try:
            while self._busy:
                self._quiet.clear()
                await self._quiet.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for entry in self._in_worker:
                if not entry.stale:
                    entry.lane.give_back(entry.frames)
            for lane in list(self._lanes.values()):
                self._abandon(lane)
            # When this was cancelled in mid-batch, the thread ends by itself: the loop must not wait for it.
            self._executor.shutdown(wait=not self._busy)
        await asyncio.sleep(0)  # the reports of abandoned audio are out before this returns

    def _abandon(self, lane: Lane) -> None:
        left = list(lane.pending)
        lane.drop()
        lane.closed = True
        self._detach(lane)
        if left:
            self._tell(lane, _report(DetectorClosed, "The detector service was closed", left, self.detector))

    def _detach(self, lane: Lane) -> None:
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _arrived(self, lane: Lane) -> None:
        """Bound a lane that has grown, and see to it that a batch starts after this iteration of the loop."""
        excess = len(lane.pending) - self._max_pending
        if excess > 0:
            self._overrun += excess
            lost = lane.take(excess).frames
            self._tell(lane, _report(DetectorOverrun, "The detector is too far behind", lost, self.detector))
        self._enqueue(lane)
        self._schedule()

    def _schedule(self) -> None:
        if not (self._busy or self._scheduled):
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _enqueue(self, lane: Lane) -> None:
        if lane.pending and not lane.queued:
            lane.queued = True
            self._ready.append(lane)

    def _dispatch(self) -> None:
        """Give the worker its next batch, if it is free and there is one."""
        self._scheduled = False
        if self._busy or self._closing or self._too_early():
            return
        entries = self._next_batch()
        if entries:
            self._busy = True
            self._in_worker = entries
            self._batches += 1
            self._not_before = self._loop.time() + self._pace_s
            runs = None if self._one_by_one else self._runs
            work = partial(judge, self.detector, entries) if runs is None else partial(judge_runs, runs, entries)
            if runs is not None and sum(len(entry.frames) for entry in entries) <= self._few_frames:
                self._judge_here(entries, work)
            else:
                self._executor.submit(work).add_done_callback(partial(self._leave_worker, entries))

    def _too_early(self) -> bool:
        """Whether a batch would be a small one soon after another; then it is started by a timer instead."""
        if not self._ready or self._suspects or len(self._ready) >= ENOUGH or len(self._ready[0].pending) >= MAX_STEPS:
            return False
        early_s = self._not_before - self._loop.time()
        if early_s <= 0.0 or (self._timer is None and early_s <= self._pace_s * (1 - PAUSE)):
            return False
        if self._timer is None:
            self._timer = self._loop.call_at(self._not_before, self._ring, self._not_before)
        return True

    def _ring(self, due: float) -> None:
        self._timer = None
        if due == self._not_before:
            self._not_before = 0.0  # by a coarse clock it may be a little early still, and would be so again and again
            self._dispatch()
        elif self._ready:  # a larger batch has started meanwhile
            self._timer = self._loop.call_at(self._not_before, self._ring, self._not_before)

    def _next_batch(self) -> list[Entry]:
        """Frames for one batch: of one session alone while a failure is being looked into, else of all."""
        while self._suspects:
            suspect = self._suspects.popleft()
            if suspect.pending:
                self._one_by_one = True
                return [suspect.take(MAX_STEPS)]
        self._one_by_one = self._runs is None
        lanes: list[Lane] = []
        while self._ready and len(lanes) < self._max_batch:
            lane = self._ready.popleft()
            lane.queued = False
            if lane.pending:
                lanes.append(lane)
        steps = min(MAX_STEPS, max(1, self._max_batch // max(1, len(lanes))))
        return [lane.take(steps) for lane in lanes]

    def _judge_here(self, entries: Sequence[Entry], work: Callable[[], None]) -> None:
        """Judge a batch on the loop; a failure is looked into as one on the worker is."""
        error: Exception | None = None
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - whatever a detector raises
            error = exc
        except BaseException as exc:
            self._collect(entries, exc)
            raise
        self._collect(entries, error)

    def _leave_worker(self, entries: Sequence[Entry], future: Future[None]) -> None:
        """Runs on the worker thread: the one hop back to the loop that a batch takes."""
        self._loop.call_soon_threadsafe(self._collect, entries, future.exception())

    def _collect(self, entries: Sequence[Entry], error: BaseException | None) -> None:
        """Take a batch that was judged, or failed: verdicts out, what was not judged back into the queues."""
        self._in_worker = ()
        deliveries: deque[_Delivery] = deque()
        for entry in entries:
            lane = entry.lane
            self._frames += len(entry.probabilities)
            if not entry.stale:
                if entry.probabilities:
                    deliveries.append((lane, lane.generation, lane.on_frames, _verdicts(entry, self.detector)))
                if error is not None and entry.unjudged:
                    report = self._look_into(entry, error, alone=self._one_by_one and len(entries) == 1)
                    if report is not None:
                        deliveries.append((lane, lane.generation, lane.on_unjudged, report))
            self._enqueue(lane)
        self._deliver(deliveries)

    def _look_into(self, entry: Entry, error: BaseException, *, alone: bool) -> UnjudgedAudio | None:
        """Deal with an entry of a batch that failed: judge it again alone or, if it was alone, give a frame up."""
        lane = entry.lane
        if not alone:
            lane.give_back(entry.unjudged)
            self._suspects.append(lane)
            return None
        self._failed += 1
        guilty, *rest = entry.unjudged
        lane.give_back(rest)
        lane.state = self.detector.new_state()
        report = _report(DetectorFailed, f"The detector failed ({error!r})", [guilty], self.detector)
        report.__cause__ = error
        return report

    def _deliver(self, deliveries: deque[_Delivery]) -> None:
        """Call back for a batch, then start the next; an exception of one callback leaves the others theirs."""
        try:
            while deliveries:
                self._call(*deliveries.popleft())
        finally:
            if deliveries:
                self._loop.call_soon(self._deliver, deliveries)
            else:
                self._busy = False
                self._quiet.set()
                self._schedule()

    def _call(self, lane: Lane, generation: int, tell: Callable[[Any], None], what: Any) -> None:
        """The one place where what is stale ends."""
        if lane.generation == generation:
            tell(what)

    def _tell(self, lane: Lane, report: UnjudgedAudio) -> None:
        """Report on the next iteration of the loop, since the caller stands in the middle of something."""
        self._loop.call_soon(self._call, lane, lane.generation, lane.on_unjudged, report)


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ms(samples: int, detector: SpeechDetector) -> float:
    return samples * 1000 / detector.rate_hz


def _report(kind: type[UnjudgedAudio], reason: str, frames: Sequence[Frame], detector: SpeechDetector) -> UnjudgedAudio:
    """What to tell of frames that stay without a verdict; there is one at least."""
    return kind(reason, _ms(frames[0][0], detector), _ms(len(frames) * detector.frame_samples, detector))


def _verdicts(entry: Entry, detector: SpeechDetector) -> list[SpeechFrame]:
    """The verdicts of an entry, for as many of its frames as have one."""
    duration, rate_hz = _ms(detector.frame_samples, detector), detector.rate_hz
    return [
        SpeechFrame(start_ms=start * 1000 / rate_hz, duration_ms=duration, probability=probability)
        for (start, _), probability in zip(entry.frames, entry.probabilities, strict=False)
    ]

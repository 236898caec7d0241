"""One end-of-turn detector for all sessions: utterances are judged one after the other on a worker thread.

Owns the worker thread and what waits for it. Called by the session runner; every method here belongs to the one event loop on
which the service was made. Must never block that loop, decide about turns, or let one session's trouble reach another.

A verdict is worth something only while the pause lasts that it is about, so of each session at most one utterance waits, the
newest: what waits is bounded by the number of sessions. Batches would gain nothing, since the network's cost grows with them
(measured: 47 ms for one utterance, 190 ms for four).
"""

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from duplex_core.detection import EndOfTurnDetector

log = logging.getLogger(__name__)

OnVerdict: TypeAlias = Callable[[float], None]


class Lost(enum.Enum):
    """Why there is no verdict on an utterance."""

    SUPERSEDED = "superseded"
    """A newer one of the session came first, or nobody wanted to know any more."""
    FAILED = "failed"
    """The detector raised, or gave something that is no probability."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTurnStats:
    """Counts since the service began.

    Attributes:
        judged: Utterances judged.
        superseded: Utterances given up, before or while they were judged, because a newer one came or nobody wanted to know
            any more.
        failed: Utterances that the detector raised on.
        waiting: Utterances that wait now.
    """

    judged: int
    superseded: int
    failed: int
    waiting: int


@dataclasses.dataclass(slots=True, eq=False)
class _Request:
    samples: npt.NDArray[np.float32]
    on_verdict: OnVerdict


class EndOfTurnService:
    """Runs one end-of-turn detector for many sessions.

    Attributes:
        detector: The detector. The worker thread calls its ``probability``.
    """

    def __init__(self, detector: EndOfTurnDetector, *, on_lost: Callable[[Lost], None] = lambda lost: None) -> None:
        """Make the service on the event loop that it shall serve; its thread starts with the first utterance.

        Args:
            detector: Loaded already, since loading blocks.
            on_lost: Is called on the loop for each utterance of which there will be no verdict.
        """
        self.detector: Final = detector
        self._on_lost: Final = on_lost
        self._loop: Final = asyncio.get_running_loop()
        self._executor: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="end-of-turn")
        self._waiting: Final[dict[str, _Request]] = {}
        self._at_work: tuple[str, _Request] | None = None
        self._wanted = False
        self._closing = False
        self._quiet: Final = asyncio.Event()
        self._quiet.set()
        self._judged = self._superseded = self._failed = 0

    @property
    def stats(self) -> EndOfTurnStats:
        """What has been done so far."""
        return EndOfTurnStats(
            judged=self._judged, superseded=self._superseded, failed=self._failed, waiting=len(self._waiting)
        )

    def judge(self, key: str, samples: npt.NDArray[Any], on_verdict: OnVerdict) -> None:
        """Have an utterance judged, in the place of any earlier one of this session; returns at once.

        Args:
            key: The session's name.
            samples: int16[n], mono, at the detector's rate: the utterance and what there is of the silence after it. It is
                copied, and no more of its end than the detector hears.
            on_verdict: Called on the loop with the probability that the speaker has finished; not at all when the detector
                fails, when a newer utterance of the session comes first, or after :meth:`forget`. What it raises goes to the
                loop's exception handler.

        Raises:
            TypeError: The samples are not int16[n].
            RuntimeError: The service is closed.
        """
        if self._closing:
            raise RuntimeError("the end-of-turn service is closed")
        if samples.dtype != np.int16 or samples.ndim != 1:
            raise TypeError(f"the end-of-turn service takes int16[n] samples, got {samples.dtype}{list(samples.shape)}")
        self.forget(key)
        most = self.detector.rate_hz * self.detector.window_ms // 1000
        self._waiting[key] = _Request(samples[-most:].astype(np.float32) / np.float32(32768), on_verdict)
        self._dispatch()

    def forget(self, key: str) -> None:
        """The session wants to know no more: nothing is reported after this call. Idempotent."""
        if self._waiting.pop(key, None) is not None:
            self._superseded += 1
            self._on_lost(Lost.SUPERSEDED)
        if self._at_work is not None and self._at_work[0] == key and self._wanted:
            self._wanted = False
            self._superseded += 1
            self._on_lost(Lost.SUPERSEDED)

    async def aclose(self) -> None:
        """Give up what waits, let the worker finish what it is at, end the thread. Idempotent."""
        self._closing = True
        for key in list(self._waiting):
            self.forget(key)
        try:
            await self._quiet.wait()
        finally:
            # When this was cancelled in mid-work, the thread ends by itself: the loop must not wait for it.
            self._executor.shutdown(wait=self._quiet.is_set())

    def _dispatch(self) -> None:
        """Give the worker the utterance that has waited longest, if it is free and there is one."""
        if self._at_work is not None or not self._waiting:
            return
        key = next(iter(self._waiting))
        request = self._waiting.pop(key)
        self._at_work = key, request
        self._wanted = True
        self._quiet.clear()
        future = self._executor.submit(self.detector.probability, request.samples)
        future.add_done_callback(partial(self._leave_worker, request))

    def _leave_worker(self, request: _Request, future: "Future[float]") -> None:
        """Runs on the worker thread: the one hop back to the loop."""
        self._loop.call_soon_threadsafe(self._collect, request, future)

    def _collect(self, request: _Request, future: "Future[float]") -> None:
        """Take a verdict back from the worker, hand it out, and give the worker its next."""
        assert self._at_work is not None
        key, wanted = self._at_work[0], self._wanted
        self._at_work, self._wanted = None, False
        self._quiet.set()
        if not self._closing:
            self._dispatch()
        probability = self._verdict(key, future)
        if not wanted:
            return
        if probability is None:
            self._on_lost(Lost.FAILED)
        else:
            request.on_verdict(probability)

    def _verdict(self, key: str, future: "Future[float]") -> float | None:
        """What the detector said, if it is a probability; a failure is told in the log and costs a verdict, no more."""
        error = future.exception()
        probability = float("nan") if error is not None else float(future.result())
        if 0.0 <= probability <= 1.0:
            self._judged += 1
            return probability
        self._failed += 1
        why = error if error is not None else ValueError(f"the verdict {probability} is no probability")
        log.warning("the end-of-turn detector failed on session %s; its turn ends by other rules", key, exc_info=why)
        return None

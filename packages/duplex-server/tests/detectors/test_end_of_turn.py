"""The end-of-turn service: off the loop, newest first served, bounded, and one session's trouble its own."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duplex_server.detectors import EndOfTurnService

Samples = npt.NDArray[np.int16]


class Judge:
    """A detector whose verdict is what the first sample says, in hundredths; it waits at the gate when there is one."""

    rate_hz = 1000
    window_ms = 50

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.heard: list[npt.NDArray[np.float32]] = []
        self.threads: set[int] = set()

    def probability(self, samples: npt.NDArray[np.float32]) -> float:
        self.threads.add(threading.get_ident())
        self.heard.append(samples)
        self.begun.release()
        assert self.gate.wait(10)
        value = round(float(samples[0]) * 32768)
        if value == 13:
            raise RuntimeError("bad luck")
        return value / 100


def says(hundredths: int, length: int = 10) -> Samples:
    return np.array([hundredths] * length, np.int16)


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
async def service(judge: Judge) -> AsyncIterator[EndOfTurnService]:
    running = EndOfTurnService(judge)
    yield running
    judge.gate.set()
    await running.aclose()


class Verdicts:
    """What was reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    def of(self, key: str) -> Callable[[float], None]:
        return lambda probability: self.queue.put_nowait((key, probability))

    async def next(self) -> tuple[str, float]:
        async with asyncio.timeout(10):
            return await self.queue.get()


async def begun(judge: Judge) -> None:
    """Wait until the worker has begun its next utterance."""
    assert await asyncio.to_thread(judge.begun.acquire, timeout=10)


async def test_verdicts_come_in_the_order_of_the_pauses_from_another_thread(
    service: EndOfTurnService, judge: Judge
) -> None:
    told = Verdicts()
    for number, key in enumerate(("a", "b", "c"), 50):
        service.judge(key, says(number), told.of(key))
    assert [await told.next() for _ in range(3)] == [("a", 0.5), ("b", 0.51), ("c", 0.52)]
    assert judge.threads
    assert threading.get_ident() not in judge.threads
    assert (service.stats.judged, service.stats.waiting) == (3, 0)


async def test_the_loop_goes_on_while_the_detector_works(service: EndOfTurnService, judge: Judge) -> None:
    judge.gate.clear()
    told = Verdicts()
    service.judge("a", says(50), told.of("a"))
    await begun(judge)
    assert told.queue.empty()
    judge.gate.set()
    assert await told.next() == ("a", 0.5)


async def test_the_newest_of_a_session_takes_the_place_of_what_waits_and_of_what_is_judged(
    service: EndOfTurnService, judge: Judge
) -> None:
    judge.gate.clear()
    told = Verdicts()
    service.judge("a", says(1), told.of("a"))
    await begun(judge)
    for number in range(2, 40):
        service.judge("a", says(number if number != 13 else 0), told.of("a"))
        assert service.stats.waiting == 1
    judge.gate.set()
    assert await told.next() == ("a", 0.39)
    assert [round(float(samples[0]) * 32768) for samples in judge.heard] == [1, 39]
    assert service.stats.superseded == 38
    assert told.queue.empty()


async def test_what_is_forgotten_is_not_reported(service: EndOfTurnService, judge: Judge) -> None:
    judge.gate.clear()
    told = Verdicts()
    service.judge("a", says(1), told.of("a"))
    service.judge("b", says(2), told.of("b"))
    service.judge("c", says(3), told.of("c"))
    await begun(judge)
    service.forget("a")
    service.forget("b")
    service.forget("nobody")
    judge.gate.set()
    assert await told.next() == ("c", 0.03)
    assert len(judge.heard) == 2, "what waited was not even judged"


@pytest.mark.parametrize("bad", [13, 101, -1])
async def test_a_failure_costs_one_verdict_and_is_logged(
    service: EndOfTurnService, caplog: pytest.LogCaptureFixture, bad: int
) -> None:
    told = Verdicts()
    with caplog.at_level(logging.WARNING):
        service.judge("a", says(bad), told.of("a"))
        service.judge("b", says(2), told.of("b"))
        assert await told.next() == ("b", 0.02)
    assert "failed on session a" in caplog.text
    service.judge("a", says(3), told.of("a"))
    assert await told.next() == ("a", 0.03)
    assert (service.stats.failed, service.stats.judged) == (1, 2)


async def test_a_callback_that_raises_hurts_nobody_else(service: EndOfTurnService) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    told = Verdicts()

    def bad(probability: float) -> None:
        raise LookupError(probability)

    service.judge("a", says(1), bad)
    service.judge("b", says(2), told.of("b"))
    assert await told.next() == ("b", 0.02)
    assert [type(context["exception"]) for context in raised] == [LookupError]


async def test_it_hears_a_copy_of_no_more_than_the_detector_does(service: EndOfTurnService, judge: Judge) -> None:
    samples = np.arange(120, dtype=np.int16)
    told = Verdicts()
    service.judge("a", samples, told.of("a"))
    samples[:] = 0
    assert await told.next() == ("a", 0.70)
    (heard,) = judge.heard
    assert heard.dtype == np.float32
    np.testing.assert_array_equal(heard * 32768, np.arange(70, 120, dtype=np.float32))


@pytest.mark.parametrize("samples", [np.zeros(9, np.float32), np.zeros((2, 9), np.int16)])
async def test_what_is_no_sound_is_refused(service: EndOfTurnService, samples: Any) -> None:
    with pytest.raises(TypeError, match=r"takes int16\[n\]"):
        service.judge("a", samples, lambda probability: None)


async def test_closing_gives_up_what_waits_and_ends_the_thread(judge: Judge) -> None:
    service = EndOfTurnService(judge)
    judge.gate.clear()
    told = Verdicts()
    service.judge("a", says(1), told.of("a"))
    service.judge("b", says(2), told.of("b"))
    await begun(judge)
    closing = asyncio.create_task(service.aclose())
    await asyncio.sleep(0)
    assert service.stats.waiting == 0
    judge.gate.set()
    await closing
    assert len(judge.heard) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("end-of-turn")]
    await service.aclose()
    with pytest.raises(RuntimeError, match="service is closed"):
        service.judge("a", says(1), told.of("a"))


async def test_an_impatient_close_leaves_the_thread_to_end_by_itself(judge: Judge) -> None:
    service = EndOfTurnService(judge)
    judge.gate.clear()
    service.judge("a", says(1), lambda probability: None)
    await begun(judge)
    closing = asyncio.create_task(service.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    judge.gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("end-of-turn"):
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()

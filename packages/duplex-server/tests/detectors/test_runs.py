"""A detector that judges runs of frames: the same verdicts as frame by frame, and failures that stay where they are."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duplex_core.detection import RunDetector, SpeechDetector
from duplex_server.detectors import DetectorFailed, DetectorService, EnergyDetector, SileroBatch
from duplex_server.detectors.service import MAX_STEPS
from tests.support.detecting import PATIENCE_S, Session

Samples = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]

FEW = [0, 10_000]
"""How many frames may be judged on the loop: none, so that the worker has all, or any."""


class OneByOne:
    """Judges frames of four samples by what it has heard of their session before. A negative first sample makes it raise."""

    rate_hz: int = 1000
    frame_samples: int = 4

    def __init__(self) -> None:
        self.singles: list[int] = []
        self.threads: list[threading.Thread] = []

    def new_state(self) -> list[int]:
        return []

    def probabilities(self, frames: Floats, states: Sequence[list[int]]) -> Sequence[float]:
        self.singles.append(len(states))
        return self.judged(frames, [1] * len(states), states)

    def judged(self, frames: Floats, counts: Sequence[int], states: Sequence[list[int]]) -> list[float]:
        self.threads.append(threading.current_thread())
        values = np.rint(frames[:, 0] * 32768).astype(int).tolist()
        if min(values) < 0:
            raise ZeroDivisionError(f"a bad frame, {min(values)}")
        owners = [state for state, count in zip(states, counts, strict=True) for _ in range(count)]
        for value, owner in zip(values, owners, strict=True):
            owner.append(value)
        return [heard(owner[: at + 1]) for owner, at in _places(owners)]


def _places(owners: Sequence[list[int]]) -> list[tuple[list[int], int]]:
    """Each row's state, and where in it the row stands."""
    left = {id(owner): sum(each is owner for each in owners) for owner in owners}
    places = []
    for owner in owners:
        places.append((owner, len(owner) - left[id(owner)]))
        left[id(owner)] -= 1
    return places


def heard(values: Sequence[int]) -> float:
    """The probability of the last of these frames: all that came before it count."""
    return sum((at + 1) * value for at, value in enumerate(values)) % 997 / 997


class InRuns(OneByOne):
    """The same for several frames of each session in one call."""

    def __init__(self, few_frames: int = 0) -> None:
        super().__init__()
        self.few_frames = few_frames
        self.runs: list[list[int]] = []
        self.answer: Callable[[list[float]], Sequence[float]] = lambda values: values
        self.on_run: Callable[[], None] = lambda: None

    def run_probabilities(self, frames: Floats, counts: Sequence[int], states: Sequence[list[int]]) -> Sequence[float]:
        self.runs.append(list(counts))
        self.on_run()
        return self.answer(self.judged(frames, counts, states))


class Talker(Session):
    """A session that says one value a frame."""

    def push(self, *values: int) -> None:
        self.feed.push(np.array([[value, 0, 0, 0] for value in values], np.int16).reshape(-1))


@asynccontextmanager
async def serving(detector: SpeechDetector, sessions: int, **limits: Any) -> AsyncIterator[list[Talker]]:
    service = DetectorService(detector, **{"pace_ms": 0, "cores": 2, **limits})
    try:
        yield [Talker(service, str(at)) for at in range(sessions)]
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await service.aclose()


def verdicts(*values: int) -> list[float]:
    return [heard(values[: at + 1]) for at in range(len(values))]


def test_the_network_is_such_a_detector_and_the_loudness_is_none(silero: SileroBatch) -> None:
    assert isinstance(silero, RunDetector)
    assert not isinstance(EnergyDetector(), RunDetector)


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("seed", range(3))
async def test_ragged_runs_are_told_as_frame_by_frame(few: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sound = [rng.integers(0, 1000, rng.integers(0, 60)).tolist() for _ in range(7)]
    told = []
    for detector in (OneByOne(), InRuns(few)):
        async with serving(detector, len(sound)) as sessions:
            left = [list(values) for values in sound]
            cuts = np.random.default_rng(seed)
            while any(left):
                for session, values in zip(sessions, left, strict=True):
                    size = int(cuts.integers(0, 12))
                    session.push(*values[:size])
                    del values[:size]
                await asyncio.sleep(0)
            for session, values in zip(sessions, sound, strict=True):
                await session.until(len(values))
            told.append([session.frames for session in sessions])
            assert not any(session.unjudged for session in sessions)
    assert told[0] == told[1]
    assert [[frame.probability for frame in frames] for frames in told[1]] == [verdicts(*values) for values in sound]
    assert [[frame.start_ms for frame in frames] for frames in told[1]] == [
        [4.0 * at for at in range(len(values))] for values in sound
    ]
    assert isinstance(detector, InRuns)
    assert not detector.singles
    assert max(map(max, detector.runs)) > 1
    assert max(map(len, detector.runs)) > 1


@pytest.mark.parametrize("few", FEW)
async def test_a_run_is_bounded_in_frames_and_in_frames_of_one_session(few: int) -> None:
    async with serving(detector := InRuns(few), 5, max_batch=20) as sessions:
        sessions[0].push(*range(1, 31))
        await sessions[0].until(30)
        for session in sessions:
            session.push(*range(1, 31))
        for session in sessions:
            await session.until(30)
    assert max(map(max, detector.runs)) == MAX_STEPS
    assert max(map(sum, detector.runs)) == 20
    assert [4] * 5 in detector.runs
    assert not detector.singles


@pytest.mark.parametrize("few", FEW)
async def test_in_a_run_that_fails_the_bad_frames_alone_are_given_up(few: int) -> None:
    async with serving(detector := InRuns(few), 4) as sessions:
        first, hurt, worse, last = sessions
        first.push(1, 2, 3)
        hurt.push(4, 5, -6, 7, 8)
        worse.push(-1, 9, -2)
        last.push(10)
        await first.until(3)
        await hurt.until(4, unjudged=1)
        await worse.until(1, unjudged=2)
        await last.until(1)
        assert detector.runs[0] == [3, 5, 3, 1]
        assert set(detector.singles) == {1}, "looked into one session and frame at a time"
        assert first.probabilities == verdicts(1, 2, 3)
        assert last.probabilities == verdicts(10)
        assert hurt.probabilities == [*verdicts(4, 5), *verdicts(7, 8)], "after the bad frame the state is a fresh one"
        assert [frame.start_ms for frame in hurt.frames] == [0, 4, 12, 16]
        assert worse.probabilities == verdicts(9)
        assert [frame.start_ms for frame in worse.frames] == [4]
        assert [(report.start_ms, report.duration_ms) for report in (*hurt.unjudged, *worse.unjudged)] == [
            (8, 4),
            (0, 4),
            (8, 4),
        ]
        for report, value in zip((*hurt.unjudged, *worse.unjudged), (-6, -1, -2), strict=True):
            assert isinstance(report, DetectorFailed)
            assert f"a bad frame, {value}" in str(report)
        assert not first.unjudged
        assert not last.unjudged

        singles = len(detector.singles)
        del detector.runs[:]
        for session in sessions:
            session.push(20, 21)
        for session, before in zip(sessions, (3, 4, 1, 1), strict=True):
            await session.until(before + 2)
        assert first.probabilities == verdicts(1, 2, 3, 20, 21)
        assert last.probabilities == verdicts(10, 20, 21)
        assert hurt.probabilities[4:] == verdicts(7, 8, 20, 21)[2:]
        assert worse.probabilities[1:] == verdicts(20, 21), "its last frame was a bad one"
        assert detector.runs == [[2, 2, 2, 2]]
        assert len(detector.singles) == singles


@pytest.mark.parametrize("few", FEW)
async def test_a_session_alone_in_a_run_that_fails_loses_one_frame_too(few: int) -> None:
    async with serving(detector := InRuns(few), 1) as (session,):
        session.push(1, 2, -3, 4)
        await session.until(3, unjudged=1)
        assert session.probabilities == [*verdicts(1, 2), *verdicts(4)]
        assert [(report.start_ms, report.duration_ms) for report in session.unjudged] == [(8, 4)]
        assert detector.runs[0] == [4]


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize(
    "answer",
    [lambda values: values[:-1], lambda values: [*values, 0.5], lambda values: [*values[:-1], float("nan")]],
    ids=["too few", "too many", "nan"],
)
async def test_an_answer_that_is_no_probability_a_frame_is_looked_into(
    few: int, answer: Callable[[list[float]], Sequence[float]]
) -> None:
    detector = InRuns(few)
    detector.answer = answer
    async with serving(detector, 2) as sessions:
        for session in sessions:
            session.push(1, 2)
        for session in sessions:
            await session.until(2)
        assert not any(session.unjudged for session in sessions)
        assert detector.singles == [1] * 4


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_a_session_that_ends_while_its_run_fails_hears_nothing_of_it(end: str) -> None:
    detector = InRuns()
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(PATIENCE_S)

    detector.on_run = hold
    async with serving(detector, 2) as (session, other):
        session.push(1, -2)
        other.push(3, 4)
        assert await asyncio.to_thread(entered.wait, PATIENCE_S)
        getattr(session.feed, end)()
        if end == "reset":
            session.push(5, 6)
        gate.set()
        await other.until(2)
        await session.until(2 if end == "reset" else 0)
        assert other.probabilities == verdicts(3, 4)
        assert session.probabilities == (verdicts(5, 6) if end == "reset" else [])
        assert not session.unjudged


async def test_few_frames_are_judged_on_the_loop_and_more_on_the_worker() -> None:
    async with serving(detector := InRuns(3), 2) as (one, other):
        loop = threading.current_thread()
        one.push(1, 2)
        other.push(3)
        await other.until(1)
        assert detector.threads == [loop]
        one.push(1, 2)
        other.push(3, 4)
        await other.until(3)
        assert len(detector.threads) == 2
        assert detector.threads[1] is not loop
        one.push(-1)
        await one.until(4, unjudged=1)
        assert detector.threads[2] is loop
        assert detector.threads[3] is not loop, "what is being looked into is the worker's"


async def test_with_one_core_ten_times_as_many_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = threading.current_thread()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    for cores in (None, 1):
        async with serving(detector := InRuns(2), 4, cores=cores) as sessions:
            for session in sessions:
                session.push(1, 2, 3, 4, 5)
            await sessions[-1].until(5)
            assert detector.threads == [loop], "20 frames"
            for session in sessions:
                session.push(1, 2, 3, 4, 5, 6)
            await sessions[-1].until(11)
            assert len(detector.threads) == 2
            assert detector.threads[1] is not loop
    async with serving(detector := InRuns(0), 1, cores=1) as [session]:
        session.push(1)
        await session.until(1)
        assert detector.threads[0] is not loop, "of a detector that says none, none are"


async def test_what_ends_a_program_is_not_swallowed_on_the_loop_and_holds_nobody_up() -> None:
    """A panic of an extension in Rust, say. On the worker the executor swallows it."""

    class Panic(BaseException):
        pass

    def panic() -> None:
        detector.on_run = lambda: None
        raise Panic("all lost")

    detector = InRuns(few_frames=10_000)
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    async with serving(detector, 1) as [session]:
        detector.on_run = panic
        session.push(1, 2, 3)
        await session.until(3)
        session.push(4)
        await session.until(4)
        assert session.probabilities == verdicts(1, 2, 3, 4)
    assert [type(each) for each in told] == [Panic]

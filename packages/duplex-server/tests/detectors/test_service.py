"""The service: order, batches and their pace, the fence, bounds, failures that stay where they are, the end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.detection import SpeechDetector, SpeechFrame
from duplex_server.detectors import (
    DetectorClosed,
    DetectorFailed,
    DetectorOverrun,
    DetectorService,
    EnergyDetector,
    SileroBatch,
)
from duplex_server.detectors.service import ENOUGH
from tests.support.detecting import PATIENCE_S, Session

Samples = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]


class Numbered:
    """A detector for the service's own tests, with four samples a frame.

    It answers each frame with its first sample over 100, checks that every session's frames come in order
    (the second sample counts them), and can be held in mid-call. A negative first sample makes it raise.
    """

    rate_hz: int = 1000
    frame_samples: int = 4

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.answer: Callable[[list[float]], Sequence[float]] = lambda values: values

    def new_state(self) -> list[int]:
        return []

    def probabilities(self, frames: Floats, states: Sequence[list[int]]) -> Sequence[float]:
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        self.calls.append(len(states))
        samples = np.rint(frames * 32768).astype(int)
        if (samples[:, 0] < 0).any():
            raise ZeroDivisionError("a bad frame")
        for row, state in zip(samples, states, strict=True):
            state.append(int(row[1]))
        return self.answer([row[0] / 100 for row in samples.tolist()])

    async def until_entered(self) -> None:
        """Wait until the worker is inside one more call."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE_S)


def numbered(*values: int, first: int = 0) -> Samples:
    """Frames for :class:`Numbered`, one for each value."""
    return np.array([[value, first + at, 0, 0] for at, value in enumerate(values)], np.int16).reshape(-1)


@asynccontextmanager
async def serving(detector: SpeechDetector, **limits: Any) -> AsyncIterator[DetectorService]:
    service = DetectorService(detector, **limits)
    try:
        yield service
    finally:
        if isinstance(detector, Numbered):
            detector.gate.set()
        async with asyncio.timeout(PATIENCE_S):
            await service.aclose()


def chunks(samples: Samples, sizes: Sequence[int]) -> list[Samples]:
    out, at, turn = [], 0, 0
    while at < len(samples):
        out.append(samples[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    return out


class TestOrder:
    @settings(max_examples=25, deadline=None)
    @given(
        values=st.lists(st.integers(0, 100), max_size=40),
        tail=st.integers(0, 3),
        sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
    )
    def test_any_cutting_gives_the_same_frames_in_order(self, values: list[int], tail: int, sizes: list[int]) -> None:
        async def scenario() -> None:
            async with serving(Numbered()) as service:
                session = Session(service)
                pcm = np.concatenate([numbered(*values), np.ones(tail, np.int16)])
                for chunk in chunks(pcm, sizes):
                    session.feed.push(chunk)
                await session.until(len(values))
                assert session.probabilities == [value / 100 for value in values]
                assert session.starts == [4.0 * at for at in range(len(values))]
                assert {frame.duration_ms for frame in session.frames} <= {4.0}
                assert session.feed.position_ms == len(pcm)
                assert session.feed.backlog_ms == 0

        asyncio.run(scenario())

    async def test_the_callers_array_may_change_after_the_push(self) -> None:
        async with serving(detector := Numbered()) as service:
            detector.gate.clear()
            session, pcm = Session(service), numbered(1, 2, 3)
            session.feed.push(pcm)
            pcm[:] = 99
            detector.gate.set()
            await session.until(3)
            assert session.probabilities == [0.01, 0.02, 0.03]

    async def test_the_network_hears_in_ragged_batches_what_it_hears_alone(
        self, silero: SileroBatch, voices: list[Samples]
    ) -> None:
        async with serving(silero) as service:
            sessions = [Session(service, str(at)) for at in range(len(voices))]
            cut = [chunks(pcm, [320 + 97 * at, 1, 0, 1600]) for at, pcm in enumerate(voices)]
            for step in range(max(map(len, cut))):
                for session, parts in zip(sessions, cut, strict=True):
                    if step < len(parts):
                        session.feed.push(parts[step])
                await asyncio.sleep(0)
            for session, pcm in zip(sessions, voices, strict=True):
                await session.until(len(pcm) // 512)
            for session, pcm in zip(sessions, voices, strict=True):
                state = silero.new_state()
                frames = pcm[: len(pcm) // 512 * 512].reshape(-1, 512).astype(np.float32) / np.float32(32768)
                alone = [silero.probabilities(frame[None], [state])[0] for frame in frames]
                np.testing.assert_allclose(session.probabilities, alone, rtol=0, atol=1e-5)
                assert session.starts == [32.0 * at for at in range(len(frames))]
                assert {frame.duration_ms for frame in session.frames} == {32.0}

    async def test_the_loudness_detector_serves_too(self, voices: list[Samples]) -> None:
        async with serving(EnergyDetector()) as service:
            session = Session(service)
            session.feed.push(voices[0])
            await session.until(len(voices[0]) // 512)
            assert max(session.probabilities) > 0.9


class TestBatches:
    async def test_what_is_pushed_in_one_turn_of_the_loop_is_one_batch(self) -> None:
        async with serving(detector := Numbered()) as service:
            sessions = [Session(service, str(at)) for at in range(100)]
            for session in sessions:
                session.feed.push(numbered(50))
            for session in sessions:
                await session.until(1)
            assert detector.calls == [100]
            assert service.stats.batches == 1
            assert service.stats.frames == 100

    async def test_what_arrives_while_the_worker_is_busy_is_the_next_batch(self) -> None:
        async with serving(detector := Numbered()) as service:
            sessions = [Session(service, str(at)) for at in range(10)]
            detector.gate.clear()
            sessions[0].feed.push(numbered(1))
            await detector.until_entered()
            for session in sessions:
                session.feed.push(numbered(2))
                await asyncio.sleep(0)
            detector.gate.set()
            for session in sessions:
                await session.until(1)
            await sessions[0].until(2)
            assert detector.calls == [1, 10]

    async def test_no_batch_is_larger_than_allowed_and_nobody_is_left_out(self) -> None:
        async with serving(detector := Numbered(), max_batch=16) as service:
            sessions = [Session(service, str(at)) for at in range(40)]
            for session in sessions:
                session.feed.push(numbered(1, 2))
            for session in sessions:
                await session.until(2)
            assert max(detector.calls) == 16
            assert sum(detector.calls) == 80
            assert all(session.probabilities == [0.01, 0.02] for session in sessions)

    async def test_a_long_push_is_told_in_lists_and_does_not_keep_others_waiting(self) -> None:
        async with serving(detector := Numbered()) as service:
            long, short = Session(service, "long"), Session(service, "short")
            detector.gate.clear()
            long.feed.push(numbered(*range(30)))
            await detector.until_entered()
            short.feed.push(numbered(7))
            detector.gate.set()
            await short.until(1)
            assert len(long.frames) <= 16
            await long.until(30)
            assert long.told == [8, 8, 8, 6]
            assert detector.calls == [1] * 8 + [2] + [1] * 21

    async def test_the_worker_is_one_thread_and_the_loop_never_waits_for_it(self) -> None:
        async with serving(detector := Numbered()) as service:
            session = Session(service)
            detector.gate.clear()
            session.feed.push(numbered(1))
            await detector.until_entered()
            session.feed.push(numbered(2, 3))
            assert session.frames == []
            assert session.feed.backlog_ms == 8
            assert service.stats.waiting == 2
            detector.gate.set()
            await session.until(3)
            assert len(detector.threads) == 1
            assert threading.current_thread().name not in detector.threads


class TestPace:
    """With a pace of an hour, what waits for the timer never comes."""

    async def test_a_frame_after_a_pause_does_not_wait(self) -> None:
        async with serving(Numbered(), pace_ms=3_600_000) as service:
            session = Session(service)
            session.feed.push(numbered(1))
            await session.until(1)

    async def test_a_frame_after_a_pause_of_a_third_of_the_pace_does_not_wait(self) -> None:
        async with serving(Numbered(), pace_ms=30_000) as service:
            session = Session(service)
            session.feed.push(numbered(1))
            await session.until(1)
            session.feed.push(numbered(2))
            await asyncio.sleep(0)
            assert service.stats.waiting == 1
        async with serving(Numbered(), pace_ms=30_000) as service:
            session = Session(service)
            loop = asyncio.get_running_loop()
            session.feed.push(numbered(1))
            await session.until(1)
            now = loop.time()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loop, "time", lambda: now + 10.1)
                session.feed.push(numbered(2))
                await session.until(2)

    async def test_few_frames_right_after_a_batch_wait_until_they_are_enough(self) -> None:
        async with serving(detector := Numbered(), pace_ms=3_600_000) as service:
            sessions = [Session(service, str(at)) for at in range(ENOUGH)]
            sessions[0].feed.push(numbered(1))
            await sessions[0].until(1)
            for session in sessions[:-1]:
                session.feed.push(numbered(2))
                await asyncio.sleep(0)
            assert service.stats.waiting == ENOUGH - 1
            assert service.stats.batches == 1
            sessions[-1].feed.push(numbered(2))
            for session in sessions:
                await session.until(1)
            await sessions[0].until(2)
            assert detector.calls == [1, ENOUGH]

    async def test_audio_that_is_behind_does_not_wait(self) -> None:
        async with serving(Numbered(), pace_ms=3_600_000) as service:
            session = Session(service)
            session.feed.push(numbered(1))
            await session.until(1)
            session.feed.push(numbered(*range(2, 10)))
            await session.until(9)

    async def test_a_chunk_of_a_few_frames_waits_for_the_chunks_of_others(self) -> None:
        async with serving(detector := Numbered(), pace_ms=3_600_000) as service:
            sessions = [Session(service, str(at)) for at in range(ENOUGH)]
            sessions[0].feed.push(numbered(1))
            await sessions[0].until(1)
            for session in sessions[:-1]:
                session.feed.push(numbered(2, 3, 4))
            await asyncio.sleep(0)
            assert service.stats.waiting == 3 * (ENOUGH - 1)
            sessions[-1].feed.push(numbered(2, 3, 4))
            for session in sessions:
                await session.until(3)
            await sessions[0].until(4)
            assert detector.calls == [1, ENOUGH, ENOUGH, ENOUGH]

    async def test_the_timer_starts_what_waits_and_starts_it_once(self) -> None:
        async with serving(detector := Numbered(), pace_ms=30) as service:
            sessions = [Session(service, str(at)) for at in range(3)]
            loop = asyncio.get_running_loop()
            began = loop.time()
            sessions[0].feed.push(numbered(1))
            await sessions[0].until(1)
            for session in sessions:
                session.feed.push(numbered(2))
            await sessions[2].until(1)
            assert loop.time() - began >= 0.029
            assert detector.calls == [1, 3]

    async def test_a_timer_that_a_larger_batch_has_overtaken_starts_nothing(self) -> None:
        async with serving(detector := Numbered(), pace_ms=400) as service:
            sessions = [Session(service, str(at)) for at in range(ENOUGH)]
            loop = asyncio.get_running_loop()
            sessions[0].feed.push(numbered(1))
            await sessions[0].until(1)
            sessions[0].feed.push(numbered(2))  # sets the timer, 400 ms from the first batch
            await asyncio.sleep(0.2)
            began = loop.time()
            for session in sessions[1:]:
                session.feed.push(numbered(1))
            await sessions[1].until(1)
            sessions[1].feed.push(numbered(2))
            await sessions[1].until(2)
            assert detector.calls == [1, ENOUGH, 1]
            assert loop.time() - began >= 0.39

    def test_a_timer_that_rings_a_little_early_rings_once(self) -> None:
        """As uvloop's do, by up to a millisecond."""
        set_for: list[float] = []

        class Early(asyncio.SelectorEventLoop):
            def call_at(self, when: float, callback: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
                if callback.__name__ == "_ring":
                    set_for.append(when)
                    assert len(set_for) < 10, "the timer is set anew, again and again"
                    when -= 0.005
                return super().call_at(when, callback, *args, **options)

        async def judge_two() -> None:
            async with serving(detector := Numbered(), pace_ms=200) as service:
                session = Session(service)
                session.feed.push(numbered(1))
                await session.until(1)
                session.feed.push(numbered(2))
                await session.until(2)
                assert detector.calls == [1, 1]

        with asyncio.Runner(loop_factory=Early) as runner:
            runner.run(judge_two())
        assert len(set_for) <= 1

    async def test_closing_reports_what_waits_for_the_timer(self) -> None:
        service = DetectorService(Numbered(), pace_ms=3_600_000)
        session = Session(service)
        session.feed.push(numbered(1))
        await session.until(1)
        session.feed.push(numbered(2))
        await asyncio.sleep(0)
        await service.aclose()
        assert [type(report) for report in session.unjudged] == [DetectorClosed]


class TestFence:
    async def test_reset_drops_what_waits_and_what_is_in_the_worker(self) -> None:
        async with serving(detector := Numbered()) as service:
            session, other = Session(service), Session(service, "other")
            detector.gate.clear()
            session.feed.push(numbered(1, 2, 3))
            other.feed.push(numbered(1, 2))
            await detector.until_entered()
            session.feed.push(numbered(4, 5)[:-1])
            session.feed.reset()
            session.feed.push(numbered(6))
            detector.gate.set()
            await session.until(1)
            await other.until(2)
            assert session.probabilities == [0.06]
            assert session.starts == [19.0]
            assert session.unjudged == []
            assert other.probabilities == [0.01, 0.02]

    async def test_reset_gives_the_detector_a_fresh_state(self) -> None:
        class Counting(Numbered):
            def probabilities(self, frames: Floats, states: Sequence[list[int]]) -> Sequence[float]:
                super().probabilities(frames, states)
                return [len(state) / 100 for state in states]

        async with serving(Counting()) as service:
            session = Session(service)
            session.feed.push(numbered(1, 2, 3))
            await session.until(3)
            session.feed.reset()
            session.feed.push(numbered(4))
            await session.until(4)
            assert session.probabilities == [0.01, 0.02, 0.03, 0.01]

    async def test_a_session_may_reset_and_close_from_its_callback(self) -> None:
        async with serving(Numbered()) as service:
            session, later = Session(service, "s"), Session(service, "later")
            heard: list[float] = []

            def on_frames(frames: Sequence[SpeechFrame]) -> None:
                heard.extend(frame.probability for frame in frames)
                feed.reset() if len(heard) < 16 else feed.close()

            feed = service.attach("resetting", on_frames, session.on_unjudged)
            feed.push(numbered(*range(10)))
            later.feed.push(numbered(1))
            await later.until(1)
            feed.push(numbered(*range(20, 40)))
            later.feed.push(numbered(*range(40)))
            await later.until(41)
            assert heard == [at / 100 for at in (*range(8), *range(20, 28))]
            with pytest.raises(RuntimeError, match="feed of resetting is closed"):
                feed.push(numbered(1))

    @pytest.mark.parametrize("end", ["reset", "close"])
    async def test_a_session_that_another_ends_in_the_same_batch_hears_nothing_more(self, end: str) -> None:
        async with serving(Numbered()) as service:
            victim, last = Session(service, "victim"), Session(service, "last")
            first = service.attach("first", lambda _: getattr(victim.feed, end)(), victim.on_unjudged)
            first.push(numbered(1))
            victim.feed.push(numbered(1))
            last.feed.push(numbered(1))
            await last.until(1)
            assert service.stats.batches == 1
            assert victim.frames == []

    async def test_nothing_is_told_after_close_and_the_name_is_free(self) -> None:
        async with serving(detector := Numbered()) as service:
            session = Session(service)
            detector.gate.clear()
            session.feed.push(numbered(1, 2))
            await detector.until_entered()
            session.feed.close()
            session.feed.close()
            again = Session(service)
            session.feed.close()
            again.feed.push(numbered(3))
            detector.gate.set()
            await again.until(1)
            assert session.frames == []
            assert again.probabilities == [0.03]
            with pytest.raises(ValueError, match="feed of s is open already"):
                Session(service)


class TestBounds:
    async def test_beyond_its_backlog_a_session_loses_the_oldest_and_is_told(self) -> None:
        async with serving(detector := Numbered(), max_backlog_ms=40) as service:
            session, other = Session(service), Session(service, "other")
            detector.gate.clear()
            session.feed.push(numbered(0))
            await detector.until_entered()
            session.feed.push(numbered(*range(1, 9)))
            session.feed.push(numbered(*range(9, 15)))
            other.feed.push(numbered(5))
            assert session.feed.backlog_ms == 40
            detector.gate.set()
            await session.until(11, unjudged=1)
            await other.until(1)
            assert session.probabilities == [at / 100 for at in (0, *range(5, 15))]
            assert session.starts == [4.0 * at for at in (0, *range(5, 15))]
            report = session.unjudged[0]
            assert isinstance(report, DetectorOverrun)
            assert (report.start_ms, report.duration_ms) == (4.0, 16.0)
            assert "16 ms of audio from 4 ms on were not judged" in str(report)
            assert other.unjudged == []
            assert service.stats.overrun == 4

    async def test_a_whole_utterance_in_one_push_fits(self, silero: SileroBatch) -> None:
        async with serving(silero) as service:
            session = Session(service)
            session.feed.push(np.zeros(16000 * 30, np.int16))
            await session.until(16000 * 30 // 512)
            assert session.unjudged == []

    @pytest.mark.parametrize(
        ("limits", "message"),
        [({"max_batch": 0}, "max_batch must be at least 1"), ({"max_backlog_ms": 3.9}, "a frame of 4.0 ms")],
    )
    async def test_limits_that_cannot_work_are_refused(self, limits: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DetectorService(Numbered(), **limits)

    @pytest.mark.parametrize("pcm", [np.zeros(4, np.float32), np.zeros((2, 2), np.int16), np.zeros(4, np.int32)])
    async def test_only_int16_is_taken(self, pcm: Any) -> None:
        async with serving(Numbered()) as service:
            with pytest.raises(TypeError, match=r"takes int16\[n\] samples"):
                Session(service).feed.push(pcm)


class TestFailure:
    async def test_a_frame_that_the_detector_raises_on_costs_its_session_that_frame_alone(self) -> None:
        async with serving(Numbered()) as service:
            sessions = [Session(service, str(at)) for at in range(4)]
            for at, session in enumerate(sessions):
                session.feed.push(numbered(1, -1, 3, 4) if at == 2 else numbered(1, 2, 3, 4))
            for at, session in enumerate(sessions):
                if at != 2:
                    await session.until(4)
                    assert session.probabilities == [0.01, 0.02, 0.03, 0.04]
                    assert session.unjudged == []
            hurt = sessions[2]
            await hurt.until(3, unjudged=1)
            assert hurt.probabilities == [0.01, 0.03, 0.04]
            assert hurt.starts == [0.0, 8.0, 12.0]
            report = hurt.unjudged[0]
            assert isinstance(report, DetectorFailed)
            assert (report.start_ms, report.duration_ms) == (4.0, 4.0)
            assert isinstance(report.__cause__, ZeroDivisionError)
            assert "a bad frame" in str(report)
            assert service.stats.failed == 1

    async def test_what_is_no_exception_of_the_usual_kind_is_a_failure_too(self) -> None:
        """As a panic of an extension in Rust, say."""

        class Panic(BaseException):
            pass

        class Panicking(Numbered):
            def probabilities(self, frames: Floats, states: Sequence[list[int]]) -> Sequence[float]:
                if frames[0, 0] < 0:
                    raise Panic("all lost")
                return super().probabilities(frames, states)

        async with serving(Panicking()) as service:
            session = Session(service)
            session.feed.push(numbered(1, -1, 3))
            await session.until(2, unjudged=1)
            assert "all lost" in str(session.unjudged[0])
            assert session.probabilities == [0.01, 0.03]

    async def test_after_a_failure_the_session_has_a_fresh_state(self) -> None:
        class Counting(Numbered):
            def probabilities(self, frames: Floats, states: Sequence[list[int]]) -> Sequence[float]:
                super().probabilities(frames, states)
                return [len(state) / 100 for state in states]

        async with serving(Counting()) as service:
            session, other = Session(service), Session(service, "other")
            session.feed.push(numbered(1, 1, -1, 1))
            other.feed.push(numbered(1, 1, 1, 1))
            await session.until(3, unjudged=1)
            await other.until(4)
            assert session.probabilities == [0.01, 0.02, 0.01]
            assert other.probabilities == [0.01, 0.02, 0.03, 0.04]

    @pytest.mark.parametrize(
        "answer",
        [lambda values: [*values, 0.5], lambda _: [], lambda _: [float("nan")], lambda _: [1.5]],
        ids=["too many", "none", "nan", "above one"],
    )
    async def test_an_answer_that_is_no_probability_a_frame_is_a_failure(
        self, answer: Callable[[list[float]], Sequence[float]]
    ) -> None:
        async with serving(detector := Numbered()) as service:
            detector.answer = answer
            session = Session(service)
            session.feed.push(numbered(1))
            await session.until(0, unjudged=1)
            assert session.frames == []
            assert "must return 1 probabilities in 0..1" in str(session.unjudged[0])

    async def test_a_session_that_is_reset_while_its_frame_fails_hears_nothing_of_it(self) -> None:
        async with serving(detector := Numbered()) as service:
            session, other = Session(service), Session(service, "other")
            detector.gate.clear()
            session.feed.push(numbered(-1, 2))
            other.feed.push(numbered(1, 2))
            await detector.until_entered()
            session.feed.reset()
            session.feed.push(numbered(5))
            detector.gate.set()
            await session.until(1)
            await other.until(2)
            assert session.probabilities == [0.05]
            assert session.unjudged == []

    async def test_a_callback_that_raises_hurts_no_other_session(self) -> None:
        errors: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(repr(context.get("exception")))
        )

        def broken(_: Sequence[SpeechFrame]) -> None:
            raise KeyError("broken session")

        async with serving(Numbered()) as service:
            before, after = Session(service, "before"), Session(service, "after")
            before.feed.push(numbered(1))
            feed = service.attach("broken", broken, before.on_unjudged)
            feed.push(numbered(1))
            after.feed.push(numbered(1))
            await before.until(1)
            await after.until(1)
            feed.push(numbered(2))
            after.feed.push(numbered(2))
            await after.until(2)
        assert errors == ["KeyError('broken session')"] * 2


def worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("speech-detector")]


class TestClose:
    async def test_close_hands_out_the_batch_at_work_and_reports_the_rest(self) -> None:
        service = DetectorService(detector := Numbered())
        session, idle = Session(service), Session(service, "idle")
        detector.gate.clear()
        session.feed.push(numbered(1, 2))
        await detector.until_entered()
        session.feed.push(numbered(3, 4, 5))
        closing = [asyncio.create_task(service.aclose()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in closing)
        detector.gate.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*closing)
        assert session.probabilities == [0.01, 0.02]
        assert len(session.unjudged) == 1
        report = session.unjudged[0]
        assert isinstance(report, DetectorClosed)
        assert (report.start_ms, report.duration_ms) == (8.0, 12.0)
        assert idle.unjudged == []
        assert worker_threads() == []
        await service.aclose()
        with pytest.raises(RuntimeError, match="service is closed"):
            Session(service, "late")
        with pytest.raises(RuntimeError, match="feed of s is closed"):
            session.feed.push(numbered(1))

    async def test_a_service_that_never_worked_closes(self) -> None:
        service = DetectorService(Numbered())
        await service.aclose()
        assert worker_threads() == []

    async def test_a_cancelled_close_lets_the_cancellation_through_and_still_reports(self) -> None:
        service = DetectorService(detector := Numbered())
        session = Session(service)
        detector.gate.clear()
        session.feed.push(numbered(1, 2))
        await detector.until_entered()
        session.feed.push(numbered(3))
        closing = asyncio.create_task(service.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await session.until(0, unjudged=1)
        assert (session.unjudged[0].start_ms, session.unjudged[0].duration_ms) == (0.0, 12.0)
        detector.gate.set()
        async with asyncio.timeout(PATIENCE_S):
            await service.aclose()
        assert session.frames == []
        assert worker_threads() == []

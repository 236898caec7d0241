"""Reading a reference voice through ONNX models: what they are fed, what becomes of it, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from model_minicpmo.errors import CheckpointError, RecordingError
from model_minicpmo.gpu.checkpoint import Token2WavFiles, find_token2wav
from model_minicpmo.gpu.token2wav.noise import SeededNoise
from model_minicpmo.gpu.token2wav.synthesis import Chunk, load_token2wav
from model_minicpmo.gpu.voice.reader import VoiceReader
from model_minicpmo.gpu.voice.resample import resample
from model_minicpmo.gpu.voice.spectra import prompt_frames, speaker_frames, speech_frames
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY
from model_minicpmo.testing.tiny_speech import SPEAKER_FILE, TOKENIZER_FILE, write_voice_models

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.engines

CODES = TINY.talker.codes - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TINY)
    write_voice_models(made / "assets" / "token2wav", codes=CODES)
    return made


@pytest.fixture
def files(folder: Path) -> Token2WavFiles:
    return find_token2wav(folder)


def _recording(rate: int, seconds: float) -> NDArray[np.float32]:
    times = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(1).standard_normal(len(times))
    return (0.2 * np.sin(2 * np.pi * (150 + 50 * times) * times) + 0.02 * noise).astype(np.float32)


@pytest.mark.parametrize(("rate", "seconds"), [(16_000, 2.0), (24_000, 1.23), (44_100, 0.9)])
def test_a_voice(files: Token2WavFiles, rate: int, seconds: float) -> None:
    """What the models say is compared with onnx's own evaluator, fed with the features by the published names."""
    recording = _recording(rate, seconds)
    voice = VoiceReader(files).read(recording, rate=rate)
    speech = resample(recording, rate=rate, to=16_000)
    frames = speech_frames(speech)[None]
    [codes] = ReferenceEvaluator(str(files.speech_tokenizer)).run(
        None, {"feats": frames, "feats_length": np.array([frames.shape[2]], dtype=np.int32)}
    )
    [vector] = ReferenceEvaluator(str(files.speaker_model)).run(None, {"input": speaker_frames(speech)[None]})
    mel = prompt_frames(resample(recording, rate=rate, to=24_000))
    assert voice.codes.tolist() == codes[0].tolist()
    assert voice.codes.shape[0] == -(-frames.shape[2] // 4)
    torch.testing.assert_close(voice.speaker, torch.from_numpy(vector[0]), atol=1e-4, rtol=1e-5)
    assert voice.mel.shape == (2 * voice.codes.shape[0], 80)
    together = min(len(mel), voice.mel.shape[0])
    assert torch.equal(voice.mel[:together], torch.from_numpy(mel[:together]))
    assert torch.equal(voice.mel[together:], voice.mel[together - 1 : together].expand_as(voice.mel[together:]))


def test_a_voice_that_was_read_speaks(files: Token2WavFiles) -> None:
    token2wav = load_token2wav(files, device="cpu", steps=1)
    state = token2wav.open(VoiceReader(files).read(_recording(16_000, 1.0), rate=16_000))
    chunk = Chunk(state=state, codes=range(28), last=False, noise=SeededNoise(0))
    [sound] = token2wav.advance([chunk])
    assert sound.samples.shape == (24_000,)
    assert sound.samples[4000:].abs().max() > 0
    [again] = token2wav.advance([Chunk(state=state, codes=range(28), last=False, noise=SeededNoise(0))])
    assert torch.equal(again.samples, sound.samples)


@pytest.mark.parametrize("seconds", [0.4, 31.0])
def test_too_short_and_too_long_are_refused_with_their_length(files: Token2WavFiles, seconds: float) -> None:
    with pytest.raises(RecordingError, match=rf"lasts {seconds:.2f} s; it has to last between 0.5 and 30 s"):
        VoiceReader(files).read(_recording(16_000, seconds), rate=16_000)


def test_stereo_and_no_numbers_are_refused(files: Token2WavFiles) -> None:
    reader = VoiceReader(files)
    with pytest.raises(RecordingError, match="mono"):
        reader.read(np.zeros((16_000, 2), dtype=np.float32), rate=16_000)
    with pytest.raises(RecordingError, match="no numbers"):
        reader.read(np.full(16_000, np.nan, dtype=np.float32), rate=16_000)


@pytest.mark.parametrize("name", [TOKENIZER_FILE, SPEAKER_FILE])
def test_a_missing_model_is_named(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, TINY)
    write_voice_models(tmp_path / "assets" / "token2wav", codes=CODES)
    (tmp_path / "assets" / "token2wav" / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: is missing"):
        VoiceReader(find_token2wav(tmp_path))


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    assets = tmp_path / "assets" / "token2wav"
    write_voice_models(assets, codes=CODES)
    (assets / TOKENIZER_FILE).write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=f"{TOKENIZER_FILE}: cannot be loaded as an ONNX model"):
        VoiceReader(find_token2wav(tmp_path))


def test_a_model_with_other_inputs_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    assets = tmp_path / "assets" / "token2wav"
    write_voice_models(assets, codes=CODES)
    onnx.save(onnx.load(str(assets / SPEAKER_FILE)), str(assets / TOKENIZER_FILE))
    with pytest.raises(CheckpointError, match=r"takes the inputs \['input'\]; the published model takes 2"):
        VoiceReader(find_token2wav(tmp_path))

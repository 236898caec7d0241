"""The audio front end against the vendor's recorded runs: spectrogram, encoder and embeddings, unit by unit."""

from __future__ import annotations

import json
import wave
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model_minicpmo.gpu.audio import AudioFrontEnd
from model_minicpmo.gpu.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.engines

MEL = 1e-5
EMBEDS = 1e-5
HIDDEN = 5e-5

RUNS = {
    "duplex_greedy": "user.wav",
    "duplex_sampled": "user.wav",
    "duplex_vision": "user.wav",
    "duplex_window_basic": "long.wav",
    "duplex_window_context": "long.wav",
}


@pytest.fixture(scope="module")
def front_end(goldens: Path) -> AudioFrontEnd:
    return AudioFrontEnd.load(open_checkpoint(goldens / "checkpoint"), dtype=torch.float32, device="cpu")


def sound(path: Path) -> Tensor:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return torch.from_numpy(samples.astype(np.float32) / 32768)


def second(samples: Tensor, unit: int) -> Tensor:
    return samples[16_000 * unit : 16_000 * (unit + 1)]


def apart(ours: Tensor, recorded: Tensor) -> float:
    assert ours.shape == recorded.shape
    return float((ours.double() - recorded.double()).abs().max())


@pytest.mark.parametrize("run", RUNS)
def test_every_unit_of_a_run_gives_the_recorded_embeddings(run: str, goldens: Path, front_end: AudioFrontEnd) -> None:
    recorded = load_file(goldens / run / "tensors.safetensors")
    units = json.loads((goldens / run / "run.json").read_text(encoding="utf-8"))["units"]
    samples = sound(goldens / "inputs" / RUNS[run])
    stream = front_end.open()
    for unit in units:
        number = unit["unit"]
        [(stream, encoded)] = front_end.encode([(stream, second(samples, number))])
        name = f"u{number:02d}"
        assert apart(encoded.embeds, recorded[f"{name}.audio_embeds"]) <= EMBEDS
        assert stream.encoded == unit["encoder_kv_len"]
        if f"{name}.mel" in recorded:
            assert apart(encoded.mel, recorded[f"{name}.mel"]) <= MEL
            assert apart(encoded.hidden, recorded[f"{name}.encoder"]) <= HIDDEN
    assert stream.units == len(units)
    assert ("u00.mel" in recorded) == (run in {"duplex_greedy", "duplex_sampled"})


def test_thirty_six_seconds_with_their_drops_and_resets(goldens: Path, front_end: AudioFrontEnd) -> None:
    recorded = load_file(goldens / "frontend_long" / "tensors.safetensors")
    units = json.loads((goldens / "frontend_long" / "run.json").read_text(encoding="utf-8"))["units"]
    samples = sound(goldens / "inputs" / "long.wav")
    stream = front_end.open()
    for unit in units:
        number = unit["unit"]
        before = stream
        [(stream, encoded)] = front_end.encode([(stream, second(samples, number))])
        assert encoded.mel.shape[2] == unit["mel_frames"]
        assert apart(encoded.mel[0, ::8, ::4], recorded[f"u{number:02d}.mel_sub"]) <= MEL
        assert float(encoded.mel.double().sum()) == pytest.approx(unit["mel_sum"], abs=MEL * encoded.mel.numel())
        assert apart(encoded.embeds, recorded[f"u{number:02d}.embeds"]) <= EMBEDS
        counted = {
            "encoder_kv_before": before.encoded if stream.encoded > before.encoded else 0,
            "encoder_kv_after": stream.encoded,
            "chunk_count": stream.units,
            "last_emitted_T": stream.mel.emitted,
            "buffer_len": stream.mel.samples.shape[0],
            "left_samples_dropped": stream.mel.dropped,
            "base_T": stream.mel.dropped // 160,
            "buffer_left": stream.waiting.shape[0],
        }
        recorded_counts = {name: unit[name] for name in counted}
        if stream.encoded < before.encoded:
            del counted["encoder_kv_before"], recorded_counts["encoder_kv_before"]
        assert counted == recorded_counts
    assert units[-1]["left_samples_dropped"] == 160_000
    assert [unit["unit"] for unit in units if unit["encoder_kv_after"] == 50] == [0, 29]


def test_the_reference_voice(goldens: Path, front_end: AudioFrontEnd) -> None:
    recorded = load_file(goldens / "duplex_greedy" / "tensors.safetensors")
    prepared: dict[str, Any] = json.loads((goldens / "duplex_greedy" / "run.json").read_text(encoding="utf-8"))[
        "prepare"
    ]
    encoded = front_end.encode_clip(sound(goldens / "inputs" / "reference_voice.wav"))
    assert apart(encoded.mel, recorded["prompt.reference_mel"]) <= MEL
    assert apart(encoded.hidden, recorded["prompt.reference_encoder"]) <= HIDDEN
    begin = len(prepared["prefix_ids"])
    fed = recorded["feed.embeds"][begin : prepared["cache_len"] - len(prepared["suffix_ids"])]
    assert apart(encoded.embeds, fed) <= EMBEDS


def test_the_sound_of_a_chat(goldens: Path, front_end: AudioFrontEnd) -> None:
    recorded = load_file(goldens / "chat_audio" / "tensors.safetensors")
    [[[begin, end]]] = json.loads((goldens / "chat_audio" / "run.json").read_text(encoding="utf-8"))["audio_bounds"]
    encoded = front_end.encode_clip(sound(goldens / "inputs" / "question.wav"))
    assert apart(encoded.embeds, recorded["input_embeds"][begin:end]) <= EMBEDS

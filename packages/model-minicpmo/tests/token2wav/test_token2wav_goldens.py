"""Flow, vocoder and streaming against the vendor's recorded calls, and the sound of every unit of the recorded runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from model_minicpmo.gpu.checkpoint import find_token2wav
from model_minicpmo.gpu.token2wav.chunks import SILENT_CODE, WaitingCodes, chat_chunks, silence_before
from model_minicpmo.gpu.token2wav.flow import Memory, Voice
from model_minicpmo.gpu.token2wav.noise import SourceNoise, no_noise
from model_minicpmo.gpu.token2wav.synthesis import Chunk, StreamState, Token2Wav, load_token2wav, pcm16

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.engines

FRAMES = 5e-5
"""Tolerance of mel frames and caches."""
SAMPLES = 1e-3
"""Tolerance of samples: the source's phase adds up over a call."""
DUPLEX_RUNS = {
    "duplex_greedy": 8,
    "duplex_sampled": 8,
    "duplex_window_basic": 8,
    "duplex_window_context": 8,
    "duplex_vision": 8,
    "duplex_greedy_release": 28,
}
"""The runs, with how few codes make a chunk once a turn has begun."""


@dataclass(frozen=True)
class Recorded:
    inputs: dict[str, Any]
    voice: Voice
    noise: Tensor

    def codes(self, chunk: int) -> list[int]:
        first, last = self.inputs["chunks"][chunk]
        return list(self.inputs["tokens"][first:last])

    def is_last(self, chunk: int) -> bool:
        return bool(chunk == self.inputs["last_chunk_index"])


@cache
def _recorded(goldens: Path) -> Recorded:
    tensors = load_file(goldens / "token2wav" / "inputs.safetensors")
    return Recorded(
        inputs=json.loads((goldens / "token2wav" / "inputs.json").read_text()),
        voice=Voice(
            codes=tensors["prompt_tokens"][0].long(), mel=tensors["prompt_mel"][0], speaker=tensors["spk_emb"][0]
        ),
        noise=tensors["flow_rand_noise"][0],
    )


@cache
def _token2wav(goldens: Path, steps: int) -> Token2Wav:
    files = find_token2wav(goldens / "checkpoint")
    return load_token2wav(files, device="cpu", steps=steps, noise=_recorded(goldens).noise)


@cache
def _opened(goldens: Path, steps: int) -> StreamState:
    return _token2wav(goldens, steps).open(_recorded(goldens).voice)


def _close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


def test_the_caches_after_a_voice(goldens: Path) -> None:
    expected = load_file(goldens / "token2wav" / "stream_noise.safetensors")
    flow = _opened(goldens, 10).flow
    doubled = torch.cat([flow.encoder.low, flow.encoder.low], dim=3)
    _close(torch.cat([doubled, flow.encoder.high]), expected["prompt_cache.conformer_att_cache"], FRAMES)
    convs = torch.cat([flow.encoder.ahead, flow.encoder.rise], dim=2)
    _close(convs, expected["prompt_cache.conformer_cnn_cache"], FRAMES)
    _close(flow.keys[[0, 4, 9]], expected["prompt_cache.estimator_att_cache"], FRAMES)
    _close(flow.convs[[0, 4, 9]], expected["prompt_cache.estimator_cnn_cache"], FRAMES)


@pytest.mark.parametrize(
    ("name", "steps", "chunks"),
    [("stream_noise", 10, 3), ("stream_zero_noise", 10, 6), ("stream_5_steps_zero_noise", 5, 6)],
)
def test_a_stream(goldens: Path, name: str, steps: int, chunks: int) -> None:
    recorded, expected = _recorded(goldens), load_file(goldens / "token2wav" / f"{name}.safetensors")
    lengths = json.loads((goldens / "token2wav" / "outputs.json").read_text())
    draws = load_file(goldens / "token2wav" / "hift_noise.safetensors") if name == "stream_noise" else None
    token2wav, state = _token2wav(goldens, steps), _opened(goldens, steps)
    told = lengths[{"stream_noise": "noise", "stream_zero_noise": "zero_noise"}.get(name, "five_steps")]["chunks"]
    for chunk in range(chunks):
        [sound] = token2wav.advance(
            [
                Chunk(
                    state=state,
                    codes=recorded.codes(chunk),
                    last=recorded.is_last(chunk),
                    noise=_draws(draws[f"chunk{chunk}.draw1.randn"][0].float()) if draws else no_noise,
                )
            ]
        )
        state = sound.state
        assert state.flow.frames == told[chunk]["estimator_att_len"]
        assert state.flow.encoder.high.shape[3] == told[chunk]["conformer_att_len"]
        if f"chunk{chunk}.mel" in expected:
            _close(sound.mel, expected[f"chunk{chunk}.mel"][0], FRAMES)
        if f"chunk{chunk}.wav" in expected:
            _close(sound.samples, expected[f"chunk{chunk}.wav"][0], SAMPLES)
        if f"chunk{chunk}.source_tail" in expected:
            _close(state.source, expected[f"chunk{chunk}.source_tail"][0], SAMPLES)


def _draws(recorded: Tensor) -> SourceNoise:
    def give(samples: int, harmonics: int) -> Tensor:
        assert recorded.shape == (samples, harmonics)
        return recorded

    return give


def test_pitch_of_a_chunk(goldens: Path) -> None:
    expected = load_file(goldens / "token2wav" / "stream_noise.safetensors")
    pitch = _token2wav(goldens, 10).vocoder.f0_predictor(expected["chunk0.mel"])
    _close(pitch, expected["chunk0.f0"], 1e-3)


def test_all_codes_in_one_go(goldens: Path) -> None:
    recorded, expected = _recorded(goldens), load_file(goldens / "token2wav" / "offline_zero_noise.safetensors")
    token2wav = _token2wav(goldens, 10)
    samples, mel = token2wav.whole(recorded.voice, recorded.inputs["tokens"][3:103], no_noise)
    _close(mel, expected["mel"][0], FRAMES)
    assert samples.shape == expected["wav"][0].shape
    # From the recorded frames: over 200 of them the phase grows to thousands of turns, and shows the last bits of its pitch.
    sound, _ = token2wav.vocoder(expected["mel"], torch.zeros(1, expected["wav"].shape[1], 9))
    _close(sound, expected["wav"], SAMPLES)


@pytest.mark.parametrize("name", DUPLEX_RUNS)
def test_every_unit_of_a_duplex_run(goldens: Path, name: str) -> None:
    run = json.loads((goldens / name / "run.json").read_text())
    expected = load_file(goldens / name / "tensors.safetensors")
    token2wav, state, waiting = _token2wav(goldens, 5), _opened(goldens, 5), _waiting(name)
    for index, unit in enumerate(run["units"]):
        if unit["is_listen"]:
            if not unit.get("turn_open_after", False):  # a forced listen, or a break, gives the turn's sound up
                state, waiting = _opened(goldens, 5), _waiting(name)
            continue
        due, waiting = waiting.add(unit["tts"]["returned"], closes_turn=unit["end_of_turn"])
        assert [{"tokens": list(chunk.codes), "last": chunk.last} for chunk in due] == unit["token2wav_calls"]
        parts = []
        for chunk in due:
            [sound] = token2wav.advance([Chunk(state=state, codes=chunk.codes, last=chunk.last, noise=no_noise)])
            state = sound.state
            parts.append(sound.samples)
        if unit["end_of_turn"]:
            state = _opened(goldens, 5)
        _compare_unit(parts, expected.get(f"u{index:02d}.wav"), closes_turn=unit["end_of_turn"])


def _waiting(name: str) -> WaitingCodes:
    return WaitingCodes(fewest_later=DUPLEX_RUNS[name])


def _compare_unit(parts: Sequence[Tensor], expected: Tensor | None, *, closes_turn: bool) -> None:
    if expected is None:
        assert not parts
        return
    samples = torch.cat(list(parts))
    silence = silence_before(samples.shape[0], closes_turn=closes_turn)
    found = torch.frombuffer(bytearray(pcm16(torch.nn.functional.pad(samples, (silence, 0)))), dtype=torch.int16)
    _close(found.float() / 32768, expected.float() / 32768, SAMPLES)


@pytest.mark.parametrize("name", ["chat_text", "chat_audio"])
def test_an_answer_in_chat(goldens: Path, name: str) -> None:
    codes = json.loads((goldens / name / "run.json").read_text())["tts_tokens"][:-1]
    expected = load_file(goldens / name / "tensors.safetensors")["wav"]
    token2wav, state, parts = _token2wav(goldens, 5), _opened(goldens, 5), []
    for chunk in chat_chunks(codes):
        [sound] = token2wav.advance([Chunk(state=state, codes=chunk.codes, last=chunk.last, noise=no_noise)])
        state = sound.state
        parts.append(sound.samples)
    _close(torch.cat(parts), expected, SAMPLES)


@pytest.mark.parametrize("memory", Memory)
def test_streams_side_by_side_sound_as_alone(goldens: Path, memory: Memory) -> None:
    """Streams at different points, in voices of different lengths, with and without an end, in one call."""
    recorded, model = _recorded(goldens), _token2wav(goldens, 5)
    token2wav = Token2Wav(model.flow, model.vocoder, steps=5, memory=memory, noise=recorded.noise)
    short = Voice(codes=recorded.voice.codes[:30], mel=recorded.voice.mel[:60], speaker=recorded.voice.speaker.flip(0))
    late, other = _opened(goldens, 5), token2wav.open(short)
    for earlier in range(3):  # long enough that the caches were cut
        late = _alone(token2wav, late, recorded.codes(earlier)).state
    said = _alone(token2wav, other, recorded.codes(0)).state
    chunks = [
        Chunk(state=state, codes=recorded.codes(chunk), last=recorded.is_last(chunk), noise=no_noise)
        for state, chunk in ((_opened(goldens, 5), 0), (late, 3), (said, 1), (said, 5), (other, 4))
    ]
    for chunk, sound in zip(chunks, token2wav.advance(chunks), strict=True):
        [alone] = token2wav.advance([chunk])
        _close(sound.mel, alone.mel, FRAMES)
        _close(sound.samples, alone.samples, SAMPLES)
        _close(sound.state.flow.keys, alone.state.flow.keys, FRAMES)
        _close(sound.state.flow.encoder.low, alone.state.flow.encoder.low, FRAMES)
        _close(sound.state.source, alone.state.source, SAMPLES)


def _alone(token2wav: Token2Wav, state: StreamState, codes: Sequence[int]) -> Any:
    [sound] = token2wav.advance([Chunk(state=state, codes=codes, last=False, noise=no_noise)])
    return sound


def test_memory_of_the_prompt_keeps_all_of_it_and_the_newest(goldens: Path) -> None:
    recorded, model = _recorded(goldens), _token2wav(goldens, 5)
    token2wav = Token2Wav(model.flow, model.vocoder, steps=5, memory=Memory.PROMPT, noise=recorded.noise)
    state = before = opened = token2wav.open(recorded.voice)
    for chunk in range(3):
        before = state
        state = _alone(token2wav, state, recorded.codes(chunk)).state
    keys, prompt = state.flow.keys, opened.flow.prompt_frames
    assert keys.shape[4] == prompt + 100
    assert torch.equal(keys[..., -prompt:, :], opened.flow.keys)
    assert torch.equal(keys[..., 50:100, :], before.flow.keys[..., :50, :])
    low, earlier = state.flow.encoder.low, before.flow.encoder.low
    assert torch.equal(low[..., : prompt // 2, :], opened.flow.encoder.low)
    assert torch.equal(low[..., -50:-25, :], earlier[..., -25:, :])


@pytest.mark.parametrize(("codes", "last"), [([SILENT_CODE] * 3, False), ([], True)])
def test_a_chunk_without_sound_is_refused(goldens: Path, codes: list[int], last: bool) -> None:
    chunk = Chunk(state=_opened(goldens, 5), codes=codes, last=last, noise=no_noise)
    with pytest.raises(ValueError, match="gives no sound"):
        _token2wav(goldens, 5).advance([chunk])


def test_an_unknown_code_is_refused_by_its_number(goldens: Path) -> None:
    chunk = Chunk(state=_opened(goldens, 5), codes=[1, 2, 6561, 4], last=True, noise=no_noise)
    with pytest.raises(ValueError, match="6561"):
        _token2wav(goldens, 5).advance([chunk])

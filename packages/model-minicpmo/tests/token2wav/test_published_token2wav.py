"""Flow, vocoder and streaming against the published code itself, on a checkpoint of ours, with voices of several lengths.

The recorded runs have one voice, of 100 frames, with which two of the published code's ways to cut its caches look
alike. Here they do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from model_minicpmo.gpu.checkpoint import find_token2wav
from model_minicpmo.gpu.token2wav.flow import Voice
from model_minicpmo.gpu.token2wav.noise import flow_noise
from model_minicpmo.gpu.token2wav.synthesis import Chunk, Token2Wav, load_token2wav
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.engines

STEPS = 3
CHUNKS = ((28, False), (28, False), (28, False), (9, False), (28, False), (16, True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TINY, seed=5)


@pytest.fixture(scope="module")
def noise() -> Tensor:
    return flow_noise(80, 600, seed=11)


@pytest.fixture(scope="module")
def token2wav(folder: Path, noise: Tensor) -> Token2Wav:
    return load_token2wav(find_token2wav(folder), device="cpu", steps=STEPS, noise=noise)


@pytest.fixture(scope="module")
def oracle(folder: Path, noise: Tensor, published: Callable[..., Any]) -> Any:
    return published(folder / "assets" / "token2wav", steps=STEPS, noise=noise)


def _voice(codes: int) -> Voice:
    generator = torch.Generator().manual_seed(codes)
    return Voice(
        codes=torch.randint(0, 6561, (codes,), generator=generator),
        mel=torch.randn(2 * codes, 80, generator=generator),
        speaker=torch.randn(192, generator=generator),
    )


@pytest.mark.parametrize("codes", [30, 50, 83], ids=["shorter", "as recorded", "longer"])
def test_a_stream_in_a_voice(token2wav: Token2Wav, oracle: Any, codes: int) -> None:
    voice = _voice(codes)
    state = token2wav.open(voice)
    oracle.open(voice.codes, voice.mel, voice.speaker)
    torch.manual_seed(codes)
    said = torch.randint(0, 6561, (200,)).tolist()
    for length, last in CHUNKS:
        expected = oracle.stream(said[:length], last=last)
        drawn = oracle.draws.pop()
        [sound] = token2wav.advance(
            [Chunk(state=state, codes=said[:length], last=last, noise=lambda _samples, _harmonics, drawn=drawn: drawn)]
        )
        state, said = sound.state, said[length - 3 :]
        cache = oracle.token2wav.stream_cache
        torch.testing.assert_close(state.flow.keys, cache["estimator_att_cache"], atol=5e-5, rtol=0)
        torch.testing.assert_close(state.flow.convs, cache["estimator_cnn_cache"], atol=5e-5, rtol=0)
        packed, half = cache["conformer_att_cache"], cache["conformer_att_cache"].shape[3] // 2
        torch.testing.assert_close(state.flow.encoder.low, packed[:2, :, :, :half], atol=5e-5, rtol=0)
        torch.testing.assert_close(state.flow.encoder.high, packed[2:], atol=5e-5, rtol=0)
        torch.testing.assert_close(sound.samples, expected, atol=1e-3, rtol=0)

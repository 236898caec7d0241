"""Reading the parts of token2wav: what does not fit is refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import find_token2wav
from model_minicpmo.gpu.token2wav.description import read_flow_sizes
from model_minicpmo.gpu.token2wav.flow import Voice
from model_minicpmo.gpu.token2wav.noise import SeededNoise, flow_noise, no_noise
from model_minicpmo.gpu.token2wav.synthesis import Token2Wav, load_token2wav
from model_minicpmo.gpu.weights import fold_weight_norm
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, TINY)


def _load(folder: Path) -> Token2Wav:
    return load_token2wav(find_token2wav(folder), device="cpu")


def _edit(folder: Path, old: str, new: str) -> Path:
    path = folder / "assets" / "token2wav" / "flow.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_sizes_are_read(folder: Path) -> None:
    sizes = read_flow_sizes(folder / "assets" / "token2wav" / "flow.yaml")
    assert (sizes.codes, sizes.mel_bins, sizes.speaker, sizes.guidance) == (6561, 80, 192, 0.7)
    assert (sizes.encoder.width, sizes.encoder.layers, sizes.encoder.up_layers, sizes.encoder.lookahead) == (
        32,
        2,
        1,
        3,
    )
    assert (sizes.estimator.width, sizes.estimator.blocks, sizes.estimator.inner) == (32, 2, 128)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("CausalMaskedDiffWithXvec", "SomethingElse", "flow is 'SomethingElse'"),
        ("decoder_dit.DiT", "decoder.ConditionalDecoder", "estimator is 'ConditionalDecoder'"),
        ("vocab_size: 6561", "vocab_size: many", "flow.vocab_size is 'many'"),
        ("num_blocks: 2", "num_blocks: 0", "flow.encoder.num_blocks is 0"),
        ("in_channels: 320", "in_channels: 240", "in_channels has to be 4 times 80"),
        ("input_layer: linear", "input_layer: conv", "input_layer is 'conv'; only 'linear' is supported"),
        ("flow: !new", "stream: !new", "has no entry `flow`"),
        ("!new:", "!apply:", "is not understood"),
        ("vocab_size: 6561", "vocab_size: [", "is not understood"),
    ],
)
def test_a_description_that_is_not_supported_is_refused(folder: Path, old: str, new: str, said: str) -> None:
    path = _edit(folder, old, new)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_flow_sizes(path)
    assert caught.value.path == path


def test_a_description_names_no_code_that_is_run(folder: Path) -> None:
    path = _edit(folder, "flow: !new", "other: !!python/object/apply:os.getcwd []\nflow: !new")
    with pytest.raises(CheckpointError, match="is not understood"):
        read_flow_sizes(path)


def test_weights_of_other_sizes_are_refused(folder: Path) -> None:
    _edit(folder, "        num_blocks: 2", "        num_blocks: 3")
    with pytest.raises(CheckpointError, match=r"flow\.pt: .*missing: encoder\.encoders\.2"):
        _load(folder)


def test_another_vocoder_is_refused(folder: Path) -> None:
    path = folder / "assets" / "token2wav" / "hift.pt"
    torch.save({"something": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="holds another vocoder"):
        _load(folder)


def test_the_layout_with_a_causal_vocoder_is_refused(folder: Path) -> None:
    assets = folder / "assets" / "token2wav"
    (assets / "flow.yaml").rename(assets / "config.yaml")
    with pytest.raises(CheckpointError, match=r"config\.yaml: describes the layout with a causal vocoder"):
        _load(folder)


def test_names_with_their_common_beginning_and_torchs_older_spelling_are_known(folder: Path) -> None:
    path = folder / "assets" / "token2wav" / "hift.pt"
    plain = _load(folder).vocoder.state_dict()
    spelled = {
        "generator."
        + name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in torch.load(path, weights_only=True).items()
    }
    torch.save(spelled, path)
    for name, tensor in _load(folder).vocoder.state_dict().items():
        assert torch.equal(tensor, plain[name])


def test_half_of_a_weight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks conv\.weight_g"):
        fold_weight_norm({"conv.weight_v": torch.ones(2, 2)}, path=tmp_path)


def test_a_voice_whose_parts_do_not_belong_together_is_refused(folder: Path) -> None:
    voice = Voice(codes=torch.zeros(10, dtype=torch.int64), mel=torch.zeros(19, 80), speaker=torch.ones(192))
    with pytest.raises(ValueError, match=r"10 codes needs mel frames \[20, 80\], not \[19, 80\]"):
        _load(folder).open(voice)


def test_noise_that_is_too_short_is_told(folder: Path) -> None:
    whole = _load(folder)
    short = Token2Wav(whole.flow, whole.vocoder, steps=1, noise=flow_noise(80, 30))
    voice = Voice(codes=torch.zeros(10, dtype=torch.int64), mel=torch.zeros(20, 80), speaker=torch.ones(192))
    with pytest.raises(ValueError, match="has 30 frames; 40 are needed"):
        short.whole(voice, range(10), no_noise)


def test_seeds_fix_the_noise() -> None:
    assert torch.equal(flow_noise(80, 50, seed=3), flow_noise(80, 50, seed=3))
    assert not torch.equal(flow_noise(80, 50, seed=3), flow_noise(80, 50, seed=4))
    one, other = SeededNoise(1), SeededNoise(1)
    first = one(480, 9)
    assert torch.equal(first, other(480, 9))
    assert not torch.equal(one(480, 9), first)

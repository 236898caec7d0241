"""The published token2wav (`stepaudio2` of minicpmo-utils) as an oracle, on a checkpoint of ours and on the CPU.

Called by pytest. Never: takes part in what is tested, or changes the published arithmetic: only where it finds its
parts, its device, and where its random numbers come from.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

JOIN_SAMPLES = 3840
LONGEST = 1000
# What the published module imports at its top and does not use where it is called here.
_UNUSED = (
    "torchaudio",
    "torchaudio.compliance",
    "torchaudio.compliance.kaldi",
    "s3tokenizer",
    "hyperpyyaml",
    "librosa",
)


class _CpuTorch:
    """`torch`, but for the device and the mixed precision that the published module hard-codes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, data: Any, *, dtype: torch.dtype | None = None, device: object = None) -> Tensor:
        del device
        return torch.tensor(data, dtype=dtype)

    amp = types.SimpleNamespace(autocast=lambda *_args, **_settings: contextlib.nullcontext())


class Published:
    """The published class around a flow and a vocoder of a checkpoint; `draws` is told every draw of the vocoder's source."""

    def __init__(self, folder: Path, *, steps: int, noise: Tensor) -> None:
        module = importlib.import_module("stepaudio2.token2wav")
        vars(module)["torch"] = _CpuTorch()
        self.steps = steps
        self.draws: list[Tensor] = []
        self.token2wav = module.Token2wav.__new__(module.Token2wav)
        self.token2wav.float16, self.token2wav.n_timesteps = False, steps
        self.token2wav.flow = _flow(folder, steps=steps, noise=noise)
        self.token2wav.hift = _vocoder(folder)
        self.token2wav.mel_cache_len, self.token2wav.source_cache_len = 8, JOIN_SAMPLES
        self.token2wav.speech_window = torch.from_numpy(np.hamming(2 * JOIN_SAMPLES))

    def open(self, codes: Tensor, mel: Tensor, speaker: Tensor) -> None:
        """Begin a stream in a voice."""
        lengths = torch.tensor([codes.shape[0]]), torch.tensor([mel.shape[0]])
        self.token2wav.cache = codes[None], lengths[0], speaker[None], mel[None], lengths[1]
        ahead = torch.full((1, 3), 4218)
        self.token2wav.stream_cache = self.token2wav.flow.setup_cache(
            torch.cat([codes[None], ahead], dim=1), mel[None], speaker[None], n_timesteps=self.steps
        )
        self.token2wav.hift_cache_dict = {
            "mel": torch.zeros(1, mel.shape[1], 0),
            "source": torch.zeros(1, 1, 0),
            "speech": torch.zeros(1, 0),
        }

    def stream(self, codes: Sequence[int], *, last: bool) -> Tensor:
        """Give the next chunk's samples; the noise that was drawn for it is put to `draws`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn_like", self._drawn)
            samples = self.token2wav.stream(list(codes), "", last_chunk=last, return_waveform=True)
        return torch.from_numpy(samples)[0]

    def _drawn(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape)
        if like.shape[-1] > 1:  # what is drawn with one column is never used
            self.draws.append(drawn[0])
        return drawn


def _flow(folder: Path, *, steps: int, noise: Tensor) -> Any:
    description = yaml.load((folder / "flow.yaml").read_text(), Loader=_loader())
    flow = description["flow"].eval()
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    decoder, blocks = flow.decoder, flow.decoder.estimator.blocks
    width, attention = flow.decoder.estimator.in_proj.out_features, blocks[0].attn
    keys = (len(blocks), 2, attention.num_heads, LONGEST, 2 * attention.head_dim)
    convs = (len(blocks), 2, 2 * width, 2)
    decoder.rand_noise = noise[None]
    decoder.att_cache_buffer, decoder.cnn_cache_buffer = torch.zeros(steps, *keys), torch.zeros(steps, *convs)
    decoder.estimator.att_cache_buffer, decoder.estimator.cnn_cache_buffer = torch.zeros(keys), torch.zeros(convs)
    return flow


def _vocoder(folder: Path) -> Any:
    module = importlib.import_module("stepaudio2.flashcosyvoice.modules.hifigan")
    weights = torch.load(folder / "hift.pt", weights_only=True)
    channels = weights["conv_pre.bias"].shape[0]
    pitch = module.ConvRNNF0Predictor(cond_channels=weights["f0_predictor.condnet.0.bias"].shape[0])
    vocoder = module.HiFTGenerator(base_channels=channels, f0_predictor=pitch).eval()
    vocoder.load_state_dict(weights)
    return vocoder


def _loader() -> type[yaml.SafeLoader]:
    """Make what the tags of `flow.yaml` name, of the published classes."""

    class Loader(yaml.SafeLoader):
        pass

    def construct(loader: Loader, suffix: str, node: yaml.MappingNode) -> Any:
        module, _, name = suffix.rpartition(".")
        made = getattr(importlib.import_module(f"stepaudio2.{module}"), name)
        return made(**{str(key): value for key, value in loader.construct_mapping(node, deep=True).items()})

    Loader.add_multi_constructor("!new:", construct)
    return Loader


@pytest.fixture(scope="module")
def published() -> Iterator[Callable[..., Published]]:
    """Make the oracle: `published(folder, steps=…, noise=…)`. Skipped, with the reason, where the package is not installed."""
    found = importlib.util.find_spec("stepaudio2")
    if found is None or found.submodule_search_locations is None:
        missing = "the oracle is not installed: pip install --no-deps minicpmo-utils==1.0.6"
        if os.environ.get("DUPLEX_REQUIRE_ORACLES", "") not in {"", "0"}:
            pytest.fail(missing)
        pytest.skip(missing)
    bare = types.ModuleType("stepaudio2")  # its own `__init__` imports what is not needed here
    bare.__path__ = list(found.submodule_search_locations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setitem(sys.modules, "stepaudio2", bare)
        for name in _UNUSED:
            patch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules["torchaudio"])["compliance"] = sys.modules["torchaudio.compliance"]
        vars(sys.modules["torchaudio.compliance"])["kaldi"] = sys.modules["torchaudio.compliance.kaldi"]
        vars(sys.modules["hyperpyyaml"])["load_hyperpyyaml"] = None
        filters = types.ModuleType("librosa.filters")
        vars(filters)["mel"] = None
        patch.setitem(sys.modules, "librosa.filters", filters)
        yield Published
        for name in [name for name in sys.modules if name.startswith("stepaudio2.")]:
            del sys.modules[name]

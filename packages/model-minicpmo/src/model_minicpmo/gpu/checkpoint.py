"""Reads a checkpoint in the published layout and loads its tensors into our modules.

Owns: where each tensor is (one safetensors file, or shards with an index), what counts as a tensor too few or too many, which
type weights are held in, and which of the two layouts `assets/token2wav` has.
Called by: every stage when it starts.
Never: fetches anything, unpickles anything but plain tensors, or guesses: what does not fit is an error that names file and
tensor.
"""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from model_minicpmo.config import ModelConfig, PreprocessorConfig, read_config, read_json, read_preprocessor
from model_minicpmo.errors import CheckpointError
from model_minicpmo.tokens import SpecialTokens, read_special_tokens

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
_Module = TypeVar("_Module", bound="nn.Module")


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint: its configuration, its special tokens, and where its tensors are. No tensor is held.

    Attributes:
        folder: The checkpoint's folder.
        config: `config.json`.
        preprocessor: `preprocessor_config.json`.
        tokens: The special tokens, looked up by name.
        files: For each tensor's full name the safetensors file that has it.
    """

    folder: Path
    config: ModelConfig
    preprocessor: PreprocessorConfig
    tokens: SpecialTokens
    files: Mapping[str, Path]

    @property
    def told_by(self) -> Path:
        """The file that tells which tensors there are: the index, or the one safetensors file."""
        index = self.folder / INDEX_FILE
        return index if index.is_file() else self.folder / SINGLE_FILE

    def names(self, prefix: str) -> list[str]:
        """List the tensors under a prefix such as `apm.`, by their full names, in order."""
        return sorted(name for name in self.files if name.startswith(prefix))

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Read tensors by their full names, each file opened once; they come as they are stored, on the CPU.

        Raises:
            CheckpointError: A name is unknown, a file is missing or broken, or the index names a file that lacks the tensor.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            if name not in self.files:
                raise CheckpointError(self.told_by, f"has no tensor {name}")
            by_file.setdefault(self.files[name], []).append(name)
        for path, wanted in sorted(by_file.items()):
            yield from _read_tensors(path, wanted)

    def load(
        self,
        module: _Module,
        prefix: str,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        unused: Collection[str] = (),
    ) -> _Module:
        """Give a module its weights, and make it ready for inference.

        The module may have been built on the device `meta`, so that nothing is allocated twice. Every tensor under the prefix
        must have its place in the module, and the other way round.

        Args:
            module: What is to hold the weights; its parameters are named as the tensors are, less the prefix.
            prefix: What the tensors' names begin with, such as `apm.`.
            dtype: The type in which floating-point weights are to be held.
            device: Where they are to be held.
            unused: Names, less the prefix, that the checkpoint may have and the module does not.

        Returns:
            The same module, in evaluation mode, without gradients.

        Raises:
            CheckpointError: Tensors are missing or unexpected, or have another shape; each is named.
        """
        expected = module.state_dict()
        stored = {name.removeprefix(prefix): name for name in self.names(prefix)}
        self._compare(prefix, expected.keys(), stored.keys() - set(unused))
        weights: dict[str, Tensor] = {}
        for name, tensor in self.read([stored[name] for name in expected]):
            place = name.removeprefix(prefix)
            if tensor.shape != expected[place].shape:
                raise CheckpointError(
                    self.files[name],
                    f"tensor {name} has shape {list(tensor.shape)}; config.json calls for {list(expected[place].shape)}",
                )
            weights[place] = tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
        module.load_state_dict(weights, strict=True, assign=True)
        left = [name for name, buffer in module.named_buffers() if buffer.is_meta]
        assert not left, f"{type(module).__name__} was built on meta, but its buffers {left} are in no checkpoint"
        return module.requires_grad_(False).eval()

    def _compare(self, prefix: str, expected: Collection[str], stored: Collection[str]) -> None:
        missing = sorted(set(expected) - set(stored))
        unexpected = sorted(set(stored) - set(expected))
        problems = [
            f"{word}: {_few([prefix + name for name in names])}"
            for word, names in (("missing tensors", missing), ("unexpected tensors", unexpected))
            if names
        ]
        if problems:
            raise CheckpointError(self.told_by, f"{'; '.join(problems)}. Its tensors do not fit its config.json")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the checkpoint in a folder: read its small files, and learn where each tensor is.

    Raises:
        CheckpointError: A file of the published layout is missing or broken, or a special token lies outside the vocabulary.
    """
    if not folder.is_dir():
        raise CheckpointError(folder, "is no folder; name the folder of a checkpoint in the published layout")
    config = read_config(folder)
    tokens = read_special_tokens(folder)
    beyond = [f"{name} ({number})" for name, number in tokens.named().items() if number >= config.vocab_size]
    if beyond:
        raise CheckpointError(
            folder / "config.json", f"vocab_size is {config.vocab_size}, which leaves out {_few(beyond)}"
        )
    return Checkpoint(
        folder=folder,
        config=config,
        preprocessor=read_preprocessor(folder),
        tokens=tokens,
        files=_locate_tensors(folder),
    )


def choose_dtype(wanted: DtypeName, *, config: ModelConfig, device: torch.device) -> torch.dtype:
    """Choose the type for weights: what was asked for; `auto` is the published type, and float32 on a CPU.

    Raises:
        ValueError: The name is none of `auto`, `float32`, `bfloat16`, `float16`.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    name = wanted if wanted != "auto" else "float32" if device.type == "cpu" else config.weights_dtype
    if name not in known:
        raise ValueError(f"no such type of weights: {name!r}; choose auto, {', '.join(known)}")
    return known[name]


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """Read a `.pt` file that holds a dictionary of tensors, such as `flow.pt`; anything else in it is refused.

    Raises:
        CheckpointError: The file is missing or broken, or holds something else.
    """
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(path, f"holds no plain tensors ({str(error).splitlines()[0]})") from error
    if not isinstance(held, dict):
        raise CheckpointError(path, f"holds a {type(held).__name__}, not tensors by name")
    other = [
        str(name) for name, value in held.items() if not (isinstance(name, str) and isinstance(value, torch.Tensor))
    ]
    if other:
        raise CheckpointError(path, f"holds something else than tensors by name: {_few(other)}")
    return cast("dict[str, Tensor]", held)


class Token2WavLayout(enum.Enum):
    """Which of the two published forms `assets/token2wav` has; the value is the file that tells."""

    HIFT = "flow.yaml"
    """`flow.yaml`, `flow.pt`, `hift.pt`: a flow described by its own file, and a vocoder of fixed structure."""
    CAUSAL = "config.yaml"
    """`config.yaml` describes both; the vocoder is causal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token2WavFiles:
    """What is in `assets/token2wav`.

    Attributes:
        layout: Which form it has.
        description: The YAML file that tells the sizes.
        flow: The flow's weights.
        vocoder: The vocoder's weights.
        speech_tokenizer: The ONNX file that turns a reference voice into speech tokens; None when it is not there.
        speaker_model: The ONNX file that turns a reference voice into a speaker vector; None when it is not there.
    """

    layout: Token2WavLayout
    description: Path
    flow: Path
    vocoder: Path
    speech_tokenizer: Path | None
    speaker_model: Path | None


def find_token2wav(folder: Path) -> Token2WavFiles:
    """Tell which layout the folder `assets/token2wav` of a checkpoint has, by its files.

    Args:
        folder: The checkpoint's folder.

    Raises:
        CheckpointError: The folder has neither layout, or lacks a file of the one it has.
    """
    assets = folder / "assets" / "token2wav"
    layouts = [layout for layout in Token2WavLayout if (assets / layout.value).is_file()]
    if len(layouts) != 1:
        found = "both flow.yaml and config.yaml" if layouts else "neither flow.yaml nor config.yaml"
        raise CheckpointError(assets, f"has {found}, so its layout cannot be told")
    for name in ("flow.pt", "hift.pt"):
        if not (assets / name).is_file():
            raise CheckpointError(assets / name, f"is missing; the layout of {layouts[0].value} has it")
    tokenizer, speaker = assets / "speech_tokenizer_v2_25hz.onnx", assets / "campplus.onnx"
    return Token2WavFiles(
        layout=layouts[0],
        description=assets / layouts[0].value,
        flow=assets / "flow.pt",
        vocoder=assets / "hift.pt",
        speech_tokenizer=tokenizer if tokenizer.is_file() else None,
        speaker_model=speaker if speaker.is_file() else None,
    )


def _locate_tensors(folder: Path) -> dict[str, Path]:
    index = folder / INDEX_FILE
    if not index.is_file():
        single = folder / SINGLE_FILE
        if not single.is_file():
            raise CheckpointError(folder, f"has neither {SINGLE_FILE} nor {INDEX_FILE}: its weights are missing")
        return dict.fromkeys(_stored_names(single), single)
    weight_map = read_json(index, _Index).weight_map
    for shard in sorted(set(weight_map.values())):
        if "/" in shard or "\\" in shard or not (folder / shard).is_file():
            lost = [name for name, file in weight_map.items() if file == shard]
            raise CheckpointError(index, f"names the file {shard}, which is not beside it, for {_few(lost)}")
    return {name: folder / shard for name, shard in weight_map.items()}


def _stored_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors ({error}); it may be cut short") from error


def _read_tensors(path: Path, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    name = ""
    try:
        with safe_open(path, framework="pt") as file:
            held = set(file.keys())
            for name in names:
                if name not in held:
                    raise CheckpointError(path, f"has no tensor {name}, which {INDEX_FILE} says it has")
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors at {name or 'its header'} ({error})") from error


def _few(names: list[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

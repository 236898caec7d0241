"""Reading a checkpoint's weights: one file or shards, what is missing or too much by name, broken files, vocoder layouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    Token2WavLayout,
    choose_dtype,
    find_token2wav,
    open_checkpoint,
    read_torch_file,
)
from model_minicpmo.gpu.siglip import Resampler
from model_minicpmo.gpu.whisper import WhisperEncoder
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines

LOST = "apm.layers.1.fc1.bias"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in one file; no test changes it."""
    return write_checkpoint(tmp_path_factory.mktemp("made"), TINY)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A tiny checkpoint in three shards that a test may spoil."""
    return write_checkpoint(tmp_path, TINY, shards=3)


def encoder(checkpoint: Checkpoint) -> WhisperEncoder:
    with torch.device("meta"):
        return WhisperEncoder(checkpoint.config.audio_config)


def load(checkpoint: Checkpoint, *, unused: tuple[str, ...] = ()) -> WhisperEncoder:
    return checkpoint.load(encoder(checkpoint), "apm.", dtype=torch.float32, device="cpu", unused=unused)


def test_a_module_gets_every_tensor_as_it_is_stored(made: Path) -> None:
    loaded = load(open_checkpoint(made))
    stored = {name: value for name, value in load_file(made / SINGLE_FILE).items() if name.startswith("apm.")}
    assert len(stored) == len(loaded.state_dict()) > 30
    for name, value in stored.items():
        assert torch.equal(loaded.state_dict()[name.removeprefix("apm.")], value)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_shards_give_what_one_file_gives(made: Path, own: Path) -> None:
    single, sharded = open_checkpoint(made), open_checkpoint(own)
    assert single.files.keys() == sharded.files.keys()
    assert len(set(sharded.files.values())) == 3
    one, many = load(single).state_dict(), load(sharded).state_dict()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_weights_are_held_in_the_type_asked_for(made: Path) -> None:
    checkpoint = open_checkpoint(made)
    loaded = checkpoint.load(encoder(checkpoint), "apm.", dtype=torch.bfloat16, device="cpu")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Change tensors of a checkpoint in one file; None takes one away."""
    tensors = {name: value.clone() for name, value in load_file(folder / SINGLE_FILE).items()}
    for name, value in change.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, folder / SINGLE_FILE)


def test_tensors_too_few_and_too_many_are_both_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    rewrite(tmp_path, {LOST: None, "apm.layers.9.fc1.bias": torch.zeros(2)})
    with pytest.raises(CheckpointError) as refused:
        load(open_checkpoint(tmp_path))
    assert refused.value.path == tmp_path / SINGLE_FILE
    assert f"missing tensors: {LOST}; unexpected tensors: apm.layers.9.fc1.bias." in str(refused.value)


def test_a_tensor_that_is_known_to_be_unused_is_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    rewrite(tmp_path, {"apm.old": torch.zeros(2)})
    load(open_checkpoint(tmp_path), unused=("old",))


def test_a_tensor_of_another_shape_is_named_with_its_file_and_both_shapes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    rewrite(tmp_path, {LOST: torch.zeros(7)})
    with pytest.raises(CheckpointError, match=rf"tensor {LOST} has shape \[7\]; config.json calls for \[128\]"):
        load(open_checkpoint(tmp_path))


def test_a_shard_that_is_not_there_is_named_with_what_it_holds(own: Path) -> None:
    shard = open_checkpoint(own).files[LOST]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"names the file {shard.name}, which is not beside it, for "):
        open_checkpoint(own)


def test_an_index_that_points_outside_the_folder_is_refused(own: Path) -> None:
    index = json.loads((own / INDEX_FILE).read_text(encoding="utf-8"))
    index["weight_map"][LOST] = "../elsewhere.safetensors"
    (own.parent / "elsewhere.safetensors").write_bytes(b"")
    (own / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CheckpointError, match="elsewhere"):
        open_checkpoint(own)


def test_a_shard_without_the_tensor_that_the_index_gives_it_is_named(own: Path) -> None:
    shard = open_checkpoint(own).files[LOST]
    tensors = {name: value.clone() for name, value in load_file(shard).items() if name != LOST}
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=f"{shard.name}: has no tensor {LOST}, which {INDEX_FILE} says it has"):
        load(open_checkpoint(own))


def test_a_shard_that_was_cut_short_is_named(own: Path) -> None:
    shard = open_checkpoint(own).files[LOST]
    shard.write_bytes(shard.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=f"{shard.name}: cannot be read as safetensors"):
        load(open_checkpoint(own))


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer_config.json", INDEX_FILE])
def test_a_file_of_the_layout_that_is_missing_is_named(name: str, own: Path) -> None:
    (own / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(own)


def test_a_vocabulary_too_small_for_the_tokens_is_refused(own: Path) -> None:
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    (own / "config.json").write_text(json.dumps(config | {"vocab_size": 379}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocab_size is 379, which leaves out <\|tts_pad\|> \(379\)"):
        open_checkpoint(own)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no folder"):
        open_checkpoint(tmp_path / "nowhere")


def test_the_recorded_checkpoint_opens(goldens: Path) -> None:
    checkpoint = open_checkpoint(goldens / "checkpoint")
    with torch.device("meta"):
        resampler = Resampler(queries=64, size=128, patches_size=32)
    loaded = checkpoint.load(resampler, "resampler.", dtype=torch.float32, device="cpu")
    assert loaded.query.shape == (64, 128)


def test_a_type_is_chosen_by_name_or_by_what_was_published(made: Path) -> None:
    config = open_checkpoint(made).config
    assert choose_dtype("auto", config=config, device=torch.device("cpu")) is torch.float32
    assert choose_dtype("bfloat16", config=config, device=torch.device("cpu")) is torch.bfloat16
    assert choose_dtype("auto", config=config, device=torch.device("cuda")) is torch.float32  # published in float32
    with pytest.raises(ValueError, match="'int4'"):
        choose_dtype("int4", config=config, device=torch.device("cpu"))  # type: ignore[arg-type]


def test_the_vocoder_s_layout_is_told_by_its_files(own: Path) -> None:
    assets = own / "assets" / "token2wav"
    found = find_token2wav(own)
    assert (found.layout, found.description, found.speaker_model) == (Token2WavLayout.HIFT, assets / "flow.yaml", None)
    (assets / "campplus.onnx").write_bytes(b"")
    assert find_token2wav(own).speaker_model == assets / "campplus.onnx"
    (assets / "config.yaml").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"both flow\.yaml and config\.yaml"):
        find_token2wav(own)
    (assets / "flow.yaml").unlink()
    assert find_token2wav(own).layout is Token2WavLayout.CAUSAL
    (assets / "hift.pt").unlink()
    with pytest.raises(CheckpointError, match=r"hift\.pt: is missing"):
        find_token2wav(own)


class Surprise:
    """Something that no file of weights holds."""


def test_a_torch_file_may_hold_tensors_by_name_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "flow.pt"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_torch_file(path)
    torch.save({"a": torch.ones(2)}, path)
    assert torch.equal(read_torch_file(path)["a"], torch.ones(2))
    torch.save({"a": torch.ones(2), "step": 3}, path)
    with pytest.raises(CheckpointError, match="than tensors by name: step"):
        read_torch_file(path)
    torch.save([torch.ones(2)], path)
    with pytest.raises(CheckpointError, match="holds a list"):
        read_torch_file(path)
    torch.save({"a": Surprise()}, path)
    with pytest.raises(CheckpointError, match="holds no plain tensors"):
        read_torch_file(path)
    path.write_bytes(b"not a file of torch")
    with pytest.raises(CheckpointError, match="holds no plain tensors"):
        read_torch_file(path)

"""The checkpoints that tests are made with: the same names and shapes as the vendor's, and readable by public libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2TokenizerFast

from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import PUBLISHED, TINY
from model_minicpmo.testing.tensors import flow_tensors, model_tensors, vocoder_tensors
from model_minicpmo.testing.tokenizer import added_tokens

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines


def test_names_and_shapes_are_those_of_the_vendor_s_layout(goldens: Path) -> None:
    sizes = replace(TINY, talker=replace(TINY.talker, codes=257))  # the recording's talker has fewer codes
    recorded = load_file(goldens / "checkpoint" / "model.safetensors")
    assert dict(model_tensors(sizes)) == {name: tuple(value.shape) for name, value in recorded.items()}
    for file, listed in (("flow.pt", flow_tensors), ("hift.pt", vocoder_tensors)):
        recorded = torch.load(goldens / "checkpoint" / "assets" / "token2wav" / file, weights_only=True)
        assert dict(listed(TINY)) == {name: tuple(value.shape) for name, value in recorded.items()}
    assert added_tokens(TINY.vocabulary) == json.loads((goldens / "checkpoint" / "added_tokens.json").read_text())


def test_the_published_sizes_give_the_published_number_of_weights() -> None:
    by_part: dict[str, int] = {}
    for name, shape in model_tensors(PUBLISHED):
        part = name.partition(".")[0]
        by_part[part] = by_part.get(part, 0) + prod(shape)
    assert round(by_part["llm"] / 1e9, 2) == 8.19  # Qwen3-8B
    assert round(by_part["apm"] / 1e6) == 307  # the encoder of Whisper medium
    assert round(by_part["vpm"] / 1e6) == 418  # SigLIP so400m


def test_a_public_tokenizer_reads_the_files_and_takes_text_apart_and_together(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TINY)
    tokenizer = Qwen2TokenizerFast.from_pretrained(folder)
    ids = added_tokens(TINY.vocabulary)
    said = "<|im_start|>system\nthe user and you: naïve 你好<|listen|>"
    numbers = tokenizer(said, add_special_tokens=False).input_ids
    assert (numbers[0], numbers[-1]) == (ids["<|im_start|>"], ids["<|listen|>"])
    assert max(numbers[1:-1]) < TINY.vocabulary.added
    assert len(numbers) < len(said.encode()) - 20  # merges are used
    assert tokenizer.decode(numbers) == said
    assert len(tokenizer) == json.loads((folder / "config.json").read_text())["vocab_size"]


def test_the_chat_template_renders_a_turn_that_is_to_be_spoken(tmp_path: Path) -> None:
    tokenizer = Qwen2TokenizerFast.from_pretrained(write_checkpoint(tmp_path, TINY))
    rendered = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
        use_tts_template=True,
    )
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>"
    )


def test_a_seed_gives_the_same_weights_and_another_gives_others(tmp_path: Path) -> None:
    weights = [
        load_file(write_checkpoint(tmp_path / name, TINY, seed=seed) / "model.safetensors")
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    ]
    name = "llm.model.layers.0.mlp.up_proj.weight"
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[0][name], weights[2][name])

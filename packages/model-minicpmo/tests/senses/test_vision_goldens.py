"""The vision front end against the vendor's recorded run: pixels, sizes, embeddings, and the ids around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from model_minicpmo.gpu.checkpoint import Checkpoint, open_checkpoint
from model_minicpmo.gpu.pictures import decode_picture
from model_minicpmo.gpu.vision import VisionFrontEnd
from model_minicpmo.slicing import duplex_layout, plan_views

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines

PIXELS = 1e-5
EMBEDS = 1e-5


@pytest.fixture(scope="module")
def checkpoint(goldens: Path) -> Checkpoint:
    return open_checkpoint(goldens / "checkpoint")


def test_every_picture_gives_the_recorded_views_and_embeddings(goldens: Path, checkpoint: Checkpoint) -> None:
    front_end = VisionFrontEnd.load(checkpoint, dtype=torch.float32, device="cpu")
    recorded = load_file(goldens / "duplex_vision" / "tensors.safetensors")
    units = json.loads((goldens / "duplex_vision" / "run.json").read_text(encoding="utf-8"))["units"]
    seen = [unit for unit in units if unit["frames"]]
    assert [len(unit["pixel_values"]) for unit in seen] == [1, 5, 2]
    for unit in seen:
        name = f"u{unit['unit']:02d}"
        pictures = [decode_picture((goldens / "inputs" / frame).read_bytes()) for frame in unit["frames"]]
        strips = [strip for picture in pictures for strip in front_end.cut(picture, max_slices=unit["max_slice_nums"])]
        assert [[strip.rows, strip.columns] for strip in strips] == recorded[f"{name}.tgt_sizes"].tolist()
        for strip, head, told in zip(strips, recorded[f"{name}.pixel_values_head"], unit["pixel_values"], strict=True):
            assert list(strip.pixels.shape) == told["shape"]
            assert float((strip.pixels[..., :56] - head).abs().max()) <= PIXELS
            assert float(strip.pixels.double().sum()) == pytest.approx(told["sum"], abs=PIXELS * strip.pixels.numel())
            assert float(strip.pixels.double().abs().sum()) == pytest.approx(told["abs_sum"], rel=PIXELS)
        assert float((front_end.encode(strips) - recorded[f"{name}.image_embeds"]).abs().max()) <= EMBEDS


def test_the_ids_around_the_embeddings_are_those_that_were_fed(goldens: Path, checkpoint: Checkpoint) -> None:
    recorded = load_file(goldens / "duplex_vision" / "tensors.safetensors")
    run = json.loads((goldens / "duplex_vision" / "run.json").read_text(encoding="utf-8"))
    words = load_file(goldens / "checkpoint" / "model.safetensors")["llm.model.embed_tokens.weight"]
    at = run["units"][0]["cache_len"]["after_unit"]
    for unit in run["units"][1:]:
        sizes = [decode_picture((goldens / "inputs" / frame).read_bytes()).size for frame in unit["frames"]]
        views = [
            plan_views(size, settings=checkpoint.preprocessor, max_slices=unit["max_slice_nums"]) for size in sizes
        ]
        ids = duplex_layout(views, tokens=checkpoint.tokens, embeddings=64)
        fed = recorded["feed.embeds"][at + 1 : at + 1 + len(ids)]  # behind `<unit>`
        slots = torch.tensor(ids) == checkpoint.tokens.unknown
        embeds = recorded[f"u{unit['unit']:02d}.image_embeds"].flatten(0, 1)
        assert float((fed[slots] - embeds).abs().max()) <= EMBEDS
        assert torch.equal(fed[~slots], words[torch.tensor(ids)[~slots]])
        assert at + 1 + len(ids) + 10 == unit["cache_len"]["after_prefill"]
        at = unit["cache_len"]["after_unit"]

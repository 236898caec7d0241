"""The thinker's program against the recorded runs: every unit's ids, text, logits and hidden states, through moved windows too.

The language model under it is transformers' own: what is proven is what it is fed, in which order, and what is made of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from duplex_core.stages import Forward
from duplex_core.torch_tensors import as_torch, of_torch
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.payloads import Decided, Draws, Opened, Options, Orders, Picture, Said, Sensed
from model_minicpmo.testing.over_transformers import OverTransformers, language_model

pytestmark = pytest.mark.engines

WINDOWS = {"duplex_window_basic": "basic", "duplex_window_context": "context"}
RUNS = ("duplex_greedy", "duplex_sampled", "duplex_window_basic", "duplex_window_context", "duplex_vision")
TOLERANCE = 5e-5


class Run:
    """One recorded run, fed to the program unit by unit."""

    def __init__(self, goldens: Path, name: str, model: Any, thinker: Thinker) -> None:
        self.run = json.loads((goldens / name / "run.json").read_text())
        self.tensors = load_file(goldens / name / "tensors.safetensors")
        self.greedy = self.run["decode"] == "greedy"
        options = Options(
            greedy=self.greedy,
            window=WINDOWS.get(name, "off"),
            high_tokens=160,
            low_tokens=110,
            context_units=4,
            previous_tokens=24,
            char_limit=28,
        )
        self.llm = OverTransformers(model, thinker.open(name))
        voice = of_torch(self.tensors["feed.embeds"][26:46])
        self.llm.run(Opened(prompt="Streaming Omni Conversation.", options=options, reference=voice))

    def tell(self, unit: dict[str, Any]) -> tuple[Decided, Said | None]:
        """Feed one unit; what was decided, and what the talker is told."""
        prefix = f"u{unit['unit']:02d}."
        draws = [number for step in unit["llm_steps"] for number in (*step.get("u", ()), 0.5, 0.5)[:2]]
        orders = Orders(
            number=unit["unit"],
            forced=unit["force_listen"] or unit["force_listen_override"],
            ends_turn=unit["force_listen_override"],
            draws=None if self.greedy else Draws(llm=tuple(draws)),
        )
        audio = self.tensors[prefix + "audio_embeds"].reshape(10, -1)
        sensed = Sensed(orders=orders, audio=of_torch(audio), pictures=self.pictures(unit, prefix))
        decided, forward = self.llm.run(sensed)
        assert isinstance(decided, Decided)
        assert isinstance(forward, Forward)
        return decided, forward.payload

    def pictures(self, unit: dict[str, Any], prefix: str) -> tuple[Picture, ...]:
        views = self.tensors.get(prefix + "image_embeds")
        if views is None:
            return ()
        if len(unit["frames"]) > 1:
            return tuple(Picture(whole=of_torch(view.contiguous())) for view in views)
        whole, *slices = (of_torch(view.contiguous()) for view in views)
        return (Picture(whole=whole, slices=tuple(slices)),)


@pytest.fixture(scope="module")
def thinker(goldens: Path) -> Thinker:
    return Thinker(checkpoint=str(goldens / "checkpoint"), engine={"max_model_len": 1024})


@pytest.fixture(scope="module")
def model(goldens: Path) -> Any:
    torch.set_num_threads(1)
    return language_model(goldens / "checkpoint")


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("name", RUNS)
def test_every_unit_is_decided_as_recorded(name: str, goldens: Path, model: Any, thinker: Thinker) -> None:
    recorded = Run(goldens, name, model, thinker)
    end = json.loads((goldens / "checkpoint" / "added_tokens.json").read_text())["</unit>"]
    compared = 0
    for unit in recorded.run["units"]:
        prefix, forced = f"u{unit['unit']:02d}.", unit["force_listen"] or unit["force_listen_override"]
        decided, said = recorded.tell(unit)
        assert decided.listens == unit["is_listen"]
        if forced:
            assert (said is not None) == unit["turn_open_before"]
            continue
        assert decided.context == unit["cache_len"]["after_generate"]
        assert [*decided.ids, end] == unit["ids"]
        assert decided.text == unit["text"]
        assert decided.ends_turn == unit["end_of_turn"]
        logits = recorded.tensors[prefix + "llm_logits_raw"]
        assert largest(torch.stack(recorded.llm.logits[: len(logits)]), logits) < TOLERANCE
        if said is not None:
            assert said.hidden is not None
            assert list(said.ids) == recorded.tensors[prefix + "tts_ids_in"].tolist()
            assert largest(as_torch(said.hidden), recorded.tensors[prefix + "llm_hidden"]) < TOLERANCE
            assert said.opens_turn == (not unit["turn_open_before"])
            compared += 1
    assert compared == sum(not unit["is_listen"] for unit in recorded.run["units"])


@pytest.mark.parametrize("name", WINDOWS)
def test_a_moved_window_has_the_recorded_keys(name: str, goldens: Path, model: Any, thinker: Thinker) -> None:
    recorded = Run(goldens, name, model, thinker)
    for unit in recorded.run["units"]:
        recorded.tell(unit)
    last = recorded.run["units"][-1]
    assert last["window"]["dropped_units"] > 0, "the recording moves the window after its last unit"
    # The program moves a window when the next unit comes; a forced one adds nothing to what is compared.
    decided, _ = recorded.tell({**last, "unit": last["unit"], "force_listen": True, "force_listen_override": False})
    assert decided.dropped_units == last["window"]["dropped_units"]
    for layer in (0, 1):
        keys = recorded.tensors[f"final.llm_key_layer{layer}"]
        ours = recorded.llm.cache.layers[layer].keys[:, :, : keys.shape[2]]
        assert largest(ours, keys) < TOLERANCE
    assert last["cache_len"]["after_unit"] == recorded.tensors["final.llm_key_layer0"].shape[2]


def test_sessions_side_by_side_share_nothing(goldens: Path, model: Any, thinker: Thinker) -> None:
    greedy, sampled = (Run(goldens, name, model, thinker) for name in ("duplex_greedy", "duplex_sampled"))
    for one, other in zip(greedy.run["units"], sampled.run["units"], strict=True):
        for recorded, unit in ((greedy, one), (sampled, other)):
            decided, _ = recorded.tell(unit)
            assert decided.listens == unit["is_listen"]
            assert decided.text == unit["text"]


def test_a_seed_fixes_what_is_drawn(goldens: Path, model: Any, thinker: Thinker) -> None:
    def ids(seed: int) -> list[tuple[int, ...]]:
        recorded = Run(goldens, "duplex_sampled", model, thinker)
        voice = of_torch(recorded.tensors["feed.embeds"][26:46])
        recorded.llm.run(Opened(prompt="Hello.", options=Options(seed=seed), reference=voice))
        recorded.greedy = True  # no recorded draws
        return [recorded.tell(unit)[0].ids for unit in recorded.run["units"][1:5]]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)

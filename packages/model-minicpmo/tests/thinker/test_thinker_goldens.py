"""The thinker's program against the recorded runs: every unit's ids, text, logits and hidden states, through moved windows too.

The language model under it is transformers' own: what is proven is what it is fed, in which order, and what is made of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from duplex_core.stages import Forward
from duplex_core.torch_tensors import as_torch
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.payloads import Decided, Options, Said
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.recorded import WINDOWS, Recording, is_forced, prefix

pytestmark = pytest.mark.engines

RUNS = ("duplex_greedy", "duplex_sampled", "duplex_window_basic", "duplex_window_context", "duplex_vision")
TOLERANCE = 5e-5


class Run(Recording):
    """One recorded run, fed to the program unit by unit."""

    def __init__(self, goldens: Path, name: str, model: Any, thinker: Thinker) -> None:
        super().__init__(goldens, name)
        self.llm = OverTransformers(model, thinker.open(name))
        self.llm.run(self.opened)

    def tell(self, unit: dict[str, Any]) -> tuple[Decided, Said | None]:
        """Feed one unit; what was decided, and what the talker is told."""
        decided, forward = self.llm.run(self.sensed(unit))
        assert isinstance(decided, Decided)
        assert isinstance(forward, Forward)
        return decided, forward.payload


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
    compared = 0
    for unit in recorded.units:
        decided, said = recorded.tell(unit)
        assert decided.listens == unit["is_listen"]
        if is_forced(unit):
            assert (said is not None) == unit["turn_open_before"]
            continue
        assert decided.context == unit["cache_len"]["after_generate"]
        assert [*decided.ids, recorded.unit_end] == unit["ids"]
        assert decided.text == unit["text"]
        assert decided.ends_turn == unit["end_of_turn"]
        logits = recorded.tensors[prefix(unit) + "llm_logits_raw"]
        assert largest(torch.stack(recorded.llm.logits[: len(logits)]), logits) < TOLERANCE
        if said is not None:
            assert said.hidden is not None
            assert list(said.ids) == recorded.tensors[prefix(unit) + "tts_ids_in"].tolist()
            assert largest(as_torch(said.hidden), recorded.tensors[prefix(unit) + "llm_hidden"]) < TOLERANCE
            assert said.opens_turn == (not unit["turn_open_before"])
            compared += 1
    assert compared == sum(not unit["is_listen"] for unit in recorded.units)


@pytest.mark.parametrize("name", WINDOWS)
def test_a_moved_window_has_the_recorded_keys(name: str, goldens: Path, model: Any, thinker: Thinker) -> None:
    recorded = Run(goldens, name, model, thinker)
    for unit in recorded.units:
        recorded.tell(unit)
    last = recorded.units[-1]
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
    for one, other in zip(greedy.units, sampled.units, strict=True):
        for recorded, unit in ((greedy, one), (sampled, other)):
            decided, _ = recorded.tell(unit)
            assert decided.listens == unit["is_listen"]
            assert decided.text == unit["text"]


def test_a_seed_fixes_what_is_drawn(goldens: Path, model: Any, thinker: Thinker) -> None:
    def ids(seed: int) -> list[tuple[int, ...]]:
        recorded = Run(goldens, "duplex_sampled", model, thinker)
        recorded.llm.run(msgspec.structs.replace(recorded.opened, options=Options(seed=seed)))
        recorded.options = Options(greedy=True)  # no recorded draws
        return [recorded.tell(unit)[0].ids for unit in recorded.units[1:5]]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)

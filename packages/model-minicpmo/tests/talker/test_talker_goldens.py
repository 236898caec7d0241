"""The talker against the vendor's recorded runs: condition, logits, distribution, and every code, unit by unit and in chat."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.sampling import CHAT_SAMPLING, DUPLEX_SAMPLING, code_probabilities
from model_minicpmo.gpu.talker import CodeLimits, Talker, Utterance, chat_limits, chat_parts, unit_limits
from model_minicpmo.gpu.talker_model import TalkerModel, load_talker_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engines

DUPLEX_RUNS = (
    "duplex_greedy",
    "duplex_sampled",
    "duplex_window_basic",
    "duplex_window_context",
    "duplex_vision",
    "duplex_greedy_release",
)
CHAT_RUNS = ("chat_text", "chat_audio", "chat_text_interleaved")
TOLERANCE = 5e-5


@cache
def _model(goldens: Path) -> TalkerModel:
    return load_talker_model(open_checkpoint(goldens / "checkpoint"))


def _run(goldens: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = goldens / name
    return json.loads((folder / "run.json").read_text()), load_file(folder / "tensors.safetensors")


def _spoken_units(run: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"u{index:02d}.", unit) for index, unit in enumerate(run["units"]) if unit.get("tts")]


def _recorded(uniforms: list[float] | None) -> Callable[[], float] | None:
    return None if uniforms is None else iter(uniforms).__next__


def _utterance(slot: int, key: str, unit: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Utterance:
    speech = unit["tts"]
    limits = unit_limits(opens_turn=speech["position_start"] == 0, closes_turn=unit["end_of_turn"])
    assert limits == CodeLimits(min_codes=speech["min_new_tokens"], max_steps=speech["max_new_tokens"])
    return Utterance(
        slot=slot,
        ids=tensors[key + "tts_ids_in"],
        hidden=tensors[key + "llm_hidden"],
        limits=limits,
        uniform=_recorded(speech.get("u")),
        closes_turn=unit["end_of_turn"],
        keep_logits=True,
    )


@pytest.mark.parametrize("name", DUPLEX_RUNS)
def test_every_unit_of_a_duplex_run(goldens: Path, name: str) -> None:
    run, tensors = _run(goldens, name)
    talker = Talker(_model(goldens), slots=3)
    slot = 1
    for key, unit in _spoken_units(run):
        speech = unit["tts"]
        [spoken] = talker.say([_utterance(slot, key, unit, tensors)])
        assert spoken.start == speech["position_start"]
        assert spoken.condition is not None
        assert spoken.logits is not None
        torch.testing.assert_close(spoken.condition, tensors[key + "tts_condition"], atol=TOLERANCE, rtol=0)
        assert [*spoken.codes, spoken.last] == speech["sampled"]
        assert list(spoken.codes) == speech["returned"]
        if key + "tts_logits_raw" in tensors:
            torch.testing.assert_close(spoken.logits, tensors[key + "tts_logits_raw"], atol=TOLERANCE, rtol=0)
        assert talker.length(slot) == (0 if unit["end_of_turn"] else speech["kv_after"])
        assert not spoken.forgot


def test_the_distributions_that_were_recorded(goldens: Path) -> None:
    run, tensors = _run(goldens, "duplex_sampled")
    for key, unit in _spoken_units(run):
        codes = unit["tts"]["sampled"]
        probabilities = code_probabilities(
            tensors[key + "tts_logits_raw"],
            [codes[:step] for step in range(len(codes))],
            [DUPLEX_SAMPLING] * len(codes),
            banned=[step < unit["tts"]["min_new_tokens"] for step in range(len(codes))],
            end_code=256,
        )
        torch.testing.assert_close(probabilities, tensors[key + "tts_probs"], atol=1e-6, rtol=0)


def test_sessions_side_by_side_say_what_each_says_alone(goldens: Path) -> None:
    """All runs at once, one a slot, each at its own unit of its own turn."""
    names = [name for name in DUPLEX_RUNS if name != "duplex_greedy_release"]
    runs = [_run(goldens, name) for name in names]
    waiting = [_spoken_units(run) for run, _ in runs]
    talker = Talker(_model(goldens), slots=len(runs))
    while any(waiting):
        units = {slot: units.pop(0) for slot, units in enumerate(waiting) if units}
        said = talker.say([_utterance(slot, key, unit, runs[slot][1]) for slot, (key, unit) in units.items()])
        for spoken in said:
            key, unit = units[spoken.slot]
            assert [*spoken.codes, spoken.last] == unit["tts"]["sampled"], (names[spoken.slot], key)
            assert spoken.logits is not None
            raw = runs[spoken.slot][1].get(key + "tts_logits_raw")
            if raw is not None:
                torch.testing.assert_close(spoken.logits, raw, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CHAT_RUNS)
def test_an_answer_in_chat(goldens: Path, name: str) -> None:
    run, tensors = _run(goldens, name)
    condition = tensors["tts_condition.0" if run["interleaved"] else "tts_condition"]
    first, rows = run["tts_text_start"], condition.shape[0] - 2
    [(part, text_ends)] = chat_parts(rows, interleaved=run["interleaved"])
    ids = torch.tensor([*run["input_ids"], *run["generated_ids"]])[first:][part]
    [spoken] = Talker(_model(goldens), slots=1).say(
        [
            Utterance(
                slot=0,
                ids=ids,
                hidden=tensors["last_hidden"][first:][part],
                limits=chat_limits(interleaved=run["interleaved"]),
                sampling=DUPLEX_SAMPLING if run["interleaved"] else CHAT_SAMPLING,
                uniform=_recorded(run["tts_uniforms"]),
                text_ends=text_ends,
                closes_turn=True,
                keep_logits=True,
            )
        ]
    )
    assert spoken.condition is not None
    assert spoken.logits is not None
    torch.testing.assert_close(spoken.condition, condition, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(spoken.logits, tensors["tts_logits_raw"], atol=TOLERANCE, rtol=0)
    assert [*spoken.codes, spoken.last] == run["tts_tokens"]
    assert spoken.ended

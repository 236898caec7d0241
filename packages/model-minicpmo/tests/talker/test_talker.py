"""The talker's slots on a checkpoint of ours: against transformers' Llama, and what its caller may and may not do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaModel

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.talker import (
    CHAT_SAMPLING,
    CodeLimits,
    Spoken,
    Talker,
    TalkerBusyError,
    Utterance,
    chat_limits,
    chat_parts,
    seeded_uniforms,
    unit_limits,
)
from model_minicpmo.gpu.talker_model import TalkerModel, load_talker_model
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engines

WIDTH = TINY.llm.hidden


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TINY, seed=2)


@pytest.fixture(scope="module")
def model(folder: Path) -> TalkerModel:
    return load_talker_model(open_checkpoint(folder))


def _words(seed: int, count: int, slot: int = 0, limits: CodeLimits | None = None) -> Utterance:
    generator = torch.Generator().manual_seed(seed)
    return Utterance(
        slot=slot,
        ids=torch.randint(0, 400, (count,), generator=generator),
        hidden=torch.randn(count, WIDTH, generator=generator),
        limits=limits or CodeLimits(min_codes=6, max_steps=6),
        uniform=seeded_uniforms(seed),
        keep_logits=True,
    )


def test_a_turn_is_one_pass_of_transformers_llama(folder: Path, model: TalkerModel) -> None:
    weights = {
        name.removeprefix("tts.model."): tensor.float()
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name.startswith("tts.model.")
    }
    config = LlamaConfig(
        hidden_size=TINY.talker.hidden,
        intermediate_size=TINY.talker.intermediate,
        num_hidden_layers=TINY.talker.layers,
        num_attention_heads=TINY.talker.heads,
        num_key_value_heads=TINY.talker.heads,
        vocab_size=32_000,
        rms_norm_eps=1e-6,
    )
    oracle = LlamaModel(config).eval()
    oracle.load_state_dict(weights)
    talker = Talker(model, slots=2)
    units = [talker.say([_words(seed, count)])[0] for seed, count in ((1, 18), (2, 5), (3, 0), (4, 11))]
    rows: list[torch.Tensor] = []
    places: list[int] = []
    for unit in units:
        assert unit.condition is not None
        first = sum(part.shape[0] for part in rows) + unit.condition.shape[0] - 1
        places.extend(range(first, first + len(unit.codes) + 1))
        rows += [unit.condition, model.code_rows(list(unit.codes))]
    with torch.no_grad():
        states = oracle(inputs_embeds=torch.cat(rows)[None]).last_hidden_state[0, places]
    logits = torch.cat([unit.logits for unit in units if unit.logits is not None])
    torch.testing.assert_close(logits, model.code_logits(states), atol=5e-5, rtol=0)


def test_utterances_that_begin_and_end_at_different_steps_are_those_of_each_alone(model: TalkerModel) -> None:
    """Speakers come and go at every step, a long answer in chat (wider than what is filled up) among them."""
    utterances = [
        _words(10, 18, slot=0, limits=CodeLimits(min_codes=9, max_steps=9)),
        replace(
            _words(11, 90, slot=1, limits=CodeLimits(min_codes=30, max_steps=30)),
            sampling=CHAT_SAMPLING,
            text_ends=True,
        ),
        _words(12, 3, slot=2, limits=CodeLimits(min_codes=4, max_steps=4)),
        replace(_words(13, 7, slot=3, limits=CodeLimits(min_codes=12, max_steps=12)), uniform=None),
    ]
    alone = {one.slot: Talker(model, slots=4).say([replace(one, uniform=_fresh(one))])[0] for one in utterances}
    talker, done = Talker(model, slots=4), dict[int, Spoken]()
    waiting = [replace(one, uniform=_fresh(one)) for one in utterances]
    while waiting or talker.busy:
        if waiting:
            talker.begin(waiting.pop(0))
        done |= {spoken.slot: spoken for spoken in talker.step()}
    for slot, spoken in alone.items():
        assert (done[slot].codes, done[slot].last, done[slot].length) == (spoken.codes, spoken.last, spoken.length)
        torch.testing.assert_close(done[slot].logits, spoken.logits, atol=2e-5, rtol=0)


def _fresh(utterance: Utterance) -> Callable[[], float] | None:
    return None if utterance.uniform is None else seeded_uniforms(99 + utterance.slot)


def test_a_turn_that_was_closed_leaves_nothing(model: TalkerModel) -> None:
    talker = Talker(model, slots=1)
    [first] = talker.say([_words(1, 8)])
    talker.say([replace(_words(2, 8), closes_turn=True)])
    assert talker.length(0) == 0
    [again] = talker.say([_words(1, 8)])
    assert (again.codes, again.start) == (first.codes, 0)
    talker.close_turn(0)
    [once_more] = talker.say([_words(1, 8)])
    assert once_more.codes == first.codes


def test_a_cancelled_slot_is_free_and_the_others_go_on(model: TalkerModel) -> None:
    talker = Talker(model, slots=2)
    for slot in (0, 1):
        talker.begin(_words(5, 8, slot=slot))
    talker.step()
    talker.cancel(0)
    assert talker.busy == {1}
    assert talker.length(0) == 0
    [alone] = Talker(model, slots=2).say([_words(5, 8, slot=1)])
    talker.begin(_words(6, 4, slot=0))
    done = dict[int, Spoken]()
    while talker.busy:
        done |= {spoken.slot: spoken for spoken in talker.step()}
    assert done[1].codes == alone.codes
    assert done[0].codes == Talker(model, slots=2).say([_words(6, 4, slot=0)])[0].codes
    talker.begin(_words(6, 4, slot=0))
    talker.cancel(0)  # before it began
    assert talker.step() == []


def test_a_full_slot_goes_on_without_the_turns_earlier_part(model: TalkerModel) -> None:
    talker = Talker(model, slots=1, positions=128)
    limits = unit_limits(opens_turn=False, closes_turn=False)
    units = [talker.say([_words(seed, 18, limits=limits)])[0] for seed in range(5)]
    assert [unit.length for unit in units] == [44, 88, 44, 88, 44]
    assert [unit.forgot for unit in units] == [False, False, True, False, True]
    [fresh] = Talker(model, slots=1).say([_words(4, 18, limits=limits)])
    assert units[4].codes == fresh.codes


def test_an_answer_longer_than_a_slot_ends_where_the_slot_does(model: TalkerModel) -> None:
    limits = CodeLimits(min_codes=500, max_steps=500)
    [spoken] = Talker(model, slots=1, positions=128).say([_words(1, 90, limits=limits)])
    assert len(spoken.codes) == 128 - 91 - 1
    assert not spoken.ended
    with pytest.raises(ValueError, match="does not fit"):
        Talker(model, slots=1, positions=128).begin(_words(1, 128))


def test_the_end_code_ends_and_is_not_returned(model: TalkerModel) -> None:
    """The end code has the last id, and so is what a number just below 1 draws, once it is allowed."""
    limits = CodeLimits(min_codes=2, max_steps=26)
    draws = iter([0.999_999_999] * 3)
    [spoken] = Talker(model, slots=1).say([replace(_words(3, 2, limits=limits), uniform=draws.__next__)])
    assert spoken.ended
    assert spoken.last == model.end_code
    assert spoken.codes == (model.end_code - 1,) * 2
    assert spoken.length == 2 + 1 + 2  # words, the mark before the audio, codes: the end code is not fed


def test_what_a_caller_may_not_do(model: TalkerModel) -> None:
    talker = Talker(model, slots=1)
    assert talker.step() == []
    with pytest.raises(ValueError, match="no slot 1"):
        talker.begin(_words(1, 2, slot=1))
    with pytest.raises(ValueError, match=r"want hidden states \[3, 128\], not \[2, 128\]"):
        talker.begin(replace(_words(1, 2), ids=torch.tensor([1, 2, 3])))
    talker.begin(_words(1, 2))
    with pytest.raises(TalkerBusyError, match="slot 0 is still speaking"):
        talker.begin(_words(1, 2))
    with pytest.raises(TalkerBusyError):
        talker.close_turn(0)
    with pytest.raises(ValueError, match="positions is 64"):
        Talker(model, slots=1, positions=64)
    with pytest.raises(ValueError, match="min_codes"):
        CodeLimits(min_codes=-1, max_steps=3)


def test_limits() -> None:
    assert unit_limits(opens_turn=True, closes_turn=False) == CodeLimits(min_codes=0, max_steps=26)
    assert unit_limits(opens_turn=False, closes_turn=False) == CodeLimits(min_codes=26, max_steps=26)
    assert unit_limits(opens_turn=False, closes_turn=True) == CodeLimits(min_codes=0, max_steps=26)
    assert chat_limits() == CodeLimits(min_codes=50, max_steps=2048)
    assert chat_limits(interleaved=True).min_codes == 0


def test_the_parts_of_an_answer_in_chat() -> None:
    assert chat_parts(23, interleaved=False) == [(slice(0, 23), True)]
    assert chat_parts(23, interleaved=True) == [(slice(0, 10), False), (slice(10, 20), False), (slice(20, 23), True)]
    assert chat_parts(20, interleaved=True) == [(slice(0, 10), False), (slice(10, 20), True)]
    for interleaved in (False, True):
        assert chat_parts(0, interleaved=interleaved) == [(slice(0, 0), True)]


def test_a_talker_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in ("merges.txt", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"num_vq": 1', '"num_vq": 4'))
    with pytest.raises(CheckpointError, match="num_vq is 4; only 1 is supported"):
        load_talker_model(open_checkpoint(tmp_path))
    (tmp_path / "config.json").write_text(text)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["tts.emb_code.0.weight"]
    weights["tts.something.new"] = torch.zeros(1)
    weights["tts.emb_text.weight"] = weights["tts.emb_text.weight"][:7].clone()
    save_file(weights, tmp_path / "model.safetensors")
    said = r"missing: emb_code.0.weight; unexpected: something.new; .*emb_text.weight is \[7, 32\]"
    with pytest.raises(CheckpointError, match=said):
        load_talker_model(open_checkpoint(tmp_path))


def test_hidden_states_that_are_no_numbers_never_reach_the_cache(model: TalkerModel) -> None:
    """Whoever has the slot next would have them behind its own positions, where even masked they count."""
    talker = Talker(model, slots=2)
    [before] = talker.say([_words(1, 5)])
    talker.cancel(0)
    for bad in (torch.nan, torch.inf):
        long = _words(2, 40)
        long.hidden[20, 3] = bad
        with pytest.raises(ValueError, match="no numbers"):
            talker.begin(long)
    assert not talker.busy
    assert bool(torch.isfinite(talker._cache.keys).all())
    [after] = talker.say([_words(1, 5)])
    assert after.codes == before.codes
    assert torch.equal(after.logits, before.logits)

"""The thinker's answers to chats: the prompt against the recorded ones, the greedy answer against transformers' own.

The recorded answers come from a search with three beams and a repetition penalty of 1.2, and the recorded hidden states are those
of whichever beam was first at each step. The last test shows that; a served chat is sampled, or greedy.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from duplex_core.stages import Forward
from duplex_core.torch_tensors import as_torch
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.payloads import Written
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.recorded import chat_sensed

pytestmark = pytest.mark.engines

TOLERANCE = 5e-5
CHATS = ("chat_text", "chat_text_interleaved", "chat_audio")
END_OF_MESSAGE, END_OF_SPEECH = 302, 361
"""Ids in the golden checkpoint."""


@pytest.fixture(scope="module")
def llm(goldens: Path) -> OverTransformers:
    torch.set_num_threads(1)
    thinker = Thinker(checkpoint=str(goldens / "checkpoint"), engine={"max_model_len": 1024})
    return OverTransformers(language_model(goldens / "checkpoint"), thinker.open("chat"))


@pytest.mark.parametrize("name", CHATS)
def test_the_prompt_is_the_recorded_one(name: str, goldens: Path, llm: OverTransformers) -> None:
    run = json.loads((goldens / name / "run.json").read_text())
    tensors = load_file(goldens / name / "tensors.safetensors")
    *written, _ = llm.run(chat_sensed(goldens, name))
    last = written[-1]
    assert isinstance(last, Written)
    assert last.input_tokens == len(run["input_ids"])
    assert llm.appended[0].ids == run["input_ids"]
    embeds = llm.model.get_input_embeddings()(torch.tensor(run["input_ids"])).detach()
    if llm.appended[0].embeds is not None:
        embeds[list(llm.appended[0].embed_at)] = as_torch(llm.appended[0].embeds)
    assert torch.equal(embeds, tensors["input_embeds"])
    assert float((llm.first_logits - tensors["lm_logits"][0]).abs().max()) < TOLERANCE


@pytest.mark.parametrize("name", CHATS)
def test_an_answer_is_what_transformers_answers(name: str, goldens: Path, llm: OverTransformers) -> None:
    tensors = load_file(goldens / name / "tensors.safetensors")
    *written, forward = llm.run(chat_sensed(goldens, name))
    whole = llm.model.generate(
        inputs_embeds=tensors["input_embeds"][None],
        max_new_tokens=96,
        do_sample=False,
        eos_token_id=[END_OF_MESSAGE],
        pad_token_id=END_OF_MESSAGE,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    ids = whole.sequences[0].tolist()
    assert [each.done for each in written] == [False] * (len(written) - 1) + [True]
    assert written[-1].output_tokens == len(ids)
    assert not written[-1].cut
    assert isinstance(forward, Forward)
    said = forward.payload
    assert list(said.ids) == ids[: ids.index(END_OF_SPEECH)]
    hidden = torch.stack([step[-1][0, -1] for step in whole.hidden_states[1:]])[: len(said.ids)]
    assert float((as_torch(said.hidden) - hidden).abs().max()) < TOLERANCE


@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`:UserWarning")
@pytest.mark.parametrize("name", CHATS)
def test_what_was_recorded_is_a_search_with_three_beams(name: str, goldens: Path, llm: OverTransformers) -> None:
    run = json.loads((goldens / name / "run.json").read_text())
    tensors = load_file(goldens / name / "tensors.safetensors")
    whole = llm.model.generate(
        inputs_embeds=tensors["input_embeds"][None],
        max_new_tokens=96,
        do_sample=False,
        num_beams=3,
        repetition_penalty=1.2,
        eos_token_id=[END_OF_MESSAGE],
        pad_token_id=END_OF_MESSAGE,
    )
    assert whole[0].tolist() == run["generated_ids"]


def test_an_answer_that_is_cut_says_so(goldens: Path, llm: OverTransformers) -> None:
    *written, forward = llm.run(chat_sensed(goldens, "chat_audio", max_tokens=2))
    assert written[-1].cut
    assert written[-1].output_tokens == 2
    assert len(as_torch(forward.payload.hidden)) == len(forward.payload.ids)

"""The checkpoint that behaves: when it listens, when it speaks and what it says, through the workers of any checkpoint.

The language model is transformers' own, fed by the thinker's program.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from duplex_core.stages import Forward
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import SlotWork
from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.senses_worker import SensesWorker
from model_minicpmo.gpu.talker import (
    CHAT_SAMPLING,
    DUPLEX_SAMPLING,
    Talker,
    Utterance,
    chat_limits,
    seeded_uniforms,
    unit_limits,
)
from model_minicpmo.gpu.talker_model import load_talker_model
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.payloads import (
    Chat,
    ChatMessage,
    ChatPart,
    Decided,
    Open,
    Options,
    Orders,
    Said,
    Unit,
    Written,
)
from model_minicpmo.testing.behaviour import Behaviour, split
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.sizes import TALKING, TINY
from model_minicpmo.testing.talking import write_talking_checkpoint

pytestmark = pytest.mark.engines

SPEAKS = Behaviour()
TURN = [*SPEAKS.units]
LISTENS = ""


class Stages:
    """The senses, the thinker and the talker of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.senses = SensesWorker(checkpoint=str(folder))
        self.senses.start(1, "cpu")
        self.thinker = Thinker(checkpoint=str(folder), engine={"max_model_len": 4096})
        self.model = language_model(folder)
        self.talker = Talker(load_talker_model(open_checkpoint(folder)), slots=1, positions=512)

    def sense(self, payload: Any) -> Any:
        [result] = self.senses.step([SlotWork(slot=0, payload=payload)])
        assert result.done
        assert result.failed is None
        [forward] = result.outputs
        return forward.payload


class Conversation:
    """One session, unit by unit: `S` is a second of sound, `q` of faint noise, `z` of nothing."""

    def __init__(self, stages: Stages, options: Options) -> None:
        stages.senses.reset(0)
        self.stages = stages
        self.llm = OverTransformers(stages.model, stages.thinker.open("x"))
        self.llm.run(stages.sense(Open(prompt="Streaming Omni Conversation.", options=options)))
        self.number = 0
        self.said: list[Said | None] = []
        self.decided: list[Decided] = []

    def hear(self, script: str, **orders: Any) -> list[str]:
        """Hear some units; what was said in each."""
        return [self.unit(kind, **orders) for kind in script]

    def unit(self, kind: str, **orders: Any) -> str:
        return self.take_in(second(kind, self.number), **orders)

    def take_in(self, samples: torch.Tensor, **orders: Any) -> str:
        asked = Unit(orders=Orders(number=self.number, **orders), samples=of_torch(samples))
        decided, forward = self.llm.run(self.stages.sense(asked))
        assert isinstance(decided, Decided)
        assert isinstance(forward, Forward)
        self.number += 1
        self.said.append(forward.payload)
        self.decided.append(decided)
        return decided.text


def second(kind: str, seed: int) -> torch.Tensor:
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal(16_000).astype(np.float32))
    if kind != "S":
        return 1e-3 * noise if kind == "q" else torch.zeros(16_000)
    at = torch.arange(16_000) / 16_000
    pitch = 2 * torch.pi * 150 * at
    tones = torch.stack([torch.sin(number * pitch) / number for number in range(1, 15)]).sum(dim=0)
    return 0.1 * tones * (0.6 + 0.4 * torch.sin(2 * torch.pi * 4 * at)) + 1e-3 * noise


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(write_talking_checkpoint(tmp_path_factory.mktemp("talking"), seed=2))


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("quiet", ["q", "z"], ids=["faint-noise", "silence"])
def test_it_listens_to_sound_answers_when_that_ends_and_stops(stages: Stages, greedy: bool, quiet: str) -> None:
    talk = Conversation(stages, Options(greedy=greedy, seed=4))
    assert talk.hear(quiet * 2) == [LISTENS] * 2
    assert talk.hear("SSS") == [LISTENS] * 3
    assert talk.hear(quiet * 3) == TURN
    assert talk.hear(quiet * 3) == [LISTENS] * 3
    assert talk.hear("S" + quiet * 4) == [LISTENS, *TURN, LISTENS]
    assert [each.ends_turn for each in talk.decided] == [False] * 7 + [True] + [False] * 6 + [True, False]
    assert [said is not None for said in talk.said] == [bool(each.text) for each in talk.decided]
    assert all(each.listens == (each.text == LISTENS) for each in talk.decided)


@pytest.mark.parametrize("begin", [0, 4_000, 13_000], ids=lambda begin: f"from-{begin}")
def test_it_hears_people_to_their_ends_wherever_in_a_unit_they_begin(stages: Stages, goldens: Path, begin: int) -> None:
    samples, rate = soundfile.read(goldens / "inputs" / "question.wav", dtype="float32")
    assert rate == 16_000
    question = torch.from_numpy(samples[: 16_000 * 3])
    whole = torch.cat([torch.zeros(16_000 + begin), question, torch.zeros(16_000 * 6 - begin)])
    talk = Conversation(stages, Options(greedy=True))
    said = [talk.take_in(unit) for unit in whole.split(16_000)]
    listened = said.index(TURN[0])
    assert (4 if begin == 0 else 5) <= listened + (begin < 13_000) <= 6
    assert said == [LISTENS] * listened + TURN + [LISTENS] * (len(said) - listened - len(TURN))


def test_it_speaks_on_when_it_is_talked_over_and_hears_what_comes_after(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("SqSSSqqq") == [LISTENS, *TURN, LISTENS, *TURN]


def test_an_interrupted_turn_is_not_gone_on_with(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("SqS") == [LISTENS, *TURN[:2]]
    assert talk.unit("S", forced=True, ends_turn=True) == LISTENS
    assert talk.hear("Sqqqq") == [LISTENS, *TURN, LISTENS]


def test_it_listens_when_forced_and_speaks_when_asked(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("qSq", forced=True) == [LISTENS] * 3
    assert talk.hear("qqqq") == [*TURN, LISTENS]
    assert talk.unit("q", asked=True) == TURN[0]
    assert talk.hear("qqq") == [*TURN[1:], LISTENS]
    assert talk.hear("S", asked=True, text="What is in the user's hand?") == [TURN[0]]


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_a_turn_is_closed_behind_the_last_token_that_it_may_have(stages: Stages, greedy: bool) -> None:
    """As the model closes one: all of it is spoken to its end, it is not gone on with, and the next second is heard."""
    talk = Conversation(stages, Options(greedy=greedy, seed=4))
    first, second_words = split(TURN[0]), split(TURN[1])
    most = len(first) + 2
    talk.hear("S")
    assert talk.unit("q", most_tokens=most) == TURN[0]
    assert not talk.decided[-1].ends_turn
    text = talk.unit("q", most_tokens=most - len(first))
    assert text == "".join(second_words[:2]).replace("Ġ", " ")
    cut, said = talk.decided[-1], talk.said[-1]
    assert (cut.tokens, cut.ends_turn, cut.cut) == (2, True, True)
    assert said is not None
    assert (len(said.ids), said.ends_turn) == (2, True)
    assert spoken(stages, said, seed=None).length == 0
    tokens = stages.thinker.open("any")._layout.tokens
    assert talk.hear("S") == [LISTENS]
    [append] = talk.llm.appended
    assert append.drop_last
    assert list(append.ids[:4]) == [tokens.turn_eos, tokens.chunk_eos, tokens.unit_end, tokens.unit_start]
    assert talk.hear("qqqq") == [*TURN, LISTENS]


def test_a_turn_that_ends_by_itself_with_its_last_token_was_not_cut(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("Sqq") == [LISTENS, *TURN[:2]]
    last = len(split(TURN[2]))
    assert talk.unit("q", most_tokens=last) == TURN[2]
    assert (talk.decided[-1].tokens, talk.decided[-1].ends_turn, talk.decided[-1].cut) == (last, True, False)


def test_a_turn_that_may_say_no_more_is_closed_without_a_word(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("Sq") == [LISTENS, TURN[0]]
    assert talk.unit("q", most_tokens=0) == ""
    assert (talk.decided[-1].listens, talk.decided[-1].ends_turn, talk.decided[-1].cut) == (False, True, True)
    assert talk.said[-1] is not None
    assert (talk.said[-1].ids, talk.said[-1].ends_turn) == ((), True)
    assert talk.hear("qSq") == [LISTENS, LISTENS, TURN[0]]


def test_a_limit_of_characters_leaves_each_unit_its_first_token(stages: Stages) -> None:
    talk = Conversation(stages, Options(greedy=True, char_limit=1))
    said = talk.hear("Sqq")[1:]
    assert all(said)
    assert [each.tokens for each in talk.decided[1:]] == [1, 1]


@pytest.mark.parametrize(
    "window",
    [Options(greedy=True, window="basic", high_tokens=200, low_tokens=140), Options(greedy=True, context_units=5)],
    ids=["basic", "context"],
)
def test_it_behaves_through_moved_windows(stages: Stages, window: Options) -> None:
    talk = Conversation(stages, window)
    for _ in range(6):
        assert talk.hear("qSSqqqq") == [LISTENS] * 3 + [*TURN, LISTENS]
    assert talk.decided[-1].dropped_units > 20
    assert talk.decided[-1].context < 400


def test_a_picture_changes_nothing(stages: Stages, picture: bytes) -> None:
    talk = Conversation(stages, Options(greedy=True))
    talk.hear("S")
    asked = Unit(orders=Orders(number=1), samples=of_torch(second("q", 1)), pictures=(picture,))
    decided, _ = talk.llm.run(stages.sense(asked))
    assert decided.text == TURN[0]


@pytest.fixture
def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("sound", [False, True], ids=["text", "sound"])
def test_a_chat_is_answered_with_its_own_sentence(stages: Stages, sound: bool) -> None:
    part = ChatPart(samples=of_torch(second("S", 0))) if sound else ChatPart(text="Who are you?")
    messages = (
        ChatMessage(role="user", parts=(ChatPart(text="Hi."),)),
        ChatMessage(role="assistant", parts=(ChatPart(text=SPEAKS.written),)),
        ChatMessage(role="user", parts=(part,)),
    )
    llm = OverTransformers(stages.model, stages.thinker.open("chat"))
    *written, forward = llm.run(stages.sense(Chat(messages=messages, options=Options(greedy=True), spoken=True)))
    assert all(isinstance(each, Written) for each in written)
    assert "".join(each.text for each in written) == SPEAKS.written
    assert written[-1].done
    assert not written[-1].cut
    said = forward.payload
    assert len(said.ids) == len(split(SPEAKS.written))
    assert 50 <= len(spoken(stages, said, seed=1).codes) <= 60


def spoken(stages: Stages, said: Said, seed: int | None) -> Any:
    assert said.hidden is not None
    limits = chat_limits() if said.chat else unit_limits(opens_turn=said.opens_turn, closes_turn=said.ends_turn)
    utterance = Utterance(
        slot=0,
        ids=torch.tensor(said.ids),
        hidden=as_torch(said.hidden),
        limits=limits,
        uniform=None if seed is None else seeded_uniforms(seed),
        text_ends=said.chat,
        closes_turn=said.ends_turn,
        sampling=CHAT_SAMPLING if said.chat else DUPLEX_SAMPLING,
    )
    [result] = stages.talker.say([utterance])
    return result


@pytest.mark.parametrize("seed", [None, 3], ids=["greedy", "sampled"])
def test_every_unit_of_a_turn_sounds_for_a_second(stages: Stages, seed: int | None) -> None:
    talk = Conversation(stages, Options(greedy=True))
    talk.hear("Sqqq")
    results = [spoken(stages, said, seed) for said in talk.said if said is not None]
    assert [len(result.codes) for result in results] == [25, 25, 25]
    assert len({code for result in results for code in result.codes}) > 10
    assert results[-1].length == 0


def test_its_own_words_and_as_many_units_as_wished(tmp_path: Path) -> None:
    behaviour = Behaviour(units=("One,", " two,", " three,", " four,", " five."), written="Six.")
    stages = Stages(write_talking_checkpoint(tmp_path, behaviour))
    talk = Conversation(stages, Options(greedy=True))
    assert talk.hear("Szzzzzz") == [LISTENS, *behaviour.units, LISTENS]
    assert [each.ends_turn for each in talk.decided] == [False] * 5 + [True, False]


def test_what_cannot_be_wired_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="these are said twice: Ġagain"):
        Behaviour(units=("once again", " and again"))
    with pytest.raises(ValueError, match="a unit has 1 to 17 words"):
        Behaviour(units=("",))
    with pytest.raises(ValueError, match="has to be words of ASCII characters"):
        Behaviour(units=("two  spaces",))
    with pytest.raises(ValueError, match="do not fit between 256 and 300"):
        write_checkpoint(tmp_path / "small", TINY, behaviour=SPEAKS)
    many = Behaviour(units=tuple(" " + " ".join(f"w{unit}x{word}" for word in range(15)) for unit in range(7)))
    with pytest.raises(ValueError, match="a language model of 128 with 4 heads of 32 has too few"):
        write_checkpoint(
            tmp_path / "many", replace(TALKING, vocabulary=replace(TALKING.vocabulary, added=600)), behaviour=many
        )

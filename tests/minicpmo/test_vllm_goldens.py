"""The thinker on vLLM against the recorded runs: every unit's ids, text and hidden states, through moved windows too.

What the program feeds is proven over transformers in the package's own tests, where logits are compared as well; here it is that
vLLM's engine, its cache that is kept from unit to unit, its logits processor and its moved keys give the same.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from duplex_core.spec import Checkpoint
from duplex_core.stages import Purpose
from duplex_core.torch_tensors import as_torch
from duplex_server.deploy import resolve
from duplex_server.engine.stages.processes.driver import Seats
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.payloads import (
    THINKER,
    Decided,
    Said,
    Written,
)
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.recorded import WINDOWS, Recording, chat_sensed, is_forced, prefix
from tests.support.vllm_driven import Driven

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:[Uu]nclosed context:ResourceWarning"),  # vllm leaves it to the collector
]
(SPEC,) = duplex_register_models()
TOLERANCE = 5e-5


class Thinking(Driven):
    """The thinker's stage, as the model's plan for a CPU describes it."""

    async def begin(self, checkpoint: Path) -> None:
        """Start its engine in this process."""
        plan = SPEC.stage_plan(Checkpoint(name="golden", path=str(checkpoint)), resolve(SPEC, {}, "cpu"))
        [stage] = [each for each in plan.stages if each.name == THINKER]
        seats = Seats(sessions=stage.resources.sessions or 0, chats=stage.resources.chats)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what vllm and its own imports warn of is theirs
            await self.driver.start(stage, "cpu", seats)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinking(goldens: Path) -> AsyncIterator[Thinking]:
    running = Thinking(THINKER)
    try:
        await running.begin(goldens / "checkpoint")
        yield running
    finally:
        await running.stop()


class Run(Recording):
    """One recorded run, and a session to play it to."""

    def __init__(self, goldens: Path, name: str, thinking: Thinking) -> None:
        super().__init__(goldens, name)
        self.thinking = thinking

    async def open(self) -> None:
        """Place the session and give it the recorded prompt."""
        self.thinking.driver.place(self.name)
        await self.thinking.ask(self.name, self.opened)

    async def play(self) -> int:
        """Play every unit and compare; how many were spoken."""
        await self.open()
        compared = 0
        for unit in self.units:
            answer = await self.thinking.ask(self.name, self.sensed(unit))
            (decided,), (said,) = answer.payloads, answer.forwards
            assert isinstance(decided, Decided)
            assert decided.listens == unit["is_listen"], unit["unit"]
            if is_forced(unit):
                continue
            assert [*decided.ids, self.unit_end] == unit["ids"], unit["unit"]
            assert (decided.text, decided.ends_turn) == (unit["text"], unit["end_of_turn"])
            assert decided.context == unit["cache_len"]["after_generate"]
            if said is not None:
                self.compare(said, unit)
                compared += 1
        self.thinking.driver.release(self.name)
        return compared

    def compare(self, said: Said, unit: dict[str, Any]) -> None:
        assert said.hidden is not None
        assert list(said.ids) == self.tensors[prefix(unit) + "tts_ids_in"].tolist()
        apart = float((as_torch(said.hidden) - self.tensors[prefix(unit) + "llm_hidden"]).abs().max())
        assert apart < TOLERANCE, (unit["unit"], apart)

    @property
    def spoken(self) -> int:
        """How many units the recording has that are spoken."""
        return sum(not unit["is_listen"] for unit in self.units)


async def test_units_are_decided_as_recorded_side_by_side(goldens: Path, thinking: Thinking) -> None:
    """One run greedy, one with the recorded draws, at the same time."""
    runs = [Run(goldens, name, thinking) for name in ("duplex_greedy", "duplex_sampled")]
    assert await asyncio.gather(*(each.play() for each in runs)) == [each.spoken for each in runs]


async def test_pictures_are_taken_in_as_recorded(goldens: Path, thinking: Thinking) -> None:
    run = Run(goldens, "duplex_vision", thinking)
    assert await run.play() == run.spoken


@pytest.mark.parametrize("name", WINDOWS)
async def test_a_moved_window_decides_as_recorded(name: str, goldens: Path, thinking: Thinking) -> None:
    before = thinking.counts.get("moved_positions", 0), thinking.counts.get("recomputed_positions", 0)
    run = Run(goldens, name, thinking)
    assert await run.play() == run.spoken
    await thinking.told()
    assert thinking.counts["moved_positions"] > before[0], "the recording moves its window"
    assert thinking.counts.get("recomputed_positions", 0) == before[1]


@pytest.mark.parametrize("name", ["chat_text", "chat_audio"])
async def test_a_chat_is_answered_as_transformers_answers(name: str, goldens: Path, thinking: Thinking) -> None:
    torch.set_num_threads(1)
    chat = chat_sensed(goldens, name)
    checkpoint = goldens / "checkpoint"
    program = Thinker(checkpoint=str(checkpoint), engine={"max_model_len": 1024})
    *written, forward = OverTransformers(language_model(checkpoint), program.open(name)).run(chat)
    thinking.driver.place(name)
    answer = await thinking.ask(name, chat, Purpose.CHAT)
    thinking.driver.release(name)
    assert text(answer.payloads) == text(written)
    assert answer.payloads[-1] == written[-1]
    (said,) = answer.forwards
    assert said.ids == forward.payload.ids
    assert said.ids
    assert float((as_torch(said.hidden) - as_torch(forward.payload.hidden)).abs().max()) < TOLERANCE


def text(written: list[Written]) -> str:
    return "".join(each.text for each in written)

"""Thinker and talker in worker processes of their own, linked as the server links them, and an engine's process killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from duplex_core.errors import DuplexError
from duplex_core.fence import Fence
from duplex_core.stages import (
    Lane,
    LinkKind,
    Resources,
    StageFailed,
    StageLink,
    StageLost,
    StageOutput,
    StagePlan,
    StageRequest,
    StageSpec,
)
from duplex_core.tensors import Tensor
from duplex_core.workers import Append, Sampling
from duplex_server.builtins import duplex_register_stage_runtimes
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.stages.host import StageHost, Told
from tests.support import vllm_pipeline as pipeline
from tests.support.pools import Held, alive

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

SOON_S = 60.0
START_S = 180.0
"""Importing vllm alone takes half a minute on a busy machine."""


class Linked:
    """The two stages, as the server has them."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.changed = asyncio.Event()
        self.host = StageHost({each.id: each for each in duplex_register_stage_runtimes()}, self._tell, EngineMetrics())
        self.number = 0

    def _tell(self, told: Told) -> None:
        self.told.append(told)
        self.changed.set()

    async def until(self, found: Any, timeout_s: float = SOON_S) -> Any:
        """The first thing told that is what is looked for."""
        async with asyncio.timeout(timeout_s):
            while not (wanted := [each for each in self.told if found(each)]):
                self.changed.clear()
                await self.changed.wait()
        return wanted[0]

    def submit(self, session: str, append: Append) -> str:
        """A turn for the thinker, whose hidden states the talker speaks of."""
        self.number += 1
        request = StageRequest(
            stage="thinker",
            request_id=f"q{self.number}",
            fence=Fence(session_id=session),
            lane=Lane.OUTPUT,
            payload=pipeline.Work(appends=(append,), speak=True),
        )
        self.host.submit(request)
        return request.request_id

    async def turn(self, session: str, append: Append) -> tuple[list[StageOutput], StageOutput]:
        """What both stages gave, and the end."""
        request = self.submit(session, append)

        def ends(each: Told) -> bool:
            if isinstance(each, StageLost) or each.request_id != request:
                return False
            return isinstance(each, StageFailed) or each.final

        end = await self.until(ends)
        assert isinstance(end, StageOutput), end
        outputs = [each for each in self.told if isinstance(each, StageOutput) and each.request_id == request]
        return [each for each in outputs if each.payload is not None], end


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def linked(checkpoints: Any) -> AsyncIterator[Linked]:
    def stage(name: str, model: Path, *inputs: StageLink) -> StageSpec:
        return StageSpec(
            name=name,
            factory="tests.support.vllm_pipeline:program",
            runtime="vllm",
            options={"model": str(model)},
            inputs=inputs,
            payloads="tests.support.vllm_pipeline:Payload",
            resources=Resources(sessions=3, chats=1, devices=("cpu",)),
        )

    before, both = Held.now(), Linked()
    try:
        await both.host.start(
            StagePlan(
                stages=(
                    stage("thinker", checkpoints.thinker),
                    stage("talker", checkpoints.talker, StageLink(source="thinker", kind=LinkKind.HIDDEN_STATES)),
                )
            )
        )
        yield both
    finally:
        await both.host.aclose()
    assert before.left() == ""


def turns(count: int) -> list[Append]:
    rows = np.random.default_rng(3).normal(size=(count, 2, pipeline.HIDDEN)).astype(np.float32)
    return [
        Append(
            ids=(index, 0, 0, 9),
            embeds=Tensor(dtype="float32", shape=(2, pipeline.HIDDEN), data=rows[index].tobytes()),
            embed_at=(1, 2),
            sampling=Sampling(max_tokens=4),
            hidden=True,
        )
        for index in range(count)
    ]


async def conversation(linked: Linked, checkpoints: Any, session: str, count: int) -> None:
    """Turns whose tokens, from both stages, are transformers'."""
    thinker, talker = pipeline.Reference(checkpoints.thinker), pipeline.Reference(checkpoints.talker)
    linked.host.place(session)
    for append in turns(count):
        outputs, end = await linked.turn(session, append)
        thought, spoken = (
            next(each.payload.segment for each in outputs if each.made_by == made_by) for made_by in ("", "talker")
        )
        ids, hidden = thinker.append(append)
        assert list(thought.ids) == ids
        assert np.abs(np.asarray(thought.hidden) - hidden.numpy()).max() < 1e-4
        assert list(spoken.ids) == talker.append(pipeline.spoken(thought.hidden))[0]
        assert [each.stage for each in end.metrics] == ["thinker", "talker"]
        assert [each.output_tokens for each in end.metrics] == [4, pipeline.SPOKEN]


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def engines(stage: str) -> list[int]:
    """The engine's processes of a stage: below its worker process, whose name tells the stage."""
    workers = [each for each in children(os.getpid()) if stage in Path(f"/proc/{each}/cmdline").read_text()]
    assert len(workers) == 1, workers
    return children(workers[0])


async def test_turns_through_both_processes_equal_transformers(linked: Linked, checkpoints: Any) -> None:
    await asyncio.gather(*(conversation(linked, checkpoints, f"s{index}", 3) for index in range(3)))
    for index in range(3):
        linked.host.release(f"s{index}")


async def test_a_killed_engine_loses_its_sessions_and_is_started_again(linked: Linked, checkpoints: Any) -> None:
    linked.told.clear()
    linked.host.place("a")
    linked.host.place("b")
    first, *_ = turns(1)
    await linked.turn("a", first)
    killed = engines("talker")
    for each in killed:
        os.kill(each, signal.SIGKILL)
    lost = {
        (await linked.until(lambda each, who=who: isinstance(each, StageLost) and each.session_id == who))
        for who in "ab"
    }
    assert {(each.stage, each.error.code.value, each.error.retryable) for each in lost} == {
        ("talker", "engine_error", True)
    }
    assert linked.host.down == ("talker",)
    linked.host.release("a")
    linked.host.release("b")
    with pytest.raises(DuplexError, match="talker"):
        linked.host.place("c")
    began = time.monotonic()
    while not linked.host.healthy():
        assert time.monotonic() - began < START_S
        await asyncio.sleep(0.2)
    assert not any(alive(each) for each in killed)
    await conversation(linked, checkpoints, "c", 2)
    assert len([each for each in linked.told if isinstance(each, StageLost)]) == 2
    linked.host.release("c")

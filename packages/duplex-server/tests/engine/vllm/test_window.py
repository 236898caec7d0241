"""A window that moves keeps keys and values, rotated to their new positions: equal to transformers with its cache cut alike."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from duplex_core.tensors import Tensor
from duplex_core.workers import Append, Sampling
from tests.support import vllm_pipeline as pipeline
from tests.support.vllm_driven import Driven, Failed

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),  # vllm's, at the end of an engine
]

CLOSE = 1e-4
PREFIX = 9


def kept(start: int, stop: int, **more: Any) -> Append:
    return Append(ids=[0] * (stop - start), kept=(start, stop), sampling=Sampling(), drop_last=True, **more)


def turn(rng: random.Random, **more: Any) -> Append:
    """Ids around some embeddings."""
    count = rng.randint(2, 6)
    rows = np.random.default_rng(rng.randrange(1000)).normal(size=(count, pipeline.HIDDEN)).astype(np.float32)
    return Append(
        ids=[rng.randrange(1, pipeline.THINKER_TOKENS), *[0] * count, rng.randrange(1, pipeline.THINKER_TOKENS)],
        embeds=Tensor(dtype="float32", shape=rows.shape, data=rows.tobytes()),
        embed_at=range(1, count + 1),
        sampling=Sampling(max_tokens=rng.randint(1, 5)),
        hidden=True,
        **more,
    )


class Windowed:
    """One session whose window moves."""

    def __init__(self, stage: Driven, checkpoints: Any, name: str, seed: int) -> None:
        self.stage = stage
        self.name = name
        self.rng = random.Random(seed)
        self.reference = pipeline.Windowed(checkpoints.thinker)
        stage.driver.place(name)

    async def turn(self, **more: Any) -> None:
        append = turn(self.rng, **more)
        segment = await self.stage.append(self.name, append)
        ids, hidden = self.reference.append(append)
        assert list(segment.ids) == ids
        assert np.abs(np.asarray(segment.hidden) - hidden.numpy()).max() < CLOSE
        assert segment.context == len(self.reference.context)

    async def move(self, *, middle: bool) -> None:
        """The prefix stays, some tokens follow, and what was said last is kept; one request, as a program does it."""
        context = len(self.reference.context)
        start = self.rng.randint(PREFIX + 1, context - 8)
        between = Append(ids=(5, 6, 7), sampling=Sampling(), drop_last=True)
        steps = [kept(0, PREFIX, fresh=True), *[between] * middle, kept(start, context)]
        answer = await self.stage.ask(self.name, pipeline.Work(appends=tuple(steps)))
        self.reference.reset()
        self.reference.keep(0, PREFIX)
        if middle:
            self.reference.append(between)
        self.reference.keep(start, context)
        assert [each.context for each in answer.segments][-1] == len(self.reference.context)
        await self.turn(drop_last=True)


async def test_moved_windows_equal_transformers(stages: Any, checkpoints: Any) -> None:
    sessions = [Windowed(stages.thinker, checkpoints, f"w{index}", 40 + index) for index in range(3)]

    async def talk(session: Windowed) -> None:
        for index in range(4):
            for _ in range(3):
                await session.turn()
            await session.move(middle=index % 2 == 0)

    async with asyncio.TaskGroup() as group:
        for each in sessions:
            group.create_task(talk(each))
    for each in sessions:
        stages.thinker.driver.release(each.name)
    await stages.thinker.told()
    assert stages.thinker.counts["moved_positions"] > 0
    assert "recomputed_positions" not in stages.thinker.counts
    await stages.thinker.told()
    assert stages.thinker.gauges["kv_used"] == 0.0


async def test_a_context_that_was_lost_is_fed_again_before_it_is_moved(stages: Any, checkpoints: Any) -> None:
    session = Windowed(stages.thinker, checkpoints, "lost", 50)
    for _ in range(4):
        await session.turn()
    answer = stages.thinker.submit(
        "lost", pipeline.Work(appends=(Append(ids=(1, 2), sampling=Sampling(max_tokens=60)),))
    )
    await stages.thinker.steps(3)
    stages.thinker.driver.abort("lost", answer.request.request_id)
    await session.move(middle=True)
    stages.thinker.driver.release("lost")


async def test_what_was_kept_and_then_lost_is_computed_again_without_what_was_dropped(
    stages: Any, checkpoints: Any
) -> None:
    thinker, plain = stages.thinker, pipeline.Reference(checkpoints.thinker)
    thinker.driver.place("again")
    first = Append(ids=tuple(range(40)), sampling=Sampling(), drop_last=True)
    steps = (first, kept(0, 4, fresh=True), kept(30, 40))
    await thinker.ask("again", pipeline.Work(appends=steps))
    answer = thinker.submit("again", pipeline.Work(appends=(Append(ids=(1, 2), sampling=Sampling(max_tokens=60)),)))
    await thinker.steps(3)
    thinker.driver.abort("again", answer.request.request_id)
    after = Append(ids=(*range(4), *range(30, 40), 9), sampling=Sampling(max_tokens=5))
    segment = await thinker.append("again", Append(ids=(9,), sampling=Sampling(max_tokens=5), drop_last=True))
    assert list(segment.ids) == plain.append(after)[0]
    thinker.driver.release("again")


@pytest.mark.parametrize(
    "steps",
    [
        (kept(0, 4),),  # nothing was said to be fresh
        (kept(0, 4, fresh=True), kept(4, 41)),
        (kept(3, 3, fresh=True),),
        (Append(ids=(1,), kept=(0, 4), fresh=True, sampling=Sampling()),),
        (Append(ids=[0] * 4, kept=(0, 4), fresh=True, hidden=True, sampling=Sampling()),),
        (kept(0, 4, fresh=True), Append(ids=(1,), fresh=True, sampling=Sampling()), kept(4, 8)),
    ],
)
async def test_what_cannot_be_kept_is_refused(stages: Any, steps: tuple[Append, ...]) -> None:
    stages.thinker.driver.place("wrong")
    await stages.thinker.append("wrong", Append(ids=tuple(range(40)), sampling=Sampling()))
    with pytest.raises(Failed, match="failed"):
        await stages.thinker.ask("wrong", pipeline.Work(appends=steps))
    stages.thinker.driver.release("wrong")

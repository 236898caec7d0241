"""What a stage on vLLM holds may be lost: to a KV cache that is too small for everybody, and with the engine's process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from duplex_core.stages import Purpose
from duplex_core.workers import Append, Sampling
from tests.support import vllm_pipeline as pipeline
from tests.support.vllm_driven import Answer, Driven

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),  # vllm's, at the end of an engine
]

BLOCK = 2 * 2 * 2 * 32 * 4 * 32
"""Bytes of a block: two layers, keys and values, two heads of 32 numbers of 4 bytes, 32 positions."""
BLOCKS = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(checkpoints: Any) -> AsyncIterator[Driven]:
    """A stage whose cache holds 10 blocks of 32 positions, and whose four sessions and chat may have 8 each."""
    stage = Driven("small")
    try:
        await stage.start(checkpoints.thinker, engine_args={"kv_cache_memory_bytes": (BLOCKS + 1) * BLOCK})
        yield stage
    finally:
        await stage.stop()


def work(*ids: int, most: int = 4, hidden: bool = True) -> pipeline.Work:
    return pipeline.Work(appends=(Append(ids=ids, sampling=Sampling(max_tokens=most), hidden=hidden),))


def equals(answer: Answer, reference: pipeline.Reference) -> bool:
    (append,) = answer.request.payload.appends
    (segment,) = answer.segments
    ids, hidden = reference.append(append)
    near = segment.hidden is None or bool(np.abs(np.asarray(segment.hidden) - hidden.numpy()).max() < 1e-4)
    return list(segment.ids) == ids and segment.context == len(reference.context) and near


async def test_the_one_idle_longest_is_set_aside_and_computed_again(small: Driven, checkpoints: Any) -> None:
    assert small.driver.engine.positions == BLOCKS * 32
    names = [f"s{index}" for index in range(4)]
    references = {name: pipeline.Reference(checkpoints.thinker) for name in names}
    for name in names:
        small.driver.place(name)
    set_aside = dict.fromkeys(names, 0)
    for turn in range(4):
        for number, name in enumerate(names):
            answer = await small.ask(name, work(*range(number, number + 30), hidden=turn % 2 == 0))
            assert equals(answer, references[name])
            assert answer.metrics is not None
            set_aside[name] += answer.metrics.preemptions
    assert all(set_aside.values()), set_aside  # four times 136 positions and more: 320 fit
    await small.told()
    assert small.counts["set_aside"] >= sum(set_aside.values())
    for name in names:
        small.driver.release(name)


async def test_all_at_once_wait_for_each_other_and_sessions_before_chats(small: Driven, checkpoints: Any) -> None:
    references = {name: pipeline.Reference(checkpoints.thinker) for name in ("a", "b", "c", "d", "chat")}
    for name in references:
        small.driver.place(name)
    ended: list[str] = []
    answers = {}
    for name in ("a", "chat", "b", "c", "d"):
        purpose = Purpose.CHAT if name == "chat" else Purpose.SESSION
        answers[name] = small.submit(name, work(*range(100), most=40), purpose)  # 5 blocks of 10
        answers[name].done.add_done_callback(functools.partial(lambda who, _: ended.append(who), name))
    async with asyncio.timeout(60):
        await asyncio.gather(*(each.done for each in answers.values()))
    assert sorted(ended[:2]) == ["a", "chat"]  # they came first and fitted
    assert sorted(ended[2:]) == ["b", "c", "d"]
    late = {name: small.submit(name, work(7, most=20)) for name in ("d", "c")}
    late["chat"] = small.submit("chat", work(7, most=20), Purpose.CHAT)
    late["a"] = small.submit("a", work(7, most=20))
    async with asyncio.timeout(60):
        await asyncio.gather(*(each.done for each in late.values()))
    for name, answer in (*answers.items(), *late.items()):
        assert equals(answer, references[name])
    for name in references:
        small.driver.release(name)


async def test_who_waits_for_memory_can_be_aborted(small: Driven, checkpoints: Any) -> None:
    for name in ("a", "b", "c"):
        small.driver.place(name)
    busy = [small.submit(name, work(*range(100), most=50)) for name in ("a", "b")]
    waiting = small.submit("c", work(*range(100), most=50))
    await asyncio.sleep(0)
    small.driver.abort("c", waiting.request.request_id)
    again = small.submit("c", work(5))
    async with asyncio.timeout(60):
        await asyncio.gather(*(each.done for each in busy), again.done)
    assert not waiting.done.done()
    assert not waiting.payloads
    for answer in (*busy, again):
        assert equals(answer, pipeline.Reference(checkpoints.thinker))
    for name in ("a", "b", "c"):
        small.driver.release(name)


async def test_a_window_that_cannot_be_moved_for_want_of_memory_is_computed_again(
    small: Driven, checkpoints: Any
) -> None:
    plain = pipeline.Reference(checkpoints.thinker)
    small.driver.place("large")
    await small.ask("large", work(*range(180), most=1, hidden=False))  # 6 blocks of 10
    keep = [
        Append(ids=[0] * (stop - start), kept=(start, stop), sampling=Sampling(), drop_last=True, fresh=not start)
        for start, stop in ((0, 4), (20, 180))
    ]
    after = Append(ids=(9,), sampling=Sampling(max_tokens=5), drop_last=True)
    answer = await small.ask("large", pipeline.Work(appends=(*keep, after)))
    wanted = Append(ids=(*range(4), *range(20, 180), 9), sampling=Sampling(max_tokens=5))
    assert list(answer.segments[-1].ids) == plain.append(wanted)[0]
    small.driver.release("large")
    await small.told()
    assert small.counts["recomputed_positions"] == 160
    assert small.counts["moved_positions"] == 4


async def test_nothing_is_held_for_sessions_that_are_over(small: Driven) -> None:
    await small.told()
    assert small.gauges["kv_used"] == 0.0
    assert small.gauges["running"] == small.gauges["waiting"] == 0.0


async def test_the_engines_death_is_told_also_when_nobody_waits_for_it(
    small: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    small.driver.place("last")
    await small.ask("last", work(1, 2, 3))
    for process in small.driver.engine._engine.engine_core.resources.engine_manager.processes:
        process.kill()
    async with asyncio.timeout(20):
        assert await small.reason == "stage small: the engine's process has died"
    answer = small.submit("last", work(4))  # the process ends now, and answers nobody
    session = small.driver._sessions["last"]
    assert session is not None
    await session.ended()
    assert not answer.done.done()
    caplog.clear()  # what vLLM has logged holds the whole engine by its traceback

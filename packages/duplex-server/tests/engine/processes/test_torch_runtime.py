"""The ``torch`` runtime with a real network: sessions together get to the last bit what each would get alone."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import re
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from duplex_core.fence import Fence
from duplex_core.stages import Lane, Resources, StageOutput, StageRequest, StageSpec
from duplex_core.tensors import Tensor
from duplex_core.torch_graphs import GraphedStep
from duplex_core.torch_tensors import as_torch
from duplex_core.workers import SlotWork
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes.pool import Pool
from tests.support import gru
from tests.support.pools import News, running

pytestmark = pytest.mark.engines

SLOTS = 16


def frame(seed: int, frames: int = 1) -> gru.Frame:
    values = np.random.default_rng(seed).standard_normal(gru.WIDTH).astype(np.float32)
    return gru.Frame(values=Tensor(dtype="float32", shape=(gru.WIDTH,), data=values.data), frames=frames)


def submit(pool: Pool, who: str, request_id: str, payload: gru.Frame) -> None:
    pool.submit(
        StageRequest(stage="gru", request_id=request_id, fence=Fence(session_id=who), lane=Lane.OUTPUT, payload=payload)
    )


async def test_a_gpu_that_is_not_there_is_named() -> None:
    good = gru.spec(sessions=1)
    there = torch.cuda.device_count()
    wrong = msgspec.structs.replace(good, resources=Resources(sessions=1, devices=(f"cuda:{there}",)))
    with pytest.raises(
        StageLoadError, match=rf"^device cuda:{there} was asked for, but torch .* sees {there} GPUs here$"
    ):
        async with running(wrong):
            pass


def made(news: News, who: str, request_id: str) -> list[bytes]:
    return [
        bytes(each.payload.values.data)
        for each in news.replies
        if isinstance(each, StageOutput) and (each.fence.session_id, each.request_id) == (who, request_id)
    ]


async def asked(pool: Pool, news: News, who: str, request_id: str, payload: gru.Frame) -> list[bytes]:
    """Ask, and wait for all that is made."""
    submit(pool, who, request_id, payload)
    ends = (who, request_id)
    await news.until(lambda: any((e.fence.session_id, e.request_id) == ends for e in news.ends))
    return made(news, who, request_id)


async def life(pool: Pool, news: News, who: str, seed: int, turns: int) -> list[tuple[gru.Frame, list[bytes]]]:
    """A session that comes, asks some times and goes."""
    pool.place(who)
    got = []
    rolls = random.Random(seed)
    for turn in range(turns):
        payload = frame(seed * 1000 + turn, rolls.choice([1, 1, 1, 5]))
        got.append((payload, await asked(pool, news, who, f"{turn}", payload)))
        if rolls.random() < 0.3:
            await asyncio.sleep(0.003 * rolls.random())
    pool.release(who)
    return got


def alone(asked_for: list[gru.Frame], slots: int = SLOTS, slot: int = 0) -> list[list[bytes]]:
    session = gru.Alone(slots, slot)
    return [session.run(payload) for payload in asked_for]


async def test_sixteen_sessions_that_come_and_go_get_what_each_would_get_alone() -> None:
    async with running(gru.spec(sessions=SLOTS)) as (pool, news):
        rolls = random.Random(4)

        async def seat(index: int) -> list[list[tuple[gru.Frame, list[bytes]]]]:
            """Several lives on one seat; who comes next begins anew in whatever slot is free."""
            return [
                await life(pool, news, f"{index}-{turn}", 100 * index + turn, rolls.randint(1, 12)) for turn in range(4)
            ]

        lives = [each for several in await asyncio.gather(*map(seat, range(SLOTS))) for each in several]
        await news.until(lambda: [each for each in news.stats if each.counts.get("steps")])
        stats = [each for each in news.stats if each.counts.get("steps")]
    assert len(lives) == 4 * SLOTS
    together = sum(each.counts["slot_steps"] for each in stats) / sum(each.counts["steps"] for each in stats)
    assert together > 2, "they did share steps"
    for one in lives:
        assert [got for _, got in one] == alone([payload for payload, _ in one])


def test_a_step_gives_the_same_for_every_choice_of_slots() -> None:
    """Without any process: the worker's own promise, on which the runtime's rests."""
    payload = frame(1, 3)
    first = alone([payload], slot=0)
    assert [alone([payload], slot=slot) for slot in (1, 7, SLOTS - 1)] == [first] * 3


async def test_neither_a_slot_that_changes_hands_nor_an_abort_touches_the_others() -> None:
    stays, goes, comes = ([frame(base + turn) for turn in range(4)] for base in (10, 20, 30))
    got: dict[str, list[list[bytes]]] = {"stays": [], "goes": [], "comes": []}
    async with running(gru.spec(sessions=3)) as (pool, news):
        for who in ("stays", "goes", "talks"):
            pool.place(who)
        submit(pool, "talks", "long", frame(2, 1_000_000))
        for turn in range(2):
            for who, frames in (("stays", stays), ("goes", goes)):
                got[who].append(await asked(pool, news, who, f"{turn}", frames[turn]))
        pool.release("goes")
        pool.place("comes")
        for turn in range(2):
            got["comes"].append(await asked(pool, news, "comes", f"{turn}", comes[turn]))
            got["stays"].append(await asked(pool, news, "stays", f"{turn + 2}", stays[turn + 2]))
        await news.until(lambda: len(made(news, "talks", "long")) > 5)
        pool.abort("talks")
        told = len(made(news, "talks", "long"))
        after = [await asked(pool, news, who, "after", frame(4, 50)) for who in ("stays", "comes")]
        assert len(made(news, "talks", "long")) == told
    assert got == {"stays": alone(stays, 3), "goes": alone(goes[:2], 3), "comes": alone(comes[:2], 3)}
    last = frame(4, 50)
    assert after == [alone([*stays, last], 3)[-1], alone([*comes[:2], last], 3)[-1]]


async def test_after_a_kill_a_new_session_begins_as_on_a_new_server() -> None:
    async with running(gru.spec(sessions=2)) as (pool, news):
        pool.place("a")
        await asked(pool, news, "a", "0", frame(5))
        (pid,) = pool.pids
        submit(pool, "a", "long", frame(6, 1_000_000))
        await news.until(lambda: made(news, "a", "long"))
        os.kill(pid, signal.SIGKILL)
        await news.until(lambda: [each.session_id for each in news.lost] == ["a"])
        pool.release("a")
        await news.until(lambda: [each for each in news.stats if each.replica is None][-1].gauges["replicas_up"])
        pool.place("b")
        assert await asked(pool, news, "b", "0", frame(7, 4)) == alone([frame(7, 4)], 2)[0]


PAGE = Path(__file__).parents[5] / "docs" / "architecture" / "stages.md"
PAYLOADS = """
import msgspec
from duplex_core.tensors import Tensor

class Frame(msgspec.Struct, frozen=True, kw_only=True):
    samples: Tensor
"""


async def test_the_worker_that_the_documentation_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (worker,) = [each for each in shown if "class Smooth:" in each]
    (stage,) = [each for each in shown if 'name="smooth"' in each]
    package = tmp_path / "model_smooth"
    package.mkdir()
    for name, text in {"__init__": "", "worker": worker, "payloads": PAYLOADS}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    frames = importlib.import_module("model_smooth.payloads").Frame
    values = np.ones(1920, np.float32)
    async with running(eval(stage, {"StageSpec": StageSpec, "Resources": Resources})) as (pool, news):  # noqa: S307
        for who, turns in (("a", 3), ("b", 1)):
            pool.place(who)
            for turn in range(turns):
                pool.submit(
                    StageRequest(
                        stage="smooth",
                        request_id=f"{turn}",
                        fence=Fence(session_id=who),
                        lane=Lane.OUTPUT,
                        payload=frames(samples=Tensor(dtype="float32", shape=(1920,), data=values.data)),
                    )
                )
        await news.ended(4)
        got = {
            (each.fence.session_id, each.request_id): float(np.asarray(each.payload.samples)[0])
            for each in news.replies
            if isinstance(each, StageOutput)
        }
    expected = {("a", "0"): 0.2, ("a", "1"): 0.36, ("a", "2"): 0.488, ("b", "0"): 0.2}
    assert got == pytest.approx(expected, rel=1e-5)


def test_what_is_received_is_computed_with_where_it_lies() -> None:
    received = bytearray(np.arange(4, dtype=np.float32).tobytes())
    tensor = as_torch(Tensor(dtype="float32", shape=(2, 2), data=received))
    assert tensor.data_ptr() == np.frombuffer(received, np.uint8).ctypes.data
    assert tensor.tolist() == [[0, 1], [2, 3]]


def test_on_a_cpu_a_graphed_step_is_its_function() -> None:
    calls = []

    def double(values: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return values * 2

    step = GraphedStep(double, torch.zeros(3))
    assert (step.captured, calls) == (False, [])
    assert step(torch.ones(3)).tolist() == [2, 2, 2]
    assert step(torch.ones(5)).tolist() == [2] * 5, "no shape is held to on a CPU"


def test_the_networks_answers_depend_on_all_that_came_before() -> None:
    """Else the tests above would show nothing."""
    session = gru.Alone(2)
    assert session.run(frame(1)) != session.run(frame(1))
    worker = gru.GruWorker()
    worker.start(2, "cpu")
    both = worker.step([SlotWork(slot=0, payload=frame(1)), SlotWork(slot=1, payload=frame(2))])
    assert bytes(both[0].outputs[0].values.data) != bytes(both[1].outputs[0].values.data)

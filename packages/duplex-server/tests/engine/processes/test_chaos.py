"""Everything is killed at random, for a while, under load: what was promised holds meanwhile, and afterwards nothing is left.

``DUPLEX_CHAOS_S`` makes the while longer than the few seconds that it is among the other tests; the seed is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from typing import Any

import msgspec
import pytest

from duplex_core.errors import DuplexError
from duplex_core.stages import Purpose, StageFailed, StageLost, StageNews, StageOutput
from duplex_core.tensors import Tensor
from duplex_server.engine.stages.processes.pool import Pool
from duplex_server.engine.stages.processes.runtime import start
from tests.support.batched import spec
from tests.support.pools import DRIVER, QUICK, Held, request

SECONDS = float(os.environ.get("DUPLEX_CHAOS_S", "6"))
REPLICAS, SESSIONS, CHATS = 3, 3, 1
SETTINGS = msgspec.structs.replace(QUICK, start_s=8.0, hang_s=1.0, stop_s=1.0, line=4)
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGABRT)


class Somebody:
    """A session, or a chat request: it knows what it has open, and notices whatever comes that must not."""

    def __init__(self, name: str, pool: Pool, purpose: Purpose) -> None:
        self.name = name
        self.pool = pool
        self.purpose = purpose
        self.open: set[str] = set()
        self.lost = False
        self.changed = asyncio.Event()
        self.number = 0

    def ask(self, do: str, **options: Any) -> None:
        self.number += 1
        asked = request(self.name, f"{self.number}", do, purpose=self.purpose, **options)
        self.open.add(asked.request_id)
        self.pool.submit(asked)

    def told(self, news: StageNews) -> None:
        if isinstance(news, StageLost):
            assert not self.lost, "a loss is told once"
            assert self.purpose is Purpose.SESSION
            self.lost = True
            self.open.clear()
        elif isinstance(news, StageOutput | StageFailed):
            assert news.request_id in self.open, f"{news} was aborted, has ended, or was lost"
            if isinstance(news, StageFailed) or news.final:
                self.open.discard(news.request_id)
        self.changed.set()

    async def until_answered(self) -> None:
        """Wait until nothing is open any more; what is lost is not."""
        async with asyncio.timeout(60):
            while self.open:
                self.changed.clear()
                await self.changed.wait()


class Load:
    """Those who use the stage, one after the other in a number of lives, until it is over."""

    def __init__(self, pool_seed: int) -> None:
        self.random = random.Random(pool_seed)
        self.all: dict[str, Somebody] = {}
        self.did: Counter[str] = Counter()
        self.wrong: list[BaseException] = []
        self.over = False

    def news(self, news: StageNews) -> None:
        if isinstance(news, StageLost):
            who, what = news.session_id, "lost"
        elif isinstance(news, StageOutput | StageFailed):
            who, what = news.fence.session_id, "failed" if isinstance(news, StageFailed) else "outputs"
        else:
            return
        self.did[what] += 1
        try:
            assert who in self.all, f"{news} is for somebody who was released"
            self.all[who].told(news)
        except AssertionError as exc:
            self.wrong.append(exc)

    async def live(self, pool: Pool, name: str, purpose: Purpose) -> None:
        life = 0
        while not self.over:
            life += 1
            me = Somebody(f"{name}-{life}", pool, purpose)
            self.all[me.name] = me
            try:
                if purpose is Purpose.SESSION:
                    pool.place(me.name)
                self.did["lives"] += 1
                await self.one_life(me)
            except DuplexError:
                await asyncio.sleep(0.02)
            finally:
                pool.release(me.name)
                del self.all[me.name]

    async def one_life(self, me: Somebody) -> None:
        for _ in range(self.random.randint(1, 12)):
            if me.lost or self.over:
                return
            draw = self.random.random()
            if draw < 0.4:
                me.ask("count")
            elif draw < 0.6:
                me.ask("words", times=self.random.randint(1, 20))
            elif draw < 0.75:
                data = self.random.randbytes(200_000)
                me.ask("reverse", tensor=Tensor(dtype="uint8", shape=(len(data),), data=data))
            elif draw < 0.95:
                me.ask("words", times=1_000_000)
                await asyncio.sleep(self.random.random() * 0.02)
                me.pool.abort(me.name)
                me.open.clear()
            else:
                me.ask(self.random.choice(["exit", "raise"]))
            if self.random.random() < 0.5:
                await me.until_answered()

    async def kill(self, pool: Pool) -> None:
        """Processes die in whatever state they are."""
        while not self.over:
            await asyncio.sleep(self.random.random() * 0.5)
            if pids := pool.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.random.choice(pids), self.random.choice(SIGNALS))
                    self.did["kills"] += 1


async def whole_again(pool: Pool, load: Load) -> None:
    """Every seat of every replica can be taken and works, and no more than those; as soon as nobody is dying any more."""
    async with asyncio.timeout(60):
        for attempt in itertools.count():
            probes = [Somebody(f"probe-{attempt}-{seat}", pool, Purpose.SESSION) for seat in range(REPLICAS * SESSIONS)]
            load.all |= {probe.name: probe for probe in probes}
            try:
                if await all_answered(pool, probes):
                    return
            finally:
                for probe in probes:
                    pool.release(probe.name)
                    del load.all[probe.name]
            await asyncio.sleep(0.1)


async def all_answered(pool: Pool, probes: list[Somebody]) -> bool:
    """Whether there is a seat for each, and each gets its answer."""
    try:
        for probe in probes:
            pool.place(probe.name)
    except DuplexError:
        return False  # not all replicas are up
    with pytest.raises(DuplexError):
        pool.place("one more")
    for probe in probes:
        probe.ask("count")
    for probe in probes:
        await probe.until_answered()
    return not any(probe.lost for probe in probes)


async def test_killing_at_random_breaks_no_promise_and_leaves_nothing() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    held = Held.now()
    load = Load(seed)
    pool = await start(
        spec(replicas=REPLICAS, sessions=SESSIONS, chats=CHATS), load.news, driver=DRIVER, settings=SETTINGS
    )
    try:
        async with asyncio.TaskGroup() as everyone:
            for index in range(REPLICAS * SESSIONS + 2):
                everyone.create_task(load.live(pool, f"session{index}", Purpose.SESSION))
            for index in range(6):
                everyone.create_task(load.live(pool, f"chat{index}", Purpose.CHAT))
            everyone.create_task(load.kill(pool))
            await asyncio.sleep(SECONDS)
            load.over = True
        assert not load.wrong, load.wrong[:3]
        assert not load.all
        await whole_again(pool, load)
        assert len(pool._requests) == 0
        assert (pool._seating.taken(Purpose.SESSION), pool._seating.taken(Purpose.CHAT)) == (0, 0)
        assert pool._seating.waiting == 0
        assert not pool._lost
    finally:
        await pool.aclose()
    assert not held.left()
    assert not load.wrong, load.wrong[:3]
    print(dict(load.did))  # noqa: T201 - as above
    assert min(load.did[what] for what in ("kills", "lost", "failed", "outputs", "lives")) > 5, load.did

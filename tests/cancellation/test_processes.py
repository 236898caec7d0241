"""Starting and closing a stage on worker processes, cancelled at each suspension, in both moments: nothing of it is left."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from duplex_server.engine.stages.processes.runtime import start
from tests.support.batched import spec
from tests.support.cancellation import Belongings, Cut, everywhere
from tests.support.pools import DRIVER, QUICK, Held, News

PAIR = spec(replicas=2)
SETTINGS = msgspec.structs.replace(QUICK, stop_s=0.5)


async def test_a_start_cancelled_anywhere_leaves_nothing() -> None:
    held, belongings = Held.now(), Belongings()

    async def scene(cut: Cut[object]) -> None:
        await cut(start(PAIR, News(), driver=DRIVER, settings=SETTINGS))
        if not cut.reached:
            await cut.result.aclose()
        await belongings.gone()
        assert not held.left(), repr(cut)

    assert await everywhere(scene) > 0


@pytest.mark.parametrize("state", ["idle", "stopped"])
async def test_a_close_cancelled_anywhere_leaves_nothing(state: str) -> None:
    held, belongings = Held.now(), Belongings()

    async def scene(cut: Cut[object]) -> None:
        pool = await start(PAIR, News(), driver=DRIVER, settings=SETTINGS)
        if state == "stopped" and cut._at == 0:
            os.kill(pool.pids[0], signal.SIGSTOP)
        await cut(pool.aclose())
        await belongings.gone()
        assert not held.left(), repr(cut)

    assert await everywhere(scene) > 0

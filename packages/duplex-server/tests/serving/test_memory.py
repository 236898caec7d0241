"""The memory of a session that has ended is free at once, without a garbage collection: in a server one runs seldom."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import weakref
from collections.abc import Iterator

import pytest

from duplex_core.spec import ModelSpec
from duplex_core.testing.native import NATIVE
from duplex_core.testing.speech import burst, silence
from duplex_server.serving.connection import Connection
from tests.support.serving import PARROT, Caller, Served, serving

RATE_HZ = 24_000
TAKER = dataclasses.replace(NATIVE, id="taker")


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Gone:
    """Waits until every part of a session is gone."""

    def __init__(self, served: Served, caller: Caller) -> None:
        runner = served.engine.sessions.get(caller.seen[0]["session"]["id"])
        assert runner is not None
        exchange = runner._exchange
        parts = {"session": runner, "machine": runner._machine, "model": exchange._model, "exchange": exchange}
        (connection,) = [each for each in served.server.server_state.connections if isinstance(each, Connection)]
        parts |= {
            "connection": connection,
            "listening": runner._holdings.listening,
            "events": runner.outbox,
            "mailbox": runner.mailbox,
        }
        self.left = set(parts)
        self._all = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name, part in parts.items():
            weakref.finalize(part, loop.call_soon_threadsafe, self._went, name)

    def _went(self, name: str) -> None:
        self.left.discard(name)
        if not self.left:
            self._all.set()

    async def wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all.wait(), 10)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("spec", [PARROT, TAKER], ids=["commits", "native"])
@pytest.mark.parametrize("hung_up", [False, True], ids=["closed", "hung up"])
async def test_an_ended_session_is_gone_without_a_collection(spec: ModelSpec, hung_up: bool) -> None:
    async with serving(spec) as served:
        async with served.session() as caller:
            gone = Gone(served, caller)
            await caller.say("session.update", session={"type": "realtime", "speed": 7.0})
            await caller.until("error")
            audio = {"input": {"turn_detection": {"type": "server_vad"}}}
            await caller.say("session.update", session={"type": "realtime", "audio": audio})
            await caller.append(burst(600, RATE_HZ) + silence(2000, RATE_HZ))
            await caller.until("response.output_audio.delta")
            assert len(gone.left) == 8
            if not hung_up:
                await caller.say("session.close")
                await caller.until("session.closed")
        await gone.wait()
        assert not gone.left

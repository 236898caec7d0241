"""The two halves of the engine: the turn-based one stands alone, and gets what is no session's."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.fence import Fence
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.plugins import load_plugins
from duplex_core.stages import Lane, StageOutput
from duplex_server import builtins
from duplex_server.engine.chat import AsyncOmni, ChatDone, ChatRequest, ChatText
from duplex_server.engine.omni import DuplexOmni
from duplex_server.engine.served import prepare

DUPLEX = {
    "duplex_core.machine",
    "duplex_server.engine.manager",
    "duplex_server.engine.omni",
    "duplex_server.engine.orchestrator",
    "duplex_server.engine.runner",
}


def asking(text: str) -> ChatRequest:
    return ChatRequest(history=(MessageItem(role=Role.USER, content=(InputText(text=text),)),))


async def answer(engine: AsyncOmni, text: str) -> tuple[str, ChatDone]:
    events = [event async for event in engine.generate(asking(text))]
    assert isinstance(events[-1], ChatDone)
    return "".join(event.text for event in events if isinstance(event, ChatText)), events[-1]


def test_the_turn_based_half_imports_nothing_of_the_duplex_half() -> None:
    probe = "import json, sys, duplex_server.engine.chat; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "duplex_server.engine.chat" in loaded
    assert not loaded & DUPLEX
    whole = subprocess.run(
        [sys.executable, "-c", probe.replace("engine.chat", "engine.omni")], capture_output=True, text=True, check=True
    )
    assert set(json.loads(whole.stdout)) >= DUPLEX, "the probe sees the other half when it is there"


async def test_the_turn_based_half_answers_without_the_other(gated: Any) -> None:
    host = load_plugins([builtins])
    host = dataclasses.replace(host, models={**host.models, "gated": gated.spec})
    served = prepare(host, "gated", lambda spec: spec.deploy_model())
    async with AsyncOmni.start(served, plugins=host) as engine:
        assert not isinstance(engine, DuplexOmni)
        said, _ = await answer(engine, "on its own")
        assert said == "on its own "
        assert engine.chats == 0


async def test_chats_need_no_slot_and_run_beside_sessions(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec, max_sessions=1) as engine:
        handle = await engine.open_session()
        said = await asyncio.gather(*(answer(engine, f"chat {index}") for index in range(5)))
        assert [text for text, _ in said] == [f"chat {index} " for index in range(5)]
        assert engine.sessions.taken == 1
        await handle.aclose()


async def test_a_reply_that_is_no_sessions_falls_through_to_the_turn_based_half(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallen: list[Any] = []
    monkeypatch.setattr(AsyncOmni, "_on_told", lambda self, reply: fallen.append(reply))
    async with DuplexOmni.start(engine.served, plugins=engine.plugins) as other:
        handle = await other.open_session()
        replies = [
            StageOutput(stage="cut", request_id="r", fence=Fence(session_id=each), lane=Lane.OUTPUT, payload=None)
            for each in (handle.session_id, "chat_1", "sess_of_nobody")
        ]
        for reply in replies:
            other._on_told(reply)
        assert fallen == replies[1:]
        await handle.aclose()
        other._on_told(replies[0])
        assert fallen == [*replies[1:], replies[0]], "a session that has ended owns nothing"


async def test_closing_the_generator_stops_the_work(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        events = engine.generate(asking("a hold b"))
        first = await anext(events)
        assert isinstance(first, ChatText)
        await asyncio.to_thread(gated.gate.holding.acquire)
        await events.aclose()
        await asyncio.to_thread(gated.stopped.acquire)
        assert engine.chats == 0
        assert (await answer(engine, "next"))[0] == "next "


async def test_failures_are_told_and_leave_nothing_behind(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        for text in ("fail at once", "die", "after that"):
            with pytest.raises(DuplexError) as caught:
                await answer(engine, text)
            assert caught.value.info.code is ErrorCode.ENGINE_ERROR
            assert engine.chats == 0


async def test_a_model_that_does_not_chat_says_so(engine_of: Any, parrot: Any) -> None:
    def mute(deploy: Any) -> Any:
        return msgspec.structs.replace(parrot.capabilities(deploy), chat=False)

    async with engine_of(dataclasses.replace(parrot, capabilities=mute)) as engine:
        with pytest.raises(DuplexError, match="does not answer chat"):
            await answer(engine, "hello")


async def test_a_draining_engine_takes_no_chat(engine: Any) -> None:
    await engine.shutdown(0.0)
    with pytest.raises(DuplexError) as caught:
        await answer(engine, "hello")
    assert caught.value.info.code is ErrorCode.SHUTDOWN

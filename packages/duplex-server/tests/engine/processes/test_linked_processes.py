"""A served model whose two linked stages are processes: answers over the real socket, interruptions, chats, and dying talkers."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx

from tests.support.linked_processes import SAMPLES, talking_model
from tests.support.pools import Held
from tests.support.serving import Caller, serving


async def ask(caller: Caller, text: str) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await caller.say("conversation.item.create", item=item)
    await caller.say("response.create")


def sound_of(caller: Caller, response_id: str) -> bytes:
    deltas = [e for e in caller.seen if e["type"] == "response.output_audio.delta" and e["response_id"] == response_id]
    return b"".join(base64.b64decode(each["delta"]) for each in deltas)


async def answered(caller: Caller, text: str) -> dict[str, Any]:
    """Ask, and check that the answer is whole: every word, and its sound."""
    await ask(caller, text)
    done = await caller.until("response.done")
    response = done["response"]
    assert response["status"] == "completed", response
    assert response["output"][0]["content"][0]["transcript"].split() == text.split()
    expected = b"".join(len(word).to_bytes(2, "little") * SAMPLES for word in text.split())
    assert sound_of(caller, response["id"]) == expected
    return done


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


def pids(served: Any, stage: str) -> list[int]:
    running: list[int] = served.engine._stages._stages[stage].pids
    return running


async def test_an_answer_goes_from_process_to_process_and_tells_what_each_did() -> None:
    before = Held.now()
    async with serving(talking_model()) as served, served.session() as caller:
        done = await answered(caller, "all is well today")
        thinker, talker = done["metrics"]["stages"]
        assert (thinker["stage"], thinker["steps"], thinker["whole"]) == ("thinker", 4, True)
        assert (talker["stage"], talker["steps"], talker["whole"]) == ("talker", 4, True)
        assert 0 <= thinker["begun_ms"] <= talker["begun_ms"]
        assert talker["begun_ms"] + talker["total_ms"] <= done["metrics"]["total_ms"]
        async with httpx.AsyncClient(base_url=served.http) as client:
            body = {
                "model": "talking",
                "messages": [{"role": "user", "content": "so they say"}],
                "modalities": ["text", "audio"],
                "audio": {"voice": "alloy", "format": "pcm16"},
            }
            message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        assert message["audio"]["transcript"].split() == ["so", "they", "say"]
        assert len(base64.b64decode(message["audio"]["data"])) == 3 * 2 * SAMPLES
        assert served.engine._stages.open_requests == 0
    assert not before.left()


async def test_an_interruption_reaches_both_processes_and_the_next_answer_is_whole() -> None:
    async with serving(talking_model()) as served, served.session() as caller:
        await ask(caller, "first second hold")
        await caller.until("response.output_audio.delta")
        await caller.say("response.cancel")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "cancelled"
        assert {each["stage"]: each["whole"] for each in done["metrics"]["stages"]}["thinker"] is False
        await answered(caller, "and now this")
        assert served.engine._stages.open_requests == 0


async def test_a_word_that_one_stage_refuses_fails_that_answer_alone() -> None:
    async with serving(talking_model()) as served, served.session() as caller:
        await ask(caller, "please refuse hold")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "failed"
        assert "the talker has no such word" in done["response"]["status_details"]["error"]["message"]
        await answered(caller, "and now this")


async def test_a_talker_that_dies_takes_its_own_sessions_and_comes_back_by_itself() -> None:
    async with (
        serving(talking_model(talkers=2, sessions=2)) as served,
        served.session() as first,
        served.session() as second,
        served.session() as third,
    ):
        assert served.engine.sessions.max_sessions == 4
        before = pids(served, "talker")
        await ask(
            first, "well crash"
        )  # the first sits on the first talker, the second on the other, the third on the first
        for caller in (first, third):
            closed = (await caller.rest())[-1]
            assert closed["type"] == "session.closed"
            assert closed["error"]["code"] == "engine_error"
            assert closed["error"]["retryable"]
        await answered(second, "we go on")
        assert served.engine.sessions.taken == 1
        await eventually(lambda: len(pids(served, "talker")) == 2 and pids(served, "talker") != before)
        for _ in range(2):
            async with served.session() as again:
                await answered(again, "here we are again")


async def test_while_the_only_talker_is_gone_health_says_so_and_then_all_is_well() -> None:
    async with (
        serving(talking_model()) as served,
        httpx.AsyncClient(base_url=served.http) as client,
        served.session() as parked,
    ):
        os.kill(pids(served, "talker")[0], signal.SIGKILL)
        closed = (await parked.rest())[-1]
        assert (closed["type"], closed["error"]["code"]) == ("session.closed", "engine_error")
        health = await client.get("/health")
        assert (health.status_code, health.json()["stages_down"]) == (503, ["talker"])
        async with served.call() as refused:
            error = (await refused.next())["error"]
        assert (error["code"], error["retryable"]) == ("engine_error", True)
        assert "talker" in error["message"]
        await eventually(lambda: served.engine.ready)
        assert (await client.get("/health")).status_code == 200
        async with served.session() as caller:
            await answered(caller, "here we are again")

"""Cases 31 to 34: tools, and what comes too late."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.field_cases.scenes import (
    AT_ONCE,
    IMMEDIATE,
    answers,
    ask,
    detecting,
    done,
    quiet,
    refused,
    speech,
    token_of,
    update,
)
from tests.support.serving import Caller, Served

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "clock")]


async def called(caller: Caller, name: str, **arguments: Any) -> dict[str, Any]:
    """Have a tool called; the finished call."""
    response = await done(caller, await ask(caller, f"call {name} {json.dumps(arguments)}"))
    (call,) = response["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", name, arguments)
    call_item: dict[str, Any] = call
    return call_item


async def give(caller: Caller, call_id: str, output: str) -> None:
    item = {"type": "function_call_output", "call_id": call_id, "output": output}
    await caller.say("conversation.item.create", item=item)


async def test_case_31_a_tools_result_that_comes_while_the_user_speaks(served: Served) -> None:
    """It waits until the turn has ended, and one answer is given to both."""
    async with served.session() as caller:
        await update(caller, tools=TOOLS, options=AT_ONCE)
        call = await called(caller, "weather", place="Bergen")
        await caller.append(quiet(300) + speech(600))
        await caller.until("input_audio_buffer.speech_started")
        await give(caller, call["call_id"], "rain")
        await caller.say("response.create")
        await caller.say("session.heartbeat")
        await caller.until("session.heartbeat_ack")
        assert caller.types().count("response.created") == 1, "the user is still speaking"
        await caller.append(speech(300) + quiet(800))
        await caller.until("input_audio_buffer.speech_stopped")
        response = await done(caller)
        assert response["output"][0]["content"][0]["transcript"].startswith("You said ")
        await caller.say("session.heartbeat")
        await caller.until("session.heartbeat_ack")
        assert caller.types().count("response.created") == 2
        assert "error" not in caller.types()


async def test_case_32_calls_are_told_apart_by_their_ids(served: Served) -> None:
    """Two sessions with two calls each, answered in the other order; a result for the other session's call belongs to nothing."""
    async with served.session() as first, served.session() as second:
        calls: dict[str, list[str]] = {}
        for caller in (first, second):
            await update(caller, tools=TOOLS, options=AT_ONCE)
            name = token_of(caller)[0]
            calls[name] = [(await called(caller, tool, of=name))["call_id"] for tool in ("weather", "clock")]
        assert len({call_id for ids in calls.values() for call_id in ids}) == 4
        mine, others = calls[token_of(first)[0]], calls[token_of(second)[0]]
        output = {"type": "function_call_output", "call_id": others[0], "output": "of the other"}
        assert (await refused(first, "conversation.item.create", item=output))["code"] == "call_id_not_found"
        for caller, ids in ((first, mine), (second, others)):
            name = token_of(caller)[0]
            for call_id, tool in reversed(list(zip(ids, ("weather", "clock"), strict=True))):
                await give(caller, call_id, f"{tool} of {name}")
                await caller.say("response.create")
                said = (await done(caller))["output"][0]["content"][0]["transcript"]
                assert said == f"The tool gave {tool} of {name}"


async def test_case_33_an_acknowledgement_of_a_superseded_answer_is_ignored_with_a_line_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends nothing, restores nothing and is no error."""
    caplog.set_level(logging.INFO, logger="duplex_server")
    async with served.session() as caller:
        await detecting(caller, overlap=IMMEDIATE, options=AT_ONCE)
        old = await done(caller, await ask(caller, "an answer of which nearly nothing will be heard by anybody"))
        await caller.append(speech(400) + quiet(800))
        truncated = await caller.until("conversation.item.truncated")
        await done(caller)
        await caller.say("playback.ack", played_ms=3000.0, response_id=old["id"], event_id="late")
        await caller.say("conversation.item.retrieve", item_id=truncated["item_id"])
        shown = await caller.until("conversation.item.retrieved", "error", "playback.acknowledged")
        assert shown["type"] == "conversation.item.retrieved"
        assert len(shown["item"]["content"][0]["transcript"]) < len(old["output"][0]["content"][0]["transcript"])
        assert f"an acknowledgement of {old['id']}" in caplog.text
        await caller.say("output_audio_buffer.clear")
        await answers(caller)


async def test_case_34_clearing_the_output_after_it_was_made_blocks_nothing(served: Served) -> None:
    """The next answer begins at once, however often."""
    async with served.session() as caller:
        await update(caller, options=AT_ONCE)
        for epoch in range(1, 4):
            first = await done(caller, await ask(caller, "something that sounds for a while"))
            await caller.say("output_audio_buffer.clear")
            cleared = await caller.until("output_audio_buffer.cleared")
            assert (cleared["response_id"], cleared["epoch"]) == (first["id"], epoch)
        await answers(caller)
        assert "error" not in caller.types()

"""Cases 8 to 14: answers that are stopped."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from duplex_core.hookspecs import hookimpl
from duplex_core.stages import StageSpec
from duplex_core.testing.echo import ECHO
from duplex_core.testing.echo.options import EchoSettings
from duplex_core.transcribing import Recognize, Recognized, TranscriberSpec
from tests.field_cases.scenes import (
    AT_ONCE,
    IMMEDIATE,
    answers,
    ask,
    detecting,
    done,
    eventually,
    quiet,
    refused,
    speech,
    token_of,
    update,
    write,
)
from tests.support.serving import Served, serving
from tests.support.stages import Gate, Gated


async def test_case_08_a_cancel_with_nothing_to_cancel_is_an_error_and_changes_nothing(served: Served) -> None:
    """Before any answer, and after one has ended."""
    async with served.session() as caller:
        before = await update(caller, options=AT_ONCE)
        assert (await refused(caller, "response.cancel"))["code"] == "response_cancel_not_active"
        await answers(caller)
        assert (await refused(caller, "response.cancel"))["code"] == "response_cancel_not_active"
        assert await update(caller) == before
        await answers(caller)


async def test_case_09_a_cancel_that_names_an_older_answer_leaves_the_running_one_alone(
    held: Served, gated: Gated
) -> None:
    async with held.session() as caller:
        older = await ask(caller, "the first")
        await done(caller, older)
        running = await ask(caller, "hold and go on")
        error = await refused(caller, "response.cancel", response_id=older)
        assert error["code"] == "response_cancel_not_active"
        gated.gate.let_go.set()
        assert (await done(caller, running))["status"] == "completed"


async def test_case_10_cancel_and_create_in_one_breath(held: Served, gated: Gated) -> None:
    """The create works because the cancelled answer is done; before that it is refused, and the error names it."""
    async with held.session() as caller:
        first = await ask(caller, "hold")
        error = await refused(caller, "response.create", "too early")
        assert error["code"] == "conversation_already_has_active_response"
        assert first in error["message"]
        await write(caller, "all is well")
        await caller.say("response.cancel")
        await caller.say("response.create", event_id="at once")
        assert (await done(caller))["status"] == "cancelled"
        second = (await caller.until("response.created"))["response"]["id"]
        assert (await done(caller, second))["status"] == "completed"
        assert caller.types().count("error") == 1


async def test_case_11_a_clients_create_that_races_the_detectors(served: Served) -> None:
    """The detector's answer is there first: the client's request is refused, by its name, and that answer goes on."""
    async with served.session() as caller:
        await detecting(caller)
        await caller.append(quiet(200) + speech(600) + quiet(700))
        await caller.until("input_audio_buffer.committed")
        error = await refused(caller, "response.create")
        assert error["code"] == "conversation_already_has_active_response"
        assert (await done(caller))["status"] == "completed"
        assert caller.types().count("response.created") == 1


@pytest.mark.parametrize("how", ["speech", "barge_in", "output_audio_buffer.clear"])
async def test_case_12_what_still_sounds_can_be_interrupted_although_it_was_all_made(served: Served, how: str) -> None:
    """Told, fenced, and history cut at what was heard."""
    text = "This is a long sentence of which the user will hear the beginning only, and then no more."
    async with served.session() as caller:
        await detecting(caller, overlap=IMMEDIATE, options=AT_ONCE)
        answer = await done(caller, await ask(caller, text))
        assert answer["output"][0]["content"][0]["transcript"] == text
        sent_ms = sum(e["metadata"]["audio_duration_ms"] for e in caller.seen if e["type"].endswith("audio.delta"))
        await caller.say("playback.ack", played_ms=500.0, response_id=answer["id"])
        if how == "speech":
            await caller.append(speech(400))
        else:
            await caller.say(how)
        cleared = await caller.until("output_audio_buffer.cleared")
        assert (cleared["response_id"], cleared["epoch"]) == (answer["id"], 1)
        assert 500 <= cleared["audio_end_ms"] < sent_ms
        truncated = await caller.until("conversation.item.truncated")
        item_id = answer["output"][0]["id"]
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item_id, cleared["audio_end_ms"])
        await caller.say("conversation.item.retrieve", item_id=item_id)
        kept = (await caller.until("conversation.item.retrieved"))["item"]
        heard = kept["content"][0]["transcript"]
        assert 0 < len(heard) < len(text)
        assert text.startswith(heard)
        assert kept["status"] == "incomplete"


class SlowEars:
    """A transcriber's worker that hears when it is let to."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def run(self, payload: Recognize, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        self.gate.holding.release()
        while not self.gate.let_go.wait(0.002):
            if cancelled():
                self.gate.stopped.release()
                return
        emit(Recognized(text="what the user said"))

    def close(self) -> None:
        pass


class Deaf(EchoSettings):
    """Echo that does not transcribe."""

    transcribes: bool = False


async def test_case_13_a_cancel_leaves_the_transcription_of_what_the_user_says_alone() -> None:
    """The words come although the answer to them was cancelled while they were being recognised."""
    gate = Gate()

    class Offer:
        @hookimpl
        def duplex_register_transcribers(self) -> Sequence[TranscriberSpec]:
            stage = StageSpec(name="ears", factory=f"{__name__}:SlowEars", options={"gate": gate})
            return [TranscriberSpec(id="slow", summary="hears when it is let to", stage=stage)]

    deaf = dataclasses.replace(ECHO, id="deaf", deploy_model=Deaf)
    async with serving(deaf, extra=(Offer(),), transcriber="slow") as served, served.session() as caller:
        await caller.by_hand(audio={"input": {"transcription": {}}})
        await caller.append(speech(500))
        await caller.say("input_audio_buffer.commit", response_create=True)
        item_id = (await caller.until("input_audio_buffer.committed"))["item_id"]
        await asyncio.to_thread(gate.holding.acquire)
        await caller.say("response.cancel")
        assert (await done(caller))["status"] == "cancelled"
        gate.let_go.set()
        heard = await caller.until("conversation.item.input_audio_transcription.completed")
        assert (heard["item_id"], heard["transcript"]) == (item_id, "what the user said")
        assert not gate.stopped.acquire(blocking=False)


@pytest.mark.parametrize("how", ["hang up", "break"])
async def test_case_14_nothing_of_an_answer_reaches_the_next_session(gated: Gated, how: str) -> None:
    """A disconnect is a fence: the stage's late words are nobody's."""
    from duplex_server.engine.lease import Lifetime
    from tests.field_cases.scenes import break_off

    async with serving(gated.spec, max_sessions=1, lifetime=Lifetime(disconnect_grace_s=0.05)) as served:
        async with served.session() as first:
            await ask(first, "one hold two three")
            await asyncio.to_thread(gated.gate.holding.acquire)
            if how == "break":
                break_off(first)
        await eventually(lambda: served.engine.sessions.taken == 0)
        async with served.session() as second:
            await asyncio.to_thread(gated.stopped.acquire)  # the worker has said "late" and the rest by now
            await answers(second)
            assert token_of(second)[0] != token_of(first)[0]
            said = "".join(e["delta"] for e in second.seen if e["type"].endswith("transcript.delta"))
            assert said == "all is well "

"""Cases 26 to 30: one session's trouble is its own, and what was measured arrives."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from duplex_core.errors import ErrorCode, error
from duplex_core.items import item_text
from duplex_core.model import EndTurn, Fatal, ModelInput, ModelOutput, Respond, Speak
from duplex_core.testing.echo import ECHO
from duplex_core.testing.native import NATIVE
from tests.field_cases.scenes import AT_ONCE, answers, ask, done, quiet, speech, update
from tests.support.serving import Served, serving
from tests.support.stages import Gated, gated_model


async def test_case_26_a_socket_is_read_and_its_pings_answered_whatever_waits(held: Served, gated: Gated) -> None:
    """One client floods a session whose model is stuck, another waits for its answer: neither is dropped."""
    async with held.session() as flooding, held.session() as healthy:
        await ask(flooding, "hold")
        for index in range(2000):
            await flooding.say("session.heartbeat", event_id=f"beat {index}")
            if index % 500 == 0:
                async with asyncio.timeout(10):
                    await (await flooding.socket.ping())
        await answers(healthy)
        acks = 0
        while acks < 2000:
            event = await flooding.until("session.heartbeat_ack", "error")
            assert event["type"] == "session.heartbeat_ack", event
            acks += 1
        gated.gate.let_go.set()
        assert (await done(flooding))["status"] == "completed"


async def test_case_27_a_load_that_blocks_stalls_nobody_else() -> None:
    """A session's reference voice takes as long as it likes to be read; the others talk meanwhile."""
    begun, let_go = threading.Event(), threading.Event()
    sessions = iter([None, "slow"])

    def create(context: Any) -> Any:
        if next(sessions) == "slow":
            begun.set()
            assert let_go.wait(30)
        return ECHO.create_session(context)

    slow = dataclasses.replace(ECHO, id="slow", claims=lambda checkpoint: False, create_session=create)
    async with serving(slow) as served, served.session() as healthy:
        await update(healthy, options=AT_ONCE)
        async with served.call() as waiting:
            assert await asyncio.to_thread(begun.wait, 20)
            for _ in range(3):
                await answers(healthy)
            async with asyncio.timeout(10):
                await (await healthy.socket.ping())
            assert not waiting.seen
            let_go.set()
            assert (await waiting.next())["type"] == "session.created"


class Forgetful:
    """A model with room for two turns. It knows before it begins a third that it has none."""

    def __init__(self) -> None:
        self.turns = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if not isinstance(event, Respond):
            return ()
        self.turns += 1
        if self.turns > 2:
            return (Fatal(error=error(ErrorCode.CONTEXT_FULL, "the conversation is longer than the model remembers")),)
        said = item_text(event.history[-1])
        return Speak(fence=event.fence, text=said, pcm=bytes(640)), EndTurn(fence=event.fence)


async def test_case_28_a_session_that_outgrows_its_model_ends_alone() -> None:
    """It is told why, by its own name; the one beside it goes on."""
    model = gated_model(Forgetful)
    async with serving(model.spec) as served, served.session() as long, served.session() as short:
        await answers(short)
        for _ in range(2):
            await answers(long)
        await ask(long, "one more")
        rest = await long.rest()
        (end,) = [event["response"] for event in rest if event["type"] == "response.done"]
        assert end["status"] == "failed"
        assert end["status_details"]["error"]["code"] == "context_length_exceeded"
        assert rest[-1]["type"] == "session.closed"
        assert rest[-1]["error"]["code"] == "context_length_exceeded"
        await answers(short)
        assert served.engine.ready
        assert not model.begun.acquire(blocking=False), "nothing may reach a stage that has no room for it"


async def test_case_29_a_unit_that_leads_to_nothing_is_a_no_op() -> None:
    """A model that hears silence listens, unit after unit, and its voice gets nothing; spoken to, it answers."""
    listener = dataclasses.replace(NATIVE, id="listener")
    async with serving(listener) as served, served.session() as caller:
        await caller.append(quiet(4000))
        for _ in range(4):
            await caller.until("response.listen")
        assert not [name for name in caller.types() if name.startswith("response.") and name != "response.listen"]
        await caller.append(speech(1000) + quiet(2000))
        assert (await done(caller))["output"]
        assert served.engine.ready


async def test_case_30_the_time_to_the_first_output_counts_from_the_answers_beginning(
    held: Served, gated: Gated
) -> None:
    """The stage is held back for a known time: the figure is no less, and it comes once, with the end."""
    loop = asyncio.get_running_loop()
    async with held.session() as caller:
        await ask(caller, "hold")
        created = loop.time()
        await asyncio.to_thread(gated.gate.holding.acquire)
        loop.call_at(created + 0.1, gated.gate.let_go.set)
        event = await caller.until("response.done")
        metrics = event["metrics"]
        assert metrics["first_output_ms"] >= 99.0
        assert metrics["first_output_ms"] <= metrics["first_audio_ms"] <= metrics["total_ms"]
        assert metrics["total_ms"] <= (loop.time() - created) * 1000 + 2000
        assert [name for name in caller.types() if name == "response.done"] == ["response.done"]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_case_30_what_each_stage_took_comes_with_every_answer_once(
    held: Served, gated: Gated, interrupted: bool
) -> None:
    """Counted from when the stage was given the work, and there also for an answer that is stopped before the stage has ended."""
    loop = asyncio.get_running_loop()
    async with held.session() as caller:
        await ask(caller, "hold" if not interrupted else "well hold")
        created = loop.time()
        await asyncio.to_thread(gated.gate.holding.acquire)
        if interrupted:
            await caller.until("response.output_audio.delta")
            await caller.say("response.cancel")
        else:
            loop.call_at(created + 0.1, gated.gate.let_go.set)
        event = await caller.until("response.done")
        metrics = event["metrics"]
        (stage,) = metrics["stages"]
        assert (stage["stage"], stage["whole"]) == ("work", not interrupted)
        assert 0 <= stage["begun_ms"] <= stage["begun_ms"] + stage["first_ms"] <= metrics["first_output_ms"] + 5
        assert stage["first_ms"] <= stage["total_ms"] <= metrics["total_ms"] + 5
        if not interrupted:
            assert stage["first_ms"] >= 99.0
        assert [name for name in caller.types() if name == "response.done"] == ["response.done"]


@pytest.mark.parametrize("pace", [0.0, 0.3])
async def test_case_30_the_time_of_a_token_can_be_computed(served: Served, pace: float) -> None:
    """With every answer come its tokens and its times; they agree with each other and with the pace."""
    async with served.session() as caller:
        await update(caller, options={"pace": pace})
        await ask(caller, "one two three four five")
        event = await caller.until("response.done")
        metrics, usage = event["metrics"], event["response"]["usage"]
        assert metrics["output_tokens"] == usage["output_tokens"] == 5
        spoken_ms = metrics["total_ms"] - metrics["first_output_ms"]
        assert metrics["ms_per_output_token"] == pytest.approx(spoken_ms / 4, abs=0.002)
        heard = [e["metadata"]["audio_duration_ms"] for e in caller.seen if e["type"].endswith("output_audio.delta")]
        assert spoken_ms >= pace * sum(heard[:-1]) - 5

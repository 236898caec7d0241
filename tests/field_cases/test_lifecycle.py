"""Cases 1 to 7: lives that are cut short."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duplex_server.engine.lease import Lifetime
from duplex_server.engine.stages.thread import ThreadStage
from tests.field_cases.scenes import answers, ask, break_off, done, eventually, knock, reset, resumed, token_of
from tests.support.serving import Served, serving
from tests.support.stages import Gated


async def test_case_01_an_opening_that_is_given_up_leaks_no_slot() -> None:
    """More clients than there are slots knock and die at once, before they could be told of a session: the next gets in.

    Nobody knows the tokens of their sessions, so none is kept for the grace. In process: `tests/cancellation`.
    """
    async with serving(max_sessions=2, lifetime=Lifetime(disconnect_grace_s=3600.0)) as served:
        for _ in range(5):
            reset(await knock(served))
        await eventually(lambda: served.engine.sessions.taken == 0)
        async with served.session() as caller:
            await answers(caller)


@pytest.mark.parametrize("turns", range(2, 20, 4))
async def test_case_01_one_that_dies_a_little_later_holds_its_slot_for_the_grace_and_no_longer(turns: int) -> None:
    """However far its opening was."""
    async with serving(max_sessions=2, lifetime=Lifetime(disconnect_grace_s=0.1)) as served:
        for _ in range(3):
            knocking = [await knock(served) for _ in range(2)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for each in knocking:
                reset(each)
            await eventually(lambda: served.engine.sessions.taken == 0)
        async with served.session() as caller:
            await answers(caller)


async def test_case_02_an_answer_whose_session_is_cancelled_ends_once_and_says_why(held: Served, gated: Gated) -> None:
    """The task that makes it is cancelled in its middle."""
    async with held.session() as caller:
        response_id = await ask(caller, "one hold")
        await asyncio.to_thread(gated.gate.holding.acquire)
        (session_id, _) = token_of(caller)
        (task,) = [each for each in asyncio.all_tasks() if each.get_name() == session_id]
        task.cancel()
        rest = await caller.rest()
        ends = [event["response"] for event in rest if event["type"] == "response.done"]
        assert [(end["id"], end["status"]) for end in ends] == [(response_id, "cancelled")]
        assert ends[0]["status_details"]["reason"] == "client_cancelled"
        assert rest[-1]["type"] == "session.closed"
        assert rest[-1]["reason"] == "shutdown"
    assert held.engine.sessions.taken == 0


async def test_case_03_a_resume_that_breaks_off_leaves_no_orphan(gated: Gated) -> None:
    """Before it asks, the earlier owner stays; after it, the session waits for whoever has the new token, then ends."""
    lifetime = Lifetime(disconnect_grace_s=0.3)
    async with serving(gated.spec, max_sessions=1, lifetime=lifetime) as served, served.session() as first:
        session_id, token = token_of(first)
        async with served.call("/v1/realtime?autostart=0") as mute:
            break_off(mute)
        await answers(first)
        async with resumed(served, session_id, token, first.seen[-1]["server_event_seq"]) as second:
            assert (await first.rest())[-1]["type"] == "session.replaced"
            await answers(second)
            break_off(second)
        await eventually(lambda: served.engine.sessions.detached == 1)
        async with resumed(served, *token_of(second), second.seen[-1]["server_event_seq"]) as third:
            await answers(third)
            break_off(third)
        await eventually(lambda: served.engine.sessions.taken == 0)
        async with served.session() as next_one:
            await answers(next_one)


async def test_case_04_what_is_queued_when_the_server_stops_is_never_begun(held: Served, gated: Gated) -> None:
    """Two answers run, two wait for a worker; the waiting ones never reach one."""
    async with held.session() as a, held.session() as b, held.session() as c, held.session() as d:
        callers = (a, b, c, d)
        for caller in callers:
            await ask(caller, "hold")
        for _ in range(2):
            await asyncio.to_thread(gated.begun.acquire)
        stopping = asyncio.create_task(held.engine.shutdown(0.0))
        for caller in callers:
            rest = await caller.rest()
            assert [event["response"]["status"] for event in rest if event["type"] == "response.done"] == ["failed"]
            assert (rest[-1]["type"], rest[-1]["reason"]) == ("session.closed", "shutdown")
        await stopping
        for _ in range(2):
            await asyncio.to_thread(gated.stopped.acquire)
        assert not gated.begun.acquire(blocking=False), "queued work was begun after the end"


async def test_case_05_a_cleanup_that_failed_is_tried_again(
    held: Served, gated: Gated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage refuses to let go of an interrupted answer: the fence holds, and at the session's end it is asked again."""
    abort, refusals = ThreadStage.abort, [OSError("not now")]

    def unwilling(self: ThreadStage, session_id: str, request_id: str | None = None) -> None:
        if refusals:
            raise refusals.pop()
        abort(self, session_id, request_id)

    monkeypatch.setattr(ThreadStage, "abort", unwilling)
    async with held.session() as caller:
        response_id = await ask(caller, "one hold")
        await asyncio.to_thread(gated.gate.holding.acquire)
        await caller.say("response.cancel")
        rest = await caller.rest()
        fence = [event["type"] for event in rest].index("output_audio_buffer.cleared")
        assert rest[fence]["epoch"] == 1
        assert not [event for event in rest[fence:] if event.get("response_id") == response_id and "delta" in event]
        assert [e["response"]["status"] for e in rest if e["type"] == "response.done"] == ["cancelled"]
        assert rest[-1]["error"]["code"] == "internal_error"
    assert "not now" in caplog.text
    await asyncio.to_thread(gated.stopped.acquire)  # its id was kept, so it could be stopped
    assert held.engine.sessions.taken == 0
    async with held.session() as caller:
        await answers(caller)


@pytest.mark.parametrize("server_first", [False, True])
async def test_case_06_two_closings_that_race_give_one_end(served: Served, server_first: bool) -> None:
    """The client closes and so does the server, in either order and in the same moment."""
    async with served.session() as caller:
        (session_id, _) = token_of(caller)
        await ask(caller, "a long answer that is being given when everybody has had enough of it")
        if server_first:
            ending = asyncio.create_task(served.engine.close_session(session_id))
            await caller.say("session.close")
        else:
            await caller.say("session.close")
            ending = asyncio.create_task(served.engine.close_session(session_id))
        rest = await caller.rest()
        await ending
        assert [event["type"] for event in rest].count("session.closed") == 1
        assert [event["type"] for event in rest].count("response.done") == 1


@pytest.mark.parametrize("how", ["session.close", "shutdown", "fault"])
async def test_case_07_the_last_event_always_gets_out_and_the_socket_closes_after_it(
    held: Served, gated: Gated, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No guard against events after the end takes the end itself for one of them; the slot is free when it is read."""
    async with held.session() as caller:
        await ask(caller, "one hold")
        match how:
            case "session.close":
                await caller.say("session.close")
            case "shutdown":
                held.engine.sessions.stop_admitting()
                await caller.say("response.cancel")
            case _:
                await asyncio.to_thread(gated.gate.holding.acquire)

                def broken(*_: Any) -> None:
                    raise KeyError("a rule that was forgotten")

                monkeypatch.setattr(ThreadStage, "abort", broken)
                await caller.say("response.cancel")
        rest = await caller.rest()
        assert rest[-1]["type"] == "session.closed"
        assert [event["type"] for event in rest].count("session.closed") == 1
        assert [event["type"] for event in rest].count("response.done") == 1
        assert held.engine.sessions.taken == 0
        assert caller.socket.close_code == 1000
    gated.gate.let_go.set()


async def test_case_07_a_close_that_nobody_reads_holds_nothing(served: Served) -> None:
    """The client is gone before its last event could be sent."""
    async with served.session() as caller:
        await caller.say("session.close")
        break_off(caller)
    await eventually(lambda: served.engine.sessions.taken == 0)
    async with served.session() as caller:
        assert await done(caller, await ask(caller, "hello"))

"""Who has a session: resuming, taking over, tokens, the journal's bounds, the leases. In process and in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from duplex_core.commands import ResponseCancel, SessionEventAck, SessionHeartbeat
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import (
    STREAM_DELTAS,
    CloseReason,
    ErrorEvent,
    OutputBufferCleared,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionHeartbeatAck,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
)
from duplex_server.engine.handle import DuplexSessionHandle
from duplex_server.engine.lease import Lifetime
from tests.support.talking import ASK, Listener, opened, talking
from tests.support.virtual_loop import cancelled, in_virtual_time, settle

GRACE_S = Lifetime().disconnect_grace_s
IDLE_S = Lifetime().idle_ttl_s


def assert_whole(*listeners: Listener) -> list[Any]:
    """That these read one session's events from the first on, each once and in order."""
    whole = [event for each in listeners for event in each.numbered]
    assert [event.server_event_seq for event in whole] == list(range(1, len(whole) + 1))
    assert len({event.event_id for event in whole}) == len(whole)
    return whole


def finished(*listeners: Listener) -> bool:
    return any(isinstance(event, ResponseDone) for each in listeners for event in each.seen)


async def refused(call: Any) -> ErrorCode:
    with pytest.raises(DuplexError) as caught:
        await call
    return caught.value.info.code


@in_virtual_time
async def test_an_answer_is_whole_wherever_it_is_cut_and_wherever_its_replay_is_cut_again() -> None:
    """Read k events, be cut off for a while, resume, read j of what comes, be cut off again, resume, read the rest."""
    async with talking() as engine:
        cuts, events = 0, 1000
        answers: set[Any] = set()
        while cuts < events:
            cuts += 1
            for again in (1, 2, 5, 12):
                first = await opened(engine)
                await first.ask()
                while len(first.seen) < cuts:
                    await first.next()
                first.handle.detach()
                await asyncio.sleep(0.07)
                second = await first.resume(engine)
                for _ in range(again):
                    if not second.seen or not finished(first, second):
                        await second.next()
                second.handle.detach()
                await asyncio.sleep(0.05)
                third = await second.resume(engine)
                if not finished(first, second):
                    await third.until(ResponseDone)
                await third.handle.aclose()
                await third.rest()
                whole = assert_whole(first, second, third)
                assert [type(e) for e in whole].count(ResponseDone) == 1
                kinds = [type(e) for e in whole]
                answers.add(tuple(kinds[: kinds.index(ResponseDone)]))
                events = len(whole) - 1
        assert len(answers) == 1, "an answer is the same however it is cut"
        assert events > 30


@in_virtual_time
async def test_a_resumed_session_is_usable_and_shows_its_new_attachment() -> None:
    async with talking() as engine:
        first = await opened(engine)
        first.handle.detach()
        second = await first.resume(engine)
        resumed = await second.next()
        assert isinstance(resumed, SessionResumed)
        assert resumed.session.id == first.handle.session_id
        assert resumed.session.attachment_generation == 2
        assert resumed.replayed_events == 0
        assert resumed.server_event_seq == first.last_seq
        await second.ask()
        await second.until(ResponseDone)
        assert_whole(first, second)


@in_virtual_time
async def test_a_takeover_tells_the_earlier_client_and_leaves_it_nothing() -> None:
    async with talking() as engine:
        first = await opened(engine)
        await first.ask()
        await first.until(ResponseCreated)
        waiting = asyncio.create_task(first.rest())
        await settle()
        second = await first.resume(engine)
        await waiting
        replaced = first.seen[-1]
        assert isinstance(replaced, SessionReplaced)
        assert replaced.attachment_generation == 2
        assert replaced.server_event_seq == first.numbered[-1].server_event_seq
        assert not first.handle.attached
        assert await refused(first.handle.submit(SessionHeartbeat())) is ErrorCode.SESSION_CLOSED
        with pytest.raises(DuplexError):
            first.handle.offer(SessionHeartbeat())
        first.handle.close(CloseReason.DISCONNECTED)
        first.handle.detach()
        await first.handle.aclose()
        await second.until(ResponseDone)
        assert second.handle.attached
        assert_whole_after(first, second)


def assert_whole_after(first: Listener, second: Listener) -> None:
    """What was read twice is the same; what was read once continues it."""
    begun = next(e for e in second.seen if isinstance(e, SessionResumed)).server_event_seq
    again = [e.server_event_seq for e in second.numbered]
    assert again == list(range(begun + 1, begun + 1 + len(again)))
    told = {e.server_event_seq: e for e in first.numbered}
    assert all(told.get(e.server_event_seq, e) == e for e in second.numbered)


@in_virtual_time
async def test_a_token_works_once_and_a_wrong_one_changes_nothing() -> None:
    async with talking() as engine:
        first = await opened(engine)
        session_id, token = first.handle.session_id, first.token
        for wrong in ("", "x", token[:-1], token + "x", token.swapcase(), "☃" * 43, "\ud800"):
            assert await refused(engine.resume_session(session_id, wrong, 1)) is ErrorCode.SESSION_NOT_FOUND
        assert await refused(engine.resume_session("sess_unknown", token, 1)) is ErrorCode.SESSION_NOT_FOUND
        assert await refused(engine.resume_session(session_id, token, 2)) is ErrorCode.INVALID_VALUE
        await first.handle.submit(SessionHeartbeat())
        await first.until(SessionHeartbeatAck)
        second = await first.resume(engine)
        await second.until(SessionResumed)
        assert second.token != token
        await second.handle.submit(SessionHeartbeat())
        await second.until(SessionHeartbeatAck)
        assert await refused(engine.resume_session(session_id, token, 1)) is ErrorCode.SESSION_NOT_FOUND
        await (await second.resume(engine)).until(SessionResumed)


@in_virtual_time
async def test_an_answer_to_a_resume_that_got_lost_costs_nobody_the_session() -> None:
    async with talking() as engine:
        first = await opened(engine)
        session_id, token = first.handle.session_id, first.token
        await engine.resume_session(session_id, token, 1)
        await engine.resume_session(session_id, token, 1)
        third = Listener(await engine.resume_session(session_id, token, 1))
        await third.until(SessionResumed)
        assert third.token != token
        await third.handle.submit(SessionHeartbeat())
        await third.until(SessionHeartbeatAck)
        assert await refused(engine.resume_session(session_id, token, 1)) is ErrorCode.SESSION_NOT_FOUND


@in_virtual_time
async def test_the_refusals_for_an_unknown_session_and_a_wrong_token_are_the_same() -> None:
    async with talking() as engine:
        first = await opened(engine)
        told = []
        for session_id, token in ((first.handle.session_id, "wrong"), ("sess_unknown", first.token)):
            with pytest.raises(DuplexError) as caught:
                await engine.resume_session(session_id, token, 1)
            told.append(caught.value.info)
        assert told[0] == told[1]


@in_virtual_time
async def test_a_token_stands_in_clear_where_it_is_told_and_nowhere_else() -> None:
    async with talking() as engine:
        first = await opened(engine)
        token = first.token
        kept = engine.sessions.get(first.handle.session_id).outbox.journal.after(0)  # type: ignore[union-attr]
        assert kept
        assert token not in repr(kept)
        await first.handle.submit(SessionHeartbeat())
        second = Listener(await engine.resume_session(first.handle.session_id, token, 0))
        assert isinstance(await second.next(), SessionResumed)
        again = await second.next()
        assert again is not None
        assert token not in repr(again)


@pytest.mark.parametrize("bounds", [{"journal_events": 8}, {"journal_bytes": 3000}])
def test_a_journal_that_has_lost_what_was_missed_says_so_and_goes_on(bounds: dict[str, int]) -> None:
    @in_virtual_time
    async def run() -> None:
        async with talking(**bounds) as engine:
            first = await opened(engine)
            await first.ask()
            await first.until(ResponseDone)
            journal = engine.sessions.get(first.handle.session_id).outbox.journal  # type: ignore[union-attr]
            assert len(journal) <= bounds.get("journal_events", 1000)
            assert journal.kept_bytes <= bounds.get("journal_bytes", 1 << 30)
            first.handle.detach()
            second = Listener(await engine.resume_session(first.handle.session_id, first.token, 3))
            resumed, gap = await second.next(), await second.next()
            assert isinstance(resumed, SessionResumed)
            assert isinstance(gap, SessionResyncRequired)
            assert gap.last_server_event_seq == 3
            assert gap.first_available_seq == journal.first_seq > 4
            assert gap.server_event_seq == gap.first_available_seq - 1
            assert resumed.replayed_events == len(journal)
            await second.ask()
            await second.until(ResponseDone)
            numbers = [event.server_event_seq for event in second.numbered]
            assert numbers == list(range(gap.first_available_seq, numbers[-1] + 1))

    run()


@in_virtual_time
async def test_what_is_acknowledged_is_not_kept() -> None:
    async with talking() as engine:
        first = await opened(engine)
        await first.ask()
        await first.until(ResponseDone)
        journal = engine.sessions.get(first.handle.session_id).outbox.journal  # type: ignore[union-attr]
        before = len(journal)
        await first.handle.submit(SessionEventAck(server_event_seq=first.last_seq - 2))
        await settle()
        assert before > 30
        assert [e.server_event_seq for e in journal.after(0)][:2] == [first.last_seq - 1, first.last_seq]
        await first.handle.submit(SessionEventAck(server_event_seq=10_000, event_id="mine"))
        told = await first.until(ErrorEvent)
        assert (told.error.code, told.error.param, told.error.event_id) == (
            ErrorCode.INVALID_VALUE,
            "server_event_seq",
            "mine",
        )
        third = await first.resume(engine)
        await third.next()
        await third.ask()
        await third.until(ResponseDone)


@in_virtual_time
async def test_who_is_away_too_long_finds_memory_bounded_and_is_told_of_the_gap() -> None:
    async with talking(disconnect_grace_s=1e9, idle_ttl_s=1e9, journal_events=100) as engine:
        first = await opened(engine)
        runner = engine.sessions.get(first.handle.session_id)
        assert runner is not None
        side = engine.get_session(first.handle.session_id)
        assert side is not None
        first.handle.detach()
        for _ in range(4000):
            await side.submit(SessionHeartbeat())
        await settle()
        assert len(runner.outbox) <= 2048
        assert len(runner.outbox.journal) == 100
        second = await first.resume(engine)
        assert isinstance(await second.next(), SessionResumed)
        gap = await second.next()
        assert isinstance(gap, SessionResyncRequired)
        for _ in range(4001 - gap.first_available_seq + 1):
            assert isinstance(await second.next(), SessionHeartbeatAck)
        await second.handle.submit(SessionHeartbeat())
        assert (await second.until(SessionHeartbeatAck)).server_event_seq == 4002


@in_virtual_time
async def test_an_interruption_while_nobody_is_there_leaves_no_gap_and_nothing_stale_behind_it() -> None:
    async with talking() as engine:
        first = await opened(engine)
        await first.ask()
        await first.until(ResponseCreated)
        side = engine.get_session(first.handle.session_id)
        assert side is not None
        first.handle.detach()
        await asyncio.sleep(0.1)
        await side.submit(ResponseCancel())
        await settle()
        second = await first.resume(engine)
        await second.until(ResponseDone)
        whole = assert_whole(first, second)
        cleared = next(i for i, e in enumerate(whole) if isinstance(e, OutputBufferCleared | ResponseDone))
        assert not any(isinstance(e, STREAM_DELTAS) for e in whole[cleared:])


# -- leases ------------------------------------------------------------------------------------------------------------


async def seconds_to_end(handle: Any) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await handle.wait_ended()
    return loop.time() - begun


@in_virtual_time
async def test_a_session_that_lost_its_client_is_kept_for_the_grace_and_not_longer() -> None:
    async with talking() as engine:
        first, second = await opened(engine), await opened(engine)
        first.handle.detach()
        assert engine.sessions.detached == 1
        await asyncio.sleep(GRACE_S - 0.01)
        again = await first.resume(engine)
        assert engine.sessions.detached == 0
        await again.next()
        await asyncio.sleep(GRACE_S * 3)
        assert not again.handle.ended
        second.handle.detach()
        assert await seconds_to_end(second.handle) == pytest.approx(GRACE_S, abs=0.01)
        assert engine.sessions.taken == 1
        assert await refused(second.resume(engine)) is ErrorCode.SESSION_CLOSED, (
            "who has the token is told that it ended"
        )
        await asyncio.sleep(GRACE_S)
        assert await refused(second.resume(engine)) is ErrorCode.SESSION_NOT_FOUND


@in_virtual_time
async def test_a_client_that_says_nothing_is_told_that_its_session_expired() -> None:
    async with talking() as engine:
        quiet = await opened(engine)
        assert await seconds_to_end(quiet.handle) == pytest.approx(IDLE_S, abs=0.01)
        expired, closed = await quiet.rest()
        assert isinstance(expired, SessionExpired)
        assert expired.reason == "idle_ttl"
        assert isinstance(closed, SessionClosed)
        assert closed.reason is CloseReason.EXPIRED


@in_virtual_time
async def test_a_heartbeat_keeps_a_session_alive() -> None:
    async with talking() as engine:
        alive = await opened(engine)
        for _ in range(5):
            await asyncio.sleep(IDLE_S * 0.9)
            await alive.handle.submit(SessionHeartbeat())
            await alive.until(SessionHeartbeatAck)
        assert await seconds_to_end(alive.handle) == pytest.approx(IDLE_S, abs=0.01)


@in_virtual_time
async def test_for_ever_is_for_ever() -> None:
    async with talking(idle_ttl_s=float("inf"), disconnect_grace_s=float("inf")) as engine:
        one, other = await opened(engine), await opened(engine)
        one.handle.detach()
        await asyncio.sleep(1e7)
        assert not one.handle.ended
        assert not other.handle.ended


@in_virtual_time
async def test_without_a_grace_a_lost_session_ends_at_once() -> None:
    async with talking(disconnect_grace_s=0.0) as engine:
        first = await opened(engine)
        first.handle.detach()
        assert await seconds_to_end(first.handle) < 0.01


@in_virtual_time
async def test_an_attachment_that_nobody_ever_used_counts_as_lost() -> None:
    """As when the call that opened or resumed the session was cancelled just as it succeeded."""
    async with talking() as engine:
        unused = await engine.open_session()
        assert await seconds_to_end(unused) == pytest.approx(GRACE_S, abs=0.01)
        first = await opened(engine)
        first.handle.detach()
        abandoned = await first.resume(engine)
        assert await seconds_to_end(abandoned.handle) == pytest.approx(GRACE_S, abs=0.01)
        spoken_to = await engine.open_session()
        await spoken_to.submit(SessionHeartbeat())
        await asyncio.sleep(GRACE_S * 2)
        assert not spoken_to.ended


@in_virtual_time
async def test_a_drain_ends_sessions_that_nobody_has_and_lets_them_be_taken_up_while_they_answer() -> None:
    async with talking() as engine:
        idle, busy = await opened(engine), await opened(engine)
        await busy.ask()
        await busy.until(ResponseCreated)
        idle.handle.detach()
        busy.handle.detach()
        stopping = asyncio.create_task(engine.shutdown(20.0))
        await settle()
        assert idle.handle.ended
        again = await busy.resume(engine)
        done = await again.until(ResponseDone)
        assert done.response.status.value == "completed"
        closed = (await again.rest())[-1]
        assert isinstance(closed, SessionClosed)
        assert closed.reason is CloseReason.SHUTDOWN
        await stopping


@in_virtual_time
async def test_field_case_14_the_tail_of_an_answer_never_reaches_the_next_session() -> None:
    async with talking() as engine:
        first = await opened(engine)
        await first.ask()
        await first.until(ResponseCreated)
        first.handle.close(CloseReason.DISCONNECTED)
        second = await opened(engine)
        await asyncio.sleep(1.0)
        await second.handle.submit(SessionHeartbeat())
        assert isinstance(await second.next(), SessionHeartbeatAck)


@in_virtual_time
async def test_a_handle_from_the_side_speaks_and_ends_and_reads_nothing() -> None:
    async with talking() as engine:
        first = await opened(engine)
        side = engine.get_session(first.handle.session_id)
        assert side is not None
        with pytest.raises(RuntimeError, match="resume the session"):
            side.events()
        await side.submit(SessionHeartbeat())
        await first.until(SessionHeartbeatAck)
        reading = asyncio.create_task(first.rest())
        await side.aclose()
        assert isinstance((await reading)[-1], SessionClosed)


@in_virtual_time
async def test_a_reader_that_is_cancelled_can_be_followed_by_another() -> None:
    async with talking() as engine:
        first = await opened(engine)
        await cancelled(asyncio.create_task(first.next()))
        second = await first.resume(engine)
        assert isinstance(await second.next(), SessionResumed)


@in_virtual_time
@pytest.mark.parametrize("taken", [10**6, 1, 2, 3, 7])
async def test_events_go_out_at_once_while_their_reader_waits_and_are_read_when_they_cannot(taken: int) -> None:
    """Of so many offered one is not taken; whatever way they come, they come once, in order, and the last ends the reading."""
    ways: list[str] = []
    seen: list[Any] = []
    offered = itertools.count()

    def take(event: Any) -> bool:
        if next(offered) % (taken + 1) == taken:
            return False
        ways.append("at once")
        seen.append(event)
        return True

    async def read(handle: DuplexSessionHandle) -> None:
        async for event in handle.events(take):
            await asyncio.sleep(0.01)
            ways.append("read")
            seen.append(event)

    async with talking() as engine:
        handle = await engine.open_session()
        reading = asyncio.create_task(read(handle))
        for _ in range(3):
            for command in ASK:
                await handle.submit(command)
            await asyncio.sleep(2.0)
        await handle.aclose()
        await reading
    assert [event.server_event_seq for event in seen] == list(range(1, len(seen) + 1))
    assert [type(event) for event in seen].count(ResponseDone) == 3
    assert isinstance(seen[-1], SessionClosed)
    assert {*ways} == {"at once", "read"}, "the first event waits for its reader"


@in_virtual_time
async def test_who_is_replaced_is_told_the_number_of_the_last_event_that_it_got() -> None:
    """Also when one could not be sent at once, and the session was taken over before its reader came to it."""
    got: list[Any] = []

    async def read(handle: DuplexSessionHandle) -> None:
        events = handle.events(lambda event: False)
        while (event := await anext(events, None)) is not None:
            got.append(event)

    async with talking() as engine:
        handle = await engine.open_session()
        reading = asyncio.create_task(read(handle))
        await settle()
        (created,) = got
        handle.offer(SessionHeartbeat())
        second = Listener(await engine.resume_session(handle.session_id, created.session.resume_token, 1))
        await reading
        assert [(type(event), event.server_event_seq) for event in got] == [(SessionCreated, 1), (SessionReplaced, 1)]
        assert (await second.until(SessionHeartbeatAck)).server_event_seq == 2
        await second.handle.aclose()
        await second.rest()

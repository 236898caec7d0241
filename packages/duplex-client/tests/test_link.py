"""What a client does when its line breaks: in memory and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex_client import (
    ConnectionChange,
    ConnectionClosed,
    EventsLost,
    ReconnectFailed,
    Reconnecting,
    ReconnectPolicy,
    Resumed,
    ResumePoint,
    ResyncRequired,
    ServerRefused,
    SessionReplaced,
    WaitTimeout,
)
from duplex_core.audio import AudioEncoding
from duplex_core.commands import (
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    PlaybackAck,
    SessionEventAck,
    SessionHeartbeat,
    SessionResume,
)
from duplex_core.errors import ErrorCode, error
from duplex_core.events import Event, InputCleared, SessionClosed, SessionHeartbeatAck
from duplex_core.patch import WireFormat
from tests.clients.resuming import UNREACHABLE, Fault, MemoryClient, Session, cut_after, whole
from tests.clients.scripted import SESSION_ID, audio, begin, done, resumed, tone, words
from tests.clients.virtual import SelfWindingClock, VirtualClock, settle

POLICY = ReconnectPolicy(first_ms=100.0, factor=2.0, longest_ms=1000.0, give_up_after_s=5.0)


class Stage:
    """One conversation over a line that breaks, and what its application was told."""

    def __init__(
        self, *lines: Fault | Exception, keep: int | None = None, strict: bool = False, **options: object
    ) -> None:
        self.session, self.clock = Session(keep=keep, strict=strict), VirtualClock()
        self.client = MemoryClient(self.session, *lines, clock=self.clock, policy=POLICY, **options)  # type: ignore[arg-type]
        self.changes: list[ConnectionChange] = []
        self.events: list[Event] = []
        self.client.on_connection(self.changes.append)

    async def cut(self) -> None:
        self.client.lines[-1].cut()
        await settle()

    async def tell(self, *events: Event) -> None:
        self.session.tell(*events)
        await settle()

    def commands(self, kind: type) -> list[object]:
        return [command for command in self.session.commands if isinstance(command, kind)]

    @property
    def seqs(self) -> list[int]:
        return [event.server_event_seq for event in self.events]


@asynccontextmanager
async def stage(*lines: Fault | Exception, **options: object) -> AsyncIterator[Stage]:
    made = Stage(*lines, **options)  # type: ignore[arg-type]
    await made.client.connect()
    made.client.observe(lambda event, _at_ms: made.events.append(event))
    await settle()
    try:
        yield made
    finally:
        await made.client.close()


# -- losing and finding again ------------------------------------------------------------------------------------------


async def test_a_broken_line_is_made_again_and_told_once() -> None:
    async with stage(whole, UNREACHABLE, UNREACHABLE) as s:
        await s.tell(*begin())
        await s.cut()
        connected = [s.client.connected]
        await s.tell(audio(tone(20)), done())
        await s.clock.advance(10_000.0)
        assert [*connected, s.client.connected] == [False, True]
        # half of each ceiling: 50 + 100 + 200 ms, and the third attempt succeeds
        assert s.changes == [
            Reconnecting(at_ms=10_000.0, cause="the line is broken"),
            Resumed(at_ms=10_350.0, outage_ms=350.0, attempts=3, replayed_events=2, dropped_audio_ms=0.0),
        ]
        assert s.seqs == [2, 3, 4, 5]
        assert [type(e) for e in s.events] == [type(e) for e in s.session.told[1:]]


async def test_an_answer_is_whole_after_the_line_broke_in_its_middle() -> None:
    async with stage(whole) as s:
        await s.tell(*begin(), words("one "), audio(tone(20, 1)))
        answer = await anext(s.client.responses())
        heard = asyncio.create_task(_all(answer.audio()))
        await s.cut()
        await s.tell(words("two"), audio(tone(20, 2)), done())
        await s.clock.advance(1000.0)
        assert await heard == tone(20, 1) + tone(20, 2)
        assert (answer.transcript, answer.done, answer.events_lost) == ("one two", True, False)


async def _all(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def test_the_token_of_the_last_resume_opens_the_next() -> None:
    async with stage() as s:
        for _ in range(3):
            await s.cut()
            await s.clock.advance(1000.0)
        asked = [point.resume_token for point in s.client.dialled if point is not None]
        assert asked == ["token_1", "token_2", "token_3"]
        assert s.client.resume_point is not None
        assert s.client.resume_point.resume_token == "token_4"
        assert "token_4" not in repr(s.client.resume_point)


async def test_the_server_is_shown_at_once_that_its_new_token_arrived() -> None:
    async with stage() as s:
        await s.tell(SessionHeartbeatAck(), SessionHeartbeatAck())
        await s.cut()
        await s.clock.advance(1000.0)
        assert s.session.commands == [SessionEventAck(server_event_seq=3)]


async def test_a_resume_whose_answer_was_lost_is_asked_again_with_the_token_before() -> None:
    async with stage(whole, cut_after(events=0), cut_after(commands=0)) as s:
        await s.cut()
        await s.clock.advance(1000.0)
        assert s.client.connected
        assert [p.resume_token for p in s.client.dialled if p is not None] == ["token_1", "token_1", "token_3"]
        (_, back) = s.changes
        assert isinstance(back, Resumed)
        assert back.attempts == 3


async def test_a_line_that_breaks_again_soon_is_not_hurried() -> None:
    async with stage() as s:
        waits = []
        for _ in range(4):
            await s.cut()
            at_ms = s.clock.time_ms
            await s.clock.advance(600.0)
            back = s.changes[-1]
            assert isinstance(back, Resumed)
            waits.append(back.at_ms - at_ms)
        assert waits == [50.0, 100.0, 200.0, 400.0]
        await s.clock.advance(POLICY.settled_after_s * 1000.0)
        at_ms = s.clock.time_ms
        await s.cut()
        await s.clock.advance(600.0)
        assert s.changes[-1].at_ms - at_ms == 50.0


async def test_events_that_come_again_are_told_once_and_those_of_a_newer_server_count() -> None:
    async with stage() as s:
        await s.tell(SessionHeartbeatAck())
        attachment = s.session.attachment
        assert attachment is not None
        attachment.give(SessionHeartbeatAck(), 2)
        attachment.give(SessionHeartbeatAck(), 1)
        await s.tell(InputCleared())
        assert s.seqs == [2, 3]
        assert s.changes == []


# -- giving up ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_stays_away_is_given_up() -> None:
    async with stage(whole, *[UNREACHABLE] * 99) as s:
        events = s.client.events()
        await s.tell(*begin())
        answer = await anext(s.client.responses())
        await s.cut()
        waiting = asyncio.create_task(s.client.commit())
        await s.clock.advance(60_000.0)
        for lost in (waiting, answer.wait(), anext(s.client.responses()), s.client.commit()):
            with pytest.raises(
                ReconnectFailed, match=r"given up after \d+ attempts in 4.\d s: nobody is there"
            ) as caught:
                await lost
            assert caught.value.__cause__ is UNREACHABLE
        assert [type(await anext(events)) for _ in range(2)] == [type(e) for e in begin()]
        with pytest.raises(ReconnectFailed):
            await anext(events)
        assert [type(change) for change in s.changes] == [Reconnecting]
        with pytest.raises(ReconnectFailed):
            await s.client.detach()


REFUSALS = [
    ServerRefused("who are you", status=401),
    ServerRefused("no", info=error(ErrorCode.SESSION_NOT_FOUND, "gone")),
    ServerRefused("no", info=error(ErrorCode.MODEL_NOT_FOUND, "gone")),
]


@pytest.mark.parametrize("refused", REFUSALS, ids=["key", "session", "model"])
async def test_a_refusal_that_stays_one_is_not_asked_for_twice(refused: ServerRefused) -> None:
    async with stage(whole, refused) as s:
        await s.cut()
        await s.clock.advance(50.0)
        with pytest.raises(ReconnectFailed, match="no use in trying again") as caught:
            await s.client.commit()
        assert caught.value.__cause__ is refused
        assert caught.value.info == refused.info
        assert len(s.client.dialled) == 2


async def test_a_full_server_is_asked_again() -> None:
    busy = ServerRefused("full", info=error(ErrorCode.RESOURCE_EXHAUSTED, "full"))
    async with stage(whole, busy, busy) as s:
        await s.cut()
        await s.clock.advance(1000.0)
        assert s.client.connected


async def test_where_a_token_is_good_once_a_lost_answer_costs_the_session() -> None:
    async with stage(whole, cut_after(events=0), strict=True) as s:
        await s.cut()
        await s.clock.advance(1000.0)
        with pytest.raises(ReconnectFailed, match="there is no such session") as caught:
            await s.client.commit()
        assert caught.value.info is not None
        assert caught.value.info.code is ErrorCode.SESSION_NOT_FOUND


async def test_a_client_that_hangs_up_in_an_outage_stops_trying() -> None:
    async with stage(whole, *[UNREACHABLE] * 9) as s:
        await s.cut()
        await s.clock.advance(60.0)
        await s.client.close()
        dialled = len(s.client.dialled)
        await s.clock.advance(60_000.0)
        assert len(s.client.dialled) == dialled == 2


async def test_a_line_that_breaks_while_hanging_up_is_left_broken() -> None:
    async with stage(cut_after(commands=0)) as s:
        await s.client.close()
        await s.clock.advance(60_000.0)
        assert len(s.client.dialled) == 1
        assert s.changes == []


# -- what is sent meanwhile --------------------------------------------------------------------------------------------


async def test_audio_is_dropped_and_counted_while_the_line_is_broken() -> None:
    async with stage() as s:
        assert await s.client.append_audio(tone(20))
        await s.cut()
        for command in (
            InputAudioBufferAppend(audio=tone(20)),
            InputAudioBufferAppend(audio=bytes(160), format=WireFormat(type=AudioEncoding.PCMU)),
            InputAudioBufferAppend(audio=bytes(640), format="audio/pcm", sample_rate_hz=16_000),
            InputAudioBufferAppend(audio=tone(20), format="of my own"),
        ):
            assert await s.client.send(command) == ""
        await s.clock.advance(1000.0)
        (_, back) = s.changes
        assert isinstance(back, Resumed)
        assert back.dropped_audio_ms == 80.0
        assert await s.client.append_audio(tone(20))
        assert len(s.commands(InputAudioBufferAppend)) == 2


async def test_a_stream_goes_on_in_its_own_time_and_tells_what_was_sent() -> None:
    async with stage() as s:
        sent: list[float] = []
        stream = asyncio.create_task(
            s.client.stream_pcm(tone(200), 24_000, on_chunk=lambda chunk: sent.append(chunk.offset_ms))
        )
        await s.clock.advance(70.0)
        await s.cut()
        await s.clock.advance(49.0)
        await s.clock.advance(81.0)
        await stream
        assert sent == [0.0, 20.0, 40.0, 100.0, 120.0, 140.0, 160.0, 180.0]
        assert s.changes[1].dropped_audio_ms == 40.0  # type: ignore[union-attr]


async def test_other_commands_wait_and_go_in_the_order_in_which_they_were_given() -> None:
    async with stage(whole, UNREACHABLE) as s:
        await s.cut()
        given = [asyncio.create_task(s.client.commit()), asyncio.create_task(s.client.cancel_response("a"))]
        await s.clock.advance(149.0)
        assert not any(task.done() for task in given)
        await s.clock.advance(1.0)
        assert [task.done() for task in given] == [True, True]
        assert [c.event_id for c in s.session.commands[1:]] == [task.result() for task in given]


async def test_a_command_that_finds_the_line_broken_is_sent_on_the_next() -> None:
    async with stage(cut_after(commands=0)) as s:
        committing = asyncio.create_task(s.client.commit())
        await s.clock.advance(1000.0)
        await committing
        assert len(s.commands(InputAudioBufferCommit)) == 1


async def test_a_wait_that_is_cancelled_sends_nothing() -> None:
    async with stage() as s:
        await s.cut()
        committing = asyncio.create_task(s.client.commit())
        await settle()
        committing.cancel()
        await s.clock.advance(1000.0)
        assert s.commands(InputAudioBufferCommit) == []


async def test_of_what_was_played_meanwhile_the_last_figure_is_told() -> None:
    async with stage() as s:
        await s.cut()
        assert await s.client.ack_playback(100.0, response_id="a") == ""
        await s.client.ack_playback(10.0, response_id="b")
        await s.client.ack_playback(200.0, response_id="a", truncate=True)
        await s.client.ack_playback(210.0, response_id="a")
        await s.clock.advance(1000.0)
        acks = [(c.response_id, c.played_ms, c.truncate) for c in s.session.commands if isinstance(c, PlaybackAck)]
        assert acks == [("b", 10.0, False), ("a", 210.0, True)]


async def test_an_answer_that_does_not_come_says_that_the_line_was_broken() -> None:
    async with stage() as s:
        asking = asyncio.create_task(s.client.request(InputAudioBufferClear(), InputCleared, 0.05))
        await settle()
        await s.cut()
        await s.clock.advance(1000.0)
        with pytest.raises(WaitTimeout, match="the connection was lost meanwhile"):
            await asking


# -- events that are gone ----------------------------------------------------------------------------------------------


async def test_a_gap_is_told_and_the_answers_that_it_may_have_hit_are_marked() -> None:
    async with stage(keep=3) as s:
        await s.tell(*begin("before"), done("before"), *begin("resp_1"))
        before, answer = await anext(s.client.responses()), await anext(s.client.responses())
        heard = asyncio.create_task(_all(answer.audio()))
        await s.cut()
        lost = [words(str(n)) for n in range(4)]
        await s.tell(*lost, audio(tone(20)), *begin("resp_2"))
        await s.clock.advance(1000.0)
        assert s.changes[1:] == [
            Resumed(at_ms=10_050.0, outage_ms=50.0, attempts=1, replayed_events=3, dropped_audio_ms=0.0),
            ResyncRequired(at_ms=10_050.0, first_lost_seq=7, last_lost_seq=10),
        ]
        assert s.seqs == [2, 3, 4, 5, 6, 11, 12, 13]
        after = await anext(s.client.responses())
        assert [each.events_lost for each in (before, answer, after)] == [False, True, False]
        with pytest.raises(EventsLost, match=r"events 7 to 10 .* resp_1 may have had some"):
            await heard
        with pytest.raises(EventsLost):
            await answer.wait()
        await s.tell(done("resp_1"))
        assert (await answer.wait()).value == "completed"
        assert answer.events_lost


async def test_a_gap_that_the_server_does_not_mention_is_told_too() -> None:
    async with stage() as s:
        attachment = s.session.attachment
        assert attachment is not None
        attachment.give(InputCleared(), 2)
        attachment.give(InputCleared(), 5)
        await settle()
        assert s.changes == [ResyncRequired(at_ms=10_000.0, first_lost_seq=3, last_lost_seq=4)]
        assert s.seqs == [2, 5]


# -- others ------------------------------------------------------------------------------------------------------------


async def test_a_session_that_was_taken_over_is_not_taken_back() -> None:
    async with stage() as s:
        events = s.client.events()
        s.session.resume(SessionResume(session_id=SESSION_ID, resume_token="token_1", last_server_event_seq=1))
        await s.clock.advance(60_000.0)
        for call in (s.client.commit(), anext(events), s.client.wait_for(InputCleared)):
            with pytest.raises(SessionReplaced, match="another client took this session over"):
                await call
        assert s.changes == []
        await s.client.close()
        assert s.client.lines[0].end == "drop", "hanging up would end the session for whoever has it now"
        assert not s.session.over


async def test_a_session_is_handed_over_with_everything_that_arrived() -> None:
    async with stage() as s:
        events = s.client.events()
        await s.tell(InputCleared(), InputCleared())
        point = await s.client.detach()
        assert (point.session_id, point.resume_token, point.last_server_event_seq) == (SESSION_ID, "token_1", 3)
        assert [event.server_event_seq async for event in events] == [2, 3]
        assert s.client.lines[0].end == "detach"
        assert not s.session.over
        assert s.changes == []
        with pytest.raises(ConnectionClosed):
            await s.client.commit()


async def test_what_a_watcher_raises_comes_out_at_the_end() -> None:
    made = Stage()

    def broken(_change: ConnectionChange) -> None:
        raise LookupError("my own mistake")

    made.client.on_connection(broken)
    await made.client.connect()
    waiting = asyncio.create_task(made.client.wait_for(InputCleared))
    await settle()
    await made.cut()
    with pytest.raises(LookupError):
        await waiting
    with pytest.raises(LookupError, match="my own mistake"):
        await made.client.close()


async def test_a_watcher_can_stop_watching() -> None:
    async with stage() as s:
        told: list[ConnectionChange] = []
        unwatch = s.client.on_connection(told.append)
        await s.cut()
        unwatch()
        unwatch()
        await s.clock.advance(1000.0)
        assert [type(change) for change in told] == [Reconnecting]
        assert len(s.changes) == 2


# -- upkeep ------------------------------------------------------------------------------------------------------------


async def test_heartbeats_go_by_the_clock() -> None:
    async with stage(heartbeat_s=10.0) as s:
        for expected in (0, 1, 2):
            assert len(s.commands(SessionHeartbeat)) == expected
            await s.tell(SessionHeartbeatAck())
            await s.clock.advance(10_000.0)
        assert s.client.connected
        assert s.changes == []


async def test_a_line_on_which_nothing_comes_any_more_is_dead() -> None:
    async with stage(heartbeat_s=10.0) as s:
        await s.clock.advance(19_999.0)
        assert s.changes == []
        await s.clock.advance(1.0)
        assert s.client.lines[0].end == "drop"
        await s.clock.advance(1000.0)
        assert [type(change) for change in s.changes] == [Reconnecting, Resumed]


async def test_a_line_that_cannot_be_made_again_is_not_dropped_for_its_silence() -> None:
    async with stage(heartbeat_s=10.0) as s:
        s.client._connection.link._token = None
        await s.clock.advance(100_000.0)
        assert s.client.connected
        assert len(s.commands(SessionHeartbeat)) == 10


async def test_the_server_is_told_now_and_then_what_it_may_forget() -> None:
    async with stage(ack_every=10) as s:
        for _ in range(35):
            await s.tell(InputCleared())
        acked = [c.server_event_seq for c in s.session.commands if isinstance(c, SessionEventAck)]
        assert acked == [11, 21, 31]
        assert [seq for seq, _ in s.session.journal] == list(range(32, 37))


@pytest.mark.parametrize("wrong", [{"heartbeat_s": 0.0}, {"ack_every": 0}])
def test_an_interval_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Stage(**wrong)  # type: ignore[arg-type]


# -- cancelled ---------------------------------------------------------------------------------------------------------


async def _until_attempt(client: MemoryClient, clock: VirtualClock) -> None:
    """Lose the line and let the wait before the next attempt pass, but not the attempt."""
    client.lines[-1].cut()
    await settle()
    assert not client.connected
    clock.time_ms += 60_000.0
    for _, sleeper in clock._sleepers:
        if not sleeper.done():
            sleeper.set_result(None)


@pytest.mark.parametrize("lost", [False, True], ids=["in good order", "while connecting again"])
@pytest.mark.parametrize("verb", ["connect", "take_over", "detach", "close", "commit"])
async def test_whatever_is_cancelled_wherever_nothing_is_left(verb: str, lost: bool) -> None:
    steps, finished = 0, False
    while not finished:
        before, session, clock = asyncio.all_tasks(), Session(), VirtualClock()
        client = MemoryClient(session, clock=clock, policy=ReconnectPolicy(give_up_after_s=1e6))
        if verb == "take_over":
            session.open()
            client._origin = ResumePoint(session_id=SESSION_ID, resume_token="token_1", last_server_event_seq=1)
        elif verb != "connect":
            await client.connect()
            if lost:
                await _until_attempt(client, clock)
        verbs: dict[str, Callable[[], Coroutine[object, object, object]]] = {
            "connect": client.connect,
            "take_over": client.connect,
            "detach": client.detach,
            "close": client.close,
            "commit": client.commit,
        }
        doing = asyncio.ensure_future(verbs[verb]())
        for _ in range(steps):
            await asyncio.sleep(0)
        finished = doing.done()
        doing.cancel()
        await asyncio.wait([doing])
        await client.close()
        await settle()
        assert asyncio.all_tasks() == before, steps
        assert all(line.end is not None for line in client.lines), steps
        if verb == "take_over" and not finished:
            assert {line.end for line in client.lines} <= {"drop"}, "the session is not this client's to end"
        steps += 1
    assert steps > 1


# -- any place ---------------------------------------------------------------------------------------------------------

BREAKS = st.one_of(
    st.builds(lambda n: cut_after(events=n), st.integers(0, 12)),
    st.builds(lambda n: cut_after(commands=n), st.integers(0, 4)),
    st.just(UNREACHABLE),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.integers(1, 12),
    breaks=st.lists(BREAKS, max_size=8),
    bursts=st.lists(st.integers(0, 8), min_size=1, max_size=10),
    ack_every=st.sampled_from([None, 1, 3]),
)
async def test_wherever_the_line_breaks_the_application_sees_the_servers_sequence(
    first: int, breaks: list[Fault | Exception], bursts: list[int], ack_every: int | None
) -> None:
    session, clock = Session(), SelfWindingClock()
    patient = ReconnectPolicy(give_up_after_s=1e6)
    client = MemoryClient(session, cut_after(events=first), *breaks, clock=clock, policy=patient, ack_every=ack_every)
    changes: list[ConnectionChange] = []
    client.on_connection(changes.append)
    async with client:
        events = client.events()
        sent = []
        for burst in bursts:
            session.tell(*(words(f"{len(session.told)}-{n}") for n in range(burst)))
            sent.append(await client.commit())
            await settle()
        while not client.connected or client._connection.link.last_seq < len(session.told):
            await settle()
        client.lines[-1].mend()  # a line that breaks in the good-bye has a test of its own
        await client.close()
        seen = [event async for event in events]
    assert isinstance(seen[-1], SessionClosed)
    assert [event.server_event_seq for event in seen] == list(range(2, len(session.told) + 1))
    assert [getattr(e, "delta", None) for e in seen] == [getattr(e, "delta", None) for e in session.told[1:]]
    assert [c.event_id for c in session.commands if isinstance(c, InputAudioBufferCommit)] == sent
    assert [type(change) for change in changes] == [Reconnecting, Resumed] * (len(changes) // 2)


def test_the_scripted_session_gives_what_it_should() -> None:
    """The world of these tests, held to the contract by itself: a double that forgets would prove nothing."""
    session = Session(keep=2)
    session.open()
    session.tell(InputCleared(), InputCleared())
    attachment = session.resume(SessionResume(session_id=SESSION_ID, resume_token="token_1", last_server_event_seq=0))
    told = [attachment.events.get_nowait() for _ in range(attachment.events.qsize())]
    assert [(type(e).__name__, e.server_event_seq) for e in told if e is not None] == [
        (type(resumed(None)).__name__, 0),
        ("SessionResyncRequired", 0),
        ("InputCleared", 2),
        ("InputCleared", 3),
    ]

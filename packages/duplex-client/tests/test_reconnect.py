"""Reconnecting over real sockets, against a server whose every move is written down, and through a line that is cut."""

from __future__ import annotations

import asyncio
import http
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from duplex_client import (
    ConnectionClosed,
    DuplexClient,
    EventsLost,
    InlineDuplexClient,
    NotConnected,
    ProtocolError,
    ReconnectFailed,
    Reconnecting,
    ReconnectPolicy,
    Resumed,
    ResyncRequired,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
    WaitTimeout,
)
from duplex_client.transport import resume_url
from duplex_core.commands import (
    InputAudioBufferAppend,
    InputAudioBufferCommit,
    SessionClose,
    SessionEventAck,
    SessionHeartbeat,
    SessionResume,
)
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import (
    CloseReason,
    Event,
    InputCleared,
    InputCommitted,
    OutputAudioDelta,
    ResponseDone,
    SessionClosed,
    SessionHeartbeatAck,
    SessionResyncRequired,
)
from duplex_core.events import (
    SessionExpired as ExpiredEvent,
)
from duplex_core.events import (
    SessionReplaced as ReplacedEvent,
)
from tests.clients.resuming import Changes, Session, cutting, serving
from tests.clients.scripted import (
    SESSION_ID,
    Peer,
    Script,
    audio,
    begin,
    closed,
    created,
    done,
    refusal,
    resumed,
    scripted,
    tone,
    words,
)
from tests.clients.virtual import ScriptedEngine

QUICK = ReconnectPolicy(first_ms=1.0, longest_ms=4.0, give_up_after_s=5.0)
REPLACED = ReplacedEvent(session_id=SESSION_ID, attachment_generation=2)


@asynccontextmanager
async def talking(url: str, **options: object) -> AsyncIterator[tuple[DuplexClient, Changes]]:
    client = DuplexClient(url, reconnect=QUICK, **options)  # type: ignore[arg-type]
    changes = Changes()
    client.on_connection(changes)
    async with client:
        yield client, changes


async def goes_on(peer: Peer) -> None:
    """The second connection of a session whose first one was given ``t1``."""
    await peer.give("t1", new_token="t2")
    await peer.until(SessionClose)
    await peer.send(closed())


# -- the address and the first words -----------------------------------------------------------------------------------


def test_a_socket_that_resumes_opens_no_session_of_its_own() -> None:
    assert resume_url("ws://h:1/v1/realtime?model=a%2Fb&autostart=1") == "ws://h:1/v1/realtime?model=a%2Fb&autostart=0"


async def test_the_session_is_asked_for_before_anything_else() -> None:
    async def first(peer: Peer) -> None:
        await peer.send(InputCleared(), InputCleared())
        await peer.drop()

    async def second(peer: Peer) -> None:
        asked = await peer.give("t1", replayed=1, new_token="t2")
        assert asked.last_server_event_seq == 3
        assert (await peer.expect(SessionEventAck)).server_event_seq == 3
        await peer.send(InputCommitted(item_id="item_1"))
        await peer.hang_up()

    async with scripted(first, second, token="t1") as server, talking(server.url, model="m") as (client, changes):
        await client.wait_for(InputCommitted)
        assert server.paths == ["/v1/realtime?model=m", "/v1/realtime?model=m&autostart=0"]
        lost, back = changes.told
        assert isinstance(lost, Reconnecting)
        assert isinstance(back, Resumed)
        assert (back.replayed_events, back.attempts) == (1, 1)
        assert back.outage_ms == back.at_ms - lost.at_ms
        assert client.session.attachment_generation == 2
        assert client.resume_point is not None
        assert client.resume_point.resume_token == "t2"


async def test_an_answer_that_was_cut_in_its_middle_is_heard_whole() -> None:
    async def first(peer: Peer) -> None:
        await peer.send(*begin(), words("Hello "), audio(tone(20, 1)))
        await peer.drop()

    async def second(peer: Peer) -> None:
        asked = await peer.give("t1")
        told: list[Event] = [words("Hello "), audio(tone(20, 1))]
        for seq, event in enumerate(told, 4):  # of these the first connection may have brought none, one or both
            if seq > asked.last_server_event_seq:
                await peer.again(event, seq)
        await peer.send(words("there."), audio(tone(30, 2)), done())
        await peer.hang_up()

    async with scripted(first, second, token="t1") as server, talking(server.url) as (client, _):
        answer = await anext(client.responses())
        assert b"".join([pcm async for pcm in answer.audio()]) == tone(20, 1) + tone(30, 2)
        assert (await answer.wait()).value == "completed"
        assert answer.transcript == "Hello there."


# -- what is tried again, and what is not ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1001, 1011, 1012, 1013])
async def test_a_server_that_goes_away_is_come_back_to(code: int) -> None:
    async def first(peer: Peer) -> None:
        await peer.socket.close(code)

    async with scripted(first, goes_on, token="t1") as server, talking(server.url) as (client, changes):
        await client.commit()
        await changes.reach(2)
        assert changes.kinds == [Reconnecting, Resumed]


async def _closes_normally(peer: Peer) -> None:
    await peer.socket.close(1000, "bye")


async def _closes_for_good(peer: Peer) -> None:
    await peer.socket.close(1008, "invalid_api_key")


async def _says_the_last_word(peer: Peer) -> None:
    await peer.send(closed(CloseReason.SHUTDOWN, ErrorCode.SHUTDOWN))
    await peer.drop()


async def _expires(peer: Peer) -> None:
    await peer.send(ExpiredEvent(session_id=SESSION_ID, reason="idle for 900 s"), closed(CloseReason.EXPIRED))


async def _expires_and_breaks(peer: Peer) -> None:
    await peer.send(ExpiredEvent(session_id=SESSION_ID, reason="idle for 900 s"))
    await peer.drop()


async def _is_taken_over(peer: Peer) -> None:
    await peer.again(REPLACED, peer.numbering.last)
    await peer.socket.close(1001)


async def _talks_nonsense(peer: Peer) -> None:
    await peer.socket.send('{"type": "response.done"}')
    await peer.socket.wait_closed()


async def _sends_too_much(peer: Peer) -> None:
    await peer.socket.send("x" * ((32 << 20) + 1))
    await peer.socket.wait_closed()


FINAL = [
    (_closes_normally, ConnectionClosed, "code 1000: bye"),
    (_closes_for_good, ConnectionClosed, "code 1008: invalid_api_key"),
    (_says_the_last_word, ConnectionClosed, "it is shutdown"),
    (_expires, SessionExpired, "expired"),
    (_expires_and_breaks, SessionExpired, "idle for 900 s"),
    (_is_taken_over, SessionReplaced, "another client took this session over"),
    (_talks_nonsense, ProtocolError, "not in the wire contract"),
    (_sends_too_much, ProtocolError, "code 1009"),
]


@pytest.mark.parametrize(("script", "kind", "told"), FINAL, ids=[case[0].__name__[1:] for case in FINAL])
async def test_what_is_final_is_not_tried_again(script: Script, kind: type[ConnectionClosed], told: str) -> None:
    async with scripted(script, token="t1") as server, talking(server.url) as (client, changes):
        with pytest.raises(ConnectionClosed, match=told) as caught:
            await client.wait_for(ResponseDone)
        assert type(caught.value) is kind
        assert changes.told == []
        assert len(server.paths) == 1
        with pytest.raises(kind):
            await client.commit()


async def test_without_a_token_or_with_reconnecting_turned_off_a_loss_is_the_end() -> None:
    async def first(peer: Peer) -> None:
        await peer.drop()

    async with scripted(first) as server, DuplexClient(server.url) as client:
        with pytest.raises(ConnectionClosed):
            await client.wait_for(ResponseDone)
        assert client.resume_point is None
    async with scripted(first, token="t1") as server, DuplexClient(server.url, reconnect=None) as client:
        with pytest.raises(ConnectionClosed):
            await client.wait_for(ResponseDone)


async def _unknown(peer: Peer) -> None:
    await peer.expect(SessionResume)
    await peer.again(refusal(ErrorCode.SESSION_NOT_FOUND, "no such session"), 1)
    await peer.socket.close(1008)


async def _forbids(peer: Peer) -> None:
    await peer.expect(SessionResume)
    await peer.socket.close(1008, "no")


async def _begins_otherwise(peer: Peer) -> None:
    await peer.expect(SessionResume)
    await peer.again(created(), 1)
    await peer.socket.wait_closed()


async def _has_ended_it(peer: Peer) -> None:
    await peer.expect(SessionResume)
    await peer.send(closed(CloseReason.ERROR, ErrorCode.INTERNAL_ERROR))


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (_unknown, "no such session"),
        (_forbids, "code 1008: no"),
        (_begins_otherwise, "began with SessionCreated instead of session.resumed"),
    ],
)
async def test_a_session_that_is_not_given_back_is_given_up_at_once(second: Script, told: str) -> None:
    async def first(peer: Peer) -> None:
        await peer.drop()

    async with scripted(first, second, token="t1") as server, talking(server.url) as (client, changes):
        with pytest.raises(ReconnectFailed, match=told):
            await client.wait_for(ResponseDone)
        assert changes.kinds == [Reconnecting]


async def test_a_session_that_ended_meanwhile_ends_with_its_own_last_event() -> None:
    async def first(peer: Peer) -> None:
        await peer.drop()

    async with scripted(first, _has_ended_it, token="t1") as server, talking(server.url) as (client, changes):
        with client.events() as events:
            last = await anext(events)
            assert isinstance(last, SessionClosed)
            with pytest.raises(ConnectionClosed, match="it is internal_error") as caught:
                await anext(events)
        assert not isinstance(caught.value, ReconnectFailed)
        assert caught.value.reason is CloseReason.ERROR
        assert changes.kinds == [Reconnecting]


async def test_a_server_that_is_full_or_breaks_off_is_asked_again() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.drop()

    async def asks_and_breaks(peer: Peer) -> None:
        await peer.expect(SessionResume)
        await peer.drop()

    async def full(peer: Peer) -> None:
        await peer.expect(SessionResume)
        await peer.again(refusal(ErrorCode.RESOURCE_EXHAUSTED, "full"), 1)
        await peer.socket.close(1013)

    scripts = (breaks, breaks, asks_and_breaks, full, goes_on)
    async with scripted(*scripts, token="t1") as server, talking(server.url) as (_client, changes):
        await changes.reach(2)
        assert changes.back.attempts == 4


async def test_a_server_that_takes_the_socket_and_says_nothing_costs_one_attempt() -> None:
    async def first(peer: Peer) -> None:
        await peer.drop()

    async def mute(peer: Peer) -> None:
        await peer.expect(SessionResume)
        await peer.socket.wait_closed()
        assert peer.socket.close_code == 1006, "a normal close would end a session that had just been given"

    async with (
        scripted(first, mute, goes_on, token="t1") as server,
        talking(server.url, open_timeout_s=0.1) as (_client, changes),
    ):
        await changes.reach(2)
        assert changes.back.attempts == 2


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (401, 1), (501, 1)])
async def test_an_answer_over_http_decides_too(status: int, tries: int) -> None:
    asked: list[str] = []

    def gate(connection: ServerConnection, request: Request) -> Response | None:
        if "autostart=0" not in request.path:
            return None
        asked.append(request.path)
        body = {"error": {"type": "server_error", "code": "shutdown", "message": "restarting", "retryable": True}}
        answer = connection.respond(http.HTTPStatus(status), json.dumps(body) if status == 503 else "no")
        answer.headers["Connection"] = "close"
        return answer if len(asked) < 3 or status != 503 else connection.respond(http.HTTPStatus(403), "over")

    async def handler(connection: ServerConnection) -> None:
        peer = Peer(connection)
        await peer.send(created(token="t1"))
        await peer.drop()

    async with serve(handler, "127.0.0.1", 0, process_request=gate) as sockets:
        port = next(iter(sockets.sockets)).getsockname()[1]
        async with talking(f"ws://127.0.0.1:{port}") as (client, _):
            with pytest.raises(ReconnectFailed):
                await client.wait_for(ResponseDone)
    assert len(asked) == tries


# -- sending -----------------------------------------------------------------------------------------------------------


async def test_what_is_said_in_an_outage_arrives_after_it_and_audio_does_not() -> None:
    broken, again = asyncio.Event(), asyncio.Event()

    async def first(peer: Peer) -> None:
        await peer.drop()
        broken.set()

    async def second(peer: Peer) -> None:
        await again.wait()
        await peer.give("t1")
        await peer.expect(SessionEventAck)
        await peer.expect(InputAudioBufferCommit)
        await peer.hang_up()
        assert not [each for each in peer.seen if isinstance(each, InputAudioBufferAppend)]

    async with scripted(first, second, token="t1") as server, talking(server.url) as (client, changes):
        await broken.wait()
        await changes.reach(1)
        assert await client.append_audio(tone(40)) == ""
        committing = asyncio.create_task(client.commit())
        again.set()
        await committing
        assert changes.back.dropped_audio_ms == 40.0


async def test_a_server_that_dies_without_a_word_is_found_out_by_the_heartbeat() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.expect(SessionHeartbeat)
        await peer.socket.wait_closed()
        assert peer.socket.close_code == 1006

    async with (
        scripted(deaf, goes_on, token="t1") as server,
        talking(server.url, heartbeat_s=0.05) as (_client, changes),
    ):
        await changes.reach(2)
        assert changes.kinds == [Reconnecting, Resumed]


# -- gaps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_word", ["resumed", "resync"])
async def test_a_server_that_forgot_says_from_where_on_it_remembers(first_word: str) -> None:
    async def first(peer: Peer) -> None:
        await peer.send(*begin())
        await peer.expect(SessionHeartbeat)
        await peer.drop()

    async def second(peer: Peer) -> None:
        asked = await peer.expect(SessionResume)
        assert asked.last_server_event_seq == 3
        gap = SessionResyncRequired(session_id=SESSION_ID, last_server_event_seq=3, first_available_seq=10)
        told: list[Event] = [resumed("t2", replayed=1), gap]
        for event in told if first_word == "resumed" else reversed(told):
            await peer.again(event, 3)
        peer.numbering.last = 9
        await peer.send(InputCommitted(item_id="item_9"))
        await peer.hang_up()

    async with scripted(first, second, token="t1") as server, talking(server.url) as (client, changes):
        answer = await anext(client.responses())
        committed = client.wait_for(InputCommitted)
        await client.send(SessionHeartbeat())
        with pytest.raises(EventsLost):
            await answer.wait()
        await committed
        assert answer.events_lost
        assert changes.kinds == [Reconnecting, Resumed, ResyncRequired]
        gap = changes.told[2]
        assert isinstance(gap, ResyncRequired)
        assert (gap.first_lost_seq, gap.last_lost_seq) == (4, 9)


# -- handing over ------------------------------------------------------------------------------------------------------


async def test_a_session_is_taken_over_from_elsewhere() -> None:
    session = Session()
    async with serving(session) as port:
        url = f"ws://127.0.0.1:{port}"
        async with DuplexClient(url) as first:
            session.tell(InputCleared(), InputCleared())
            await first.wait_for(lambda event: event.server_event_seq == 3)
            point = first.resume_point
            assert point is not None
            async with DuplexClient.resume(url, point.session_id, point.resume_token, 2) as second:
                events = second.events()
                with pytest.raises(SessionReplaced):
                    await first.wait_for(ResponseDone)
                session.tell(InputCommitted(item_id="item_1"))
                assert [(await anext(events)).server_event_seq for _ in range(2)] == [3, 4]
                assert second.session.id == SESSION_ID
                await first.close()
                assert not session.over
            assert session.over


async def test_a_session_that_was_let_go_waits_for_the_next_client() -> None:
    session = Session()
    async with serving(session) as port:
        url = f"ws://127.0.0.1:{port}"
        async with DuplexClient(url) as first:
            session.tell(InputCleared())
            point = await first.detach()
            with pytest.raises(ConnectionClosed):
                await first.commit()
        assert not session.over
        session.tell(InputCommitted(item_id="item_1"))
        args = (point.session_id, point.resume_token, point.last_server_event_seq)
        async with DuplexClient.resume(url, *args) as second:
            await second.wait_for(InputCommitted)
        assert session.over


async def test_taking_over_can_fail_and_says_why() -> None:
    session = Session()
    async with serving(session) as port:
        url = f"ws://127.0.0.1:{port}"
        async with DuplexClient(url):
            with pytest.raises(ServerRefused, match="no such session") as caught:
                await DuplexClient.resume(url, SESSION_ID, "guessed").connect()
            assert caught.value.info is not None
            assert caught.value.info.code is ErrorCode.SESSION_NOT_FOUND
    async with scripted(_forbids, greet=False) as server:
        with pytest.raises(ServerRefused, match="code 1008: no"):
            await DuplexClient.resume(server.url, SESSION_ID, "t1").connect()


async def test_taking_over_has_a_limit_and_leaves_the_session_alive() -> None:
    async def mute(peer: Peer) -> None:
        await peer.expect(SessionResume)
        await peer.socket.wait_closed()
        assert peer.socket.close_code == 1006

    async with scripted(mute, greet=False) as server:
        with pytest.raises(WaitTimeout, match=r"session\.resumed"):
            await DuplexClient.resume(server.url, SESSION_ID, "t1", open_timeout_s=0.1).connect()


async def test_a_session_without_a_token_cannot_be_handed_over() -> None:
    async def script(peer: Peer) -> None:
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(NotConnected, match="resume_token"):
            await client.detach()
        assert client.connected


async def test_taking_over_tells_of_what_is_missing() -> None:
    session = Session(keep=1)
    async with serving(session) as port:
        url = f"ws://127.0.0.1:{port}"
        async with DuplexClient(url) as first:
            session.tell(InputCleared(), InputCleared())
            point = await first.detach()
        second = DuplexClient.resume(url, SESSION_ID, point.resume_token)
        changes = Changes()
        second.on_connection(changes)
        async with second:
            await second.wait_for(InputCleared)
        (gap,) = changes.told
        assert isinstance(gap, ResyncRequired)
        assert (gap.first_lost_seq, gap.last_lost_seq) == (1, 2)


class TakenOver(ScriptedEngine):
    """An engine that gives its one session to whoever knows its token."""

    def __init__(self) -> None:
        super().__init__(greet=False)
        self.asked: list[tuple[str, str, int]] = []
        self.detached = False

    async def resume_session(self, session_id: str, token: str, last_seq: int) -> TakenOver:
        self.asked.append((session_id, token, last_seq))
        if token != "t1":
            raise refuse(ErrorCode.SESSION_NOT_FOUND, "no such session")
        self.tell(resumed("t2"))
        return self

    def detach(self) -> None:
        self.detached = True
        self.vanish()


async def test_a_session_in_process_is_taken_over_too() -> None:
    engine = TakenOver()
    with pytest.raises(ServerRefused, match="no such session"):
        await InlineDuplexClient.resume(engine, SESSION_ID, "t0").connect()
    async with InlineDuplexClient.resume(engine, SESSION_ID, "t1", 7) as client:
        engine.tell(SessionHeartbeatAck())
        await client.wait_for(SessionHeartbeatAck)
        point = await client.detach()
        assert (point.resume_token, point.last_server_event_seq) == ("t2", 7)
    assert engine.asked == [(SESSION_ID, "t0", 0), (SESSION_ID, "t1", 7)]
    assert engine.detached
    assert not engine.closed


async def test_in_process_a_replaced_client_leaves_the_session_alone() -> None:
    engine = TakenOver()
    async with InlineDuplexClient.resume(engine, SESSION_ID, "t1") as client:
        engine.tell(REPLACED)
        with pytest.raises(SessionReplaced):
            await client.wait_for(ResponseDone)
    assert not engine.closed


# -- any byte ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(limits=st.lists(st.integers(600, 6000), min_size=1, max_size=6), answers=st.integers(1, 3))
async def test_whatever_byte_the_line_is_cut_at_every_event_comes_once(limits: list[int], answers: int) -> None:
    session, sound = Session(), b"".join(tone(10, k) for k in range(8))
    async with (
        serving(session) as port,
        cutting(port, 3000, *limits) as cutter,
        talking(cutter.url, ack_every=5) as (client, changes),
    ):
        seen: list[Event] = []
        client.observe(lambda event, _at_ms: seen.append(event))
        for n in range(answers):
            session.tell(*begin(f"r{n}"), *(audio(tone(10, k), f"r{n}") for k in range(8)), done(f"r{n}"))
            await client.commit()
        with client.events() as events:
            while len(seen) < len(session.told) - 1:
                await anext(events)
        whole = [event.server_event_seq for event in seen]
        told = changes.kinds
    assert whole == list(range(2, 11 * answers + 2))
    assert b"".join(event.delta for event in seen if isinstance(event, OutputAudioDelta)) == sound * answers
    assert told == ([Reconnecting, Resumed] * len(told))[: len(told)]

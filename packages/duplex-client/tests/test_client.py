"""The client over a real socket, against a server whose every move is written down."""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from duplex_client import (
    CommandRefused,
    ConnectFailed,
    ConnectionClosed,
    DuplexClient,
    DuplexClientError,
    NotConnected,
    ProtocolError,
    ServerRefused,
    WaitTimeout,
)
from duplex_client.pacing import SentChunk
from duplex_client.transport import realtime_url
from duplex_core.commands import (
    ConversationItemCreate,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    PlaybackAck,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionHeartbeat,
    SessionUpdate,
)
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    CloseReason,
    Event,
    InputCleared,
    InputCommitted,
    ItemAdded,
    ResponseDone,
    ResponseStatus,
    SessionHeartbeatAck,
    SessionUpdated,
    SpeechStarted,
)
from tests.clients.scripted import Peer, audio, begin, closed, created, done, refusal, scripted, tone, words
from tests.clients.virtual import SelfWindingClock

ACK = SessionHeartbeatAck()


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("ws://host:8000", "ws://host:8000/v1/realtime"),
        ("host:8000", "ws://host:8000/v1/realtime"),
        ("https://host/", "wss://host/v1/realtime"),
        ("http://host/v1/duplex?duplex=1", "ws://host/v1/duplex?duplex=1"),
    ],
)
def test_an_address_may_be_short(given: str, full: str) -> None:
    assert realtime_url(given) == full


def test_the_model_goes_into_the_address() -> None:
    assert realtime_url("ws://h/v1/realtime?a=b&model=x", "mine/one") == "ws://h/v1/realtime?a=b&model=mine%2Fone"


@pytest.mark.parametrize("bad", ["ftp://host", "ws://", "ws:///v1/realtime"])
def test_an_address_of_another_kind_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is no server address"):
        DuplexClient(bad)


async def test_a_spoken_turn_from_audio_to_answer() -> None:
    async def script(peer: Peer) -> None:
        heard = b""
        while not isinstance(command := await peer.receive(), InputAudioBufferCommit):
            assert isinstance(command, InputAudioBufferAppend)
            heard += command.audio
        assert heard == tone(130)
        await peer.send(*begin(), words("Hello "), audio(tone(20)), words("there."), audio(tone(30)), done())
        await peer.hang_up()

    clock = SelfWindingClock()
    async with scripted(script) as server, DuplexClient(server.url, clock=clock, heartbeat_s=None) as client:
        assert client.session.model == "scripted"
        await client.stream_pcm(tone(130), 24_000, chunk_ms=50)
        await client.commit()
        answer = await anext(client.responses())
        assert b"".join([pcm async for pcm in answer.audio()]) == tone(50)
        assert await answer.wait() is ResponseStatus.COMPLETED
        assert answer.transcript == "Hello there."


async def test_every_command_carries_an_id_of_its_own() -> None:
    async def script(peer: Peer) -> None:
        await peer.hang_up()
        ids = [command.event_id for command in peer.seen]
        assert None not in ids
        assert len(set(ids)) == len(ids) == 4
        assert "mine" in ids

    async with scripted(script) as server, DuplexClient(server.url) as client:
        assert await client.append_audio(tone(1)) != await client.commit()
        assert await client.send(SessionHeartbeat(event_id="mine")) == "mine"


async def test_a_key_and_a_model_reach_the_server() -> None:
    seen: list[tuple[str, str | None]] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append((connection.request.path, connection.request.headers.get("Authorization")))
        peer = Peer(connection)
        await peer.send(created())
        await peer.hang_up()

    async with serve(handler, "127.0.0.1", 0) as sockets:
        port = next(iter(sockets.sockets)).getsockname()[1]
        async with DuplexClient(f"ws://127.0.0.1:{port}", api_key="secret", model="m"):
            pass
    assert seen == [("/v1/realtime?model=m", "Bearer secret")]


# -- sending audio -----------------------------------------------------------------------------------------------------


async def test_audio_at_another_rate_says_so_and_the_sessions_own_does_not() -> None:
    async def script(peer: Peer) -> None:
        first, second = await peer.expect(InputAudioBufferAppend), await peer.expect(InputAudioBufferAppend)
        assert first.format is None
        assert msgspec.to_builtins(second.format) == {"type": "audio/pcm", "rate": 16000}
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        await client.stream_pcm(bytes(480), 24_000, paced=False)
        await client.stream_pcm(bytes(320), 16_000, paced=False)


async def test_a_rate_that_the_wire_does_not_have_is_refused_before_anything_is_sent() -> None:
    async def script(peer: Peer) -> None:
        await peer.hang_up()
        assert len(peer.seen) == 1

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(ValueError, match="44100; use one of 8000, 16000, 24000, 48000"):
            await client.stream_pcm(bytes(480), 44_100)


async def test_cancelling_a_stream_stops_it_and_leaves_the_session_usable() -> None:
    async def script(peer: Peer) -> None:
        await peer.until(SessionHeartbeat)
        appended = len(peer.seen)
        await peer.send(ACK)
        await peer.hang_up()
        assert len(peer.seen) == appended + 1, "audio came after the cancellation"

    closed_source = asyncio.Event()

    async def microphone() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(960)
        finally:
            closed_source.set()

    sent: list[SentChunk] = []
    enough = asyncio.Event()

    def count(chunk: SentChunk) -> None:
        sent.append(chunk)
        if len(sent) == 3:
            enough.set()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        stream = asyncio.create_task(client.stream_pcm(microphone(), 24_000, on_chunk=count))
        await enough.wait()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert closed_source.is_set()
        await client.request(SessionHeartbeat(), SessionHeartbeatAck)


async def test_paced_audio_keeps_real_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.hang_up()

    chunks: list[SentChunk] = []
    async with scripted(script) as server, DuplexClient(server.url) as client:
        started = client.clock.now_ms()
        await client.stream_pcm(tone(200), 24_000, on_chunk=chunks.append)
        took = client.clock.now_ms() - started
    assert took >= 200.0
    first = chunks[0].starts_at_ms
    assert [round(c.starts_at_ms - first, 6) for c in chunks] == [20.0 * i for i in range(10)]


# -- listening ---------------------------------------------------------------------------------------------------------


async def test_all_consumers_get_all_events() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(SessionHeartbeat)
        await peer.send(ACK, InputCleared(), ACK)
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        observed: list[type] = []
        client.observe(lambda event, _at_ms: observed.append(type(event)))
        one, two = client.events(), client.events()
        await client.send(SessionHeartbeat())
        both = [[type(await anext(events)) for _ in range(3)] for events in (one, two)]
    assert both[0] == both[1] == observed[:3] == [SessionHeartbeatAck, InputCleared, SessionHeartbeatAck]


async def test_waiting_listens_from_the_call_on() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(SessionHeartbeat)
        await peer.send(InputCommitted(item_id="item_1"), ACK)
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        committed = client.wait_for(InputCommitted)
        await client.request(SessionHeartbeat(), SessionHeartbeatAck)  # what is waited for comes before this returns
        assert (await committed).item_id == "item_1"


async def test_waiting_takes_a_predicate_and_gives_up_in_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(SpeechStarted(audio_start_ms=5, item_id="a"), SpeechStarted(audio_start_ms=900, item_id="b"))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        event = await client.wait_for(lambda each: isinstance(each, SpeechStarted) and each.audio_start_ms > 100)
        assert isinstance(event, SpeechStarted)
        assert event.item_id == "b"
        with pytest.raises(WaitTimeout, match=r"response.done did not come within 0.01 s") as caught:
            await client.wait_for(ResponseDone, 0.01)
        assert isinstance(caught.value, TimeoutError)


async def test_each_answer_is_handed_out_once_also_one_from_before_the_call() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*begin("resp_1"), done("resp_1"), *begin("resp_2"), ACK)
        await peer.expect(SessionHeartbeat)
        await peer.send(done("resp_2"))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        await client.wait_for(SessionHeartbeatAck)
        first = await anext(client.responses())
        second = await anext(client.responses())
        assert (first.response_id, first.done) == ("resp_1", True)
        assert (second.response_id, second.done) == ("resp_2", False)
        assert client.response("resp_2") is second
        await client.send(SessionHeartbeat())
        await second.wait()
    assert [each async for each in client.responses()] == []


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_refused_command_raises_where_it_was_given() -> None:
    async def script(peer: Peer) -> None:
        command = await peer.expect(InputAudioBufferClear)
        await peer.send(
            refusal(ErrorCode.INVALID_VALUE, "somebody else's", "other"),
            refusal(ErrorCode.UNSUPPORTED_EVENT, "not today", command.event_id),
        )
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(CommandRefused, match="not today") as caught:
            await client.clear_input()
        assert caught.value.info.code is ErrorCode.UNSUPPORTED_EVENT


async def test_the_session_is_updated_or_refused_by_name() -> None:
    async def script(peer: Peer) -> None:
        command = await peer.expect(SessionUpdate)
        assert command.session.instructions == "Be brief."
        config = SessionConfig(model="scripted", instructions="Be brief.")
        await peer.send(SessionUpdated(session=created(config).session))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(ValueError, match=r"no session patch.*instrctions"):
            await client.update_session({"instrctions": "x"})
        assert (await client.update_session({"instructions": "Be brief."})).instructions == "Be brief."
        assert client.session.instructions == "Be brief."


async def test_an_answer_that_was_asked_for_is_told_from_one_that_began_by_itself() -> None:
    async def script(peer: Peer) -> None:
        command = await peer.expect(ResponseCreate)
        assert command.response is not None
        assert command.response.metadata is not None
        assert command.response.metadata["mine"] == "1"
        await peer.send(*begin("resp_auto"), done("resp_auto"), *begin("resp_mine", command.response.metadata))
        await peer.send(done("resp_mine"))
        command = await peer.expect(ResponseCreate)
        await peer.send(refusal(ErrorCode.ACTIVE_RESPONSE, "one is being given", command.event_id))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        from duplex_core.patch import ResponseParams

        answer = await client.create_response(ResponseParams(metadata={"mine": "1"}))
        assert answer.response_id == "resp_mine"
        with pytest.raises(CommandRefused) as caught:
            await client.create_response()
        assert caught.value.info.code is ErrorCode.ACTIVE_RESPONSE


async def test_an_item_comes_back_as_the_server_has_it() -> None:
    async def script(peer: Peer) -> None:
        command = await peer.expect(ConversationItemCreate)
        await peer.send(ItemAdded(item=command.item, previous_item_id="item_0"))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        item = await client.say_text("Hello?")
        assert item.id


async def test_cancelling_and_acknowledging_name_their_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*begin())
        assert (await peer.expect(ResponseCancel)).response_id == "resp_1"
        ack = await peer.expect(PlaybackAck)
        assert (ack.played_ms, ack.response_id, ack.truncate) == (120.0, "resp_1", True)
        await peer.send(done(status=ResponseStatus.CANCELLED))
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        answer = await anext(client.responses())
        await client.cancel_response(answer.response_id)
        await client.ack_playback(120.0, response_id=answer.response_id, truncate=True)
        assert await answer.wait() is ResponseStatus.CANCELLED
        assert (answer.played_ms, answer.interrupted) == (120.0, True)


# -- the beginning and the end -----------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_said_to_be_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ConnectFailed, match=f"cannot reach ws://127.0.0.1:{port}/v1/realtime"):
            await DuplexClient(f"ws://127.0.0.1:{port}").connect()


async def test_a_refusal_over_http_carries_the_servers_error() -> None:
    body = {"error": {"type": "rate_limit_error", "code": "resource_exhausted", "message": "full", "retryable": True}}

    def refuse(connection: ServerConnection, _request: Request) -> Response:
        answer = connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, json.dumps(body))
        answer.headers["Connection"] = "close"
        return answer

    async def never(_connection: ServerConnection) -> None:
        raise AssertionError("the socket was opened")

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as sockets:
        port = next(iter(sockets.sockets)).getsockname()[1]
        with pytest.raises(ServerRefused, match="full") as caught:
            await DuplexClient(f"ws://127.0.0.1:{port}").connect()
    assert caught.value.status == 503
    assert caught.value.info is not None
    assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
    assert caught.value.retryable


@pytest.mark.parametrize(
    "events",
    [
        (refusal(ErrorCode.RESOURCE_EXHAUSTED, "full"),),
        (closed(CloseReason.ERROR, ErrorCode.RESOURCE_EXHAUSTED),),
        (refusal(ErrorCode.RESOURCE_EXHAUSTED, "full"), closed(CloseReason.ERROR)),
    ],
    ids=["error", "closed", "both"],
)
async def test_a_refusal_on_the_socket_is_a_refusal(events: tuple[Event, ...]) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*events)

    async with scripted(script, greet=False) as server:
        with pytest.raises(ServerRefused) as caught:
            await DuplexClient(server.url).connect()
    assert caught.value.info is not None
    assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.wait_closed()

    async with scripted(script, greet=False) as server:
        with pytest.raises(WaitTimeout, match=r"session.created"):
            await DuplexClient(server.url, open_timeout_s=0.2).connect()


async def test_a_cancelled_connect_leaves_no_socket_behind() -> None:
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        reached.set()
        await peer.socket.wait_closed()

    async with scripted(script, greet=False) as server:
        connecting = asyncio.create_task(DuplexClient(server.url).connect())
        await reached.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    # leaving `scripted` waits for the server to see the socket close


async def test_hanging_up_says_so_and_ends_every_iterator_quietly() -> None:
    async def script(peer: Peer) -> None:
        close = await peer.until(SessionClose)
        assert close.reason == "enough"
        await peer.send(closed())

    async with scripted(script) as server, DuplexClient(server.url) as client:
        events = client.events()
        await client.close("enough")
        await client.close()
        assert [type(event).__name__ async for event in events] == ["SessionClosed"]
        assert [answer async for answer in client.responses()] == []
        with pytest.raises(ConnectionClosed) as caught:
            await client.commit()
        assert caught.value.reason is CloseReason.CLIENT


async def test_a_server_that_ends_the_session_tells_everyone_why() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*begin())
        await peer.expect(SessionHeartbeat)
        await peer.send(closed(CloseReason.ERROR, ErrorCode.ENGINE_ERROR))

    async with scripted(script) as server, DuplexClient(server.url) as client:
        answer = await anext(client.responses())
        events = client.events()
        waiting = [
            asyncio.ensure_future(client.wait_for(ResponseDone)),
            asyncio.ensure_future(answer.wait()),
            asyncio.ensure_future(anext(client.responses())),
        ]
        await client.send(SessionHeartbeat())
        for each in waiting:
            with pytest.raises(ConnectionClosed, match="it is engine_error") as caught:
                await each
            assert caught.value.info is not None
            assert caught.value.info.retryable
        assert type(await anext(events)).__name__ == "SessionClosed"
        with pytest.raises(ConnectionClosed):
            await anext(events)
        await client.wait_closed()


async def test_a_socket_that_breaks_is_no_clean_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.close(1011, "out of luck")

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(ConnectionClosed, match="1011: out of luck"):
            await client.wait_for(ResponseDone)


async def test_events_of_a_newer_server_are_skipped_and_nonsense_is_not() -> None:
    async def script(peer: Peer) -> None:
        peer.numbering.last += 1
        await peer.socket.send('{"type": "session.sung", "server_event_seq": 2}')
        await peer.send(ACK)
        await peer.socket.send('{"type": "response.done"}')
        await peer.socket.wait_closed()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        await client.wait_for(SessionHeartbeatAck)
        with pytest.raises(ProtocolError, match="not in the wire contract"):
            await client.wait_for(ResponseDone)


async def test_what_an_observer_raises_comes_out_at_the_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(ACK)
        await peer.socket.wait_closed()

    def broken(_event: Event, _at_ms: float) -> None:
        raise LookupError("my own mistake")

    async with scripted(script) as server:
        client = DuplexClient(server.url)
        await client.connect()
        client.observe(broken)
        await client.wait_closed()
        with pytest.raises(LookupError, match="my own mistake"):
            await client.close()


async def test_a_client_without_a_session_says_what_to_do() -> None:
    client = DuplexClient("ws://127.0.0.1:1")
    with pytest.raises(NotConnected, match="async with"):
        await client.commit()
    await client.close()


async def test_a_client_has_one_session_in_its_life() -> None:
    async def script(peer: Peer) -> None:
        await peer.hang_up()

    async with scripted(script) as server, DuplexClient(server.url) as client:
        with pytest.raises(NotConnected, match="new client"):
            await client.connect()


def test_all_errors_are_of_one_family() -> None:
    from duplex_client import errors

    kinds = [each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__]
    assert len(kinds) == 13
    assert all(issubclass(each, DuplexClientError) for each in kinds)


async def test_the_scripted_server_can_fail_a_test() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(SessionHeartbeat)

    async def conversation() -> None:
        async with scripted(script) as server:
            client = DuplexClient(server.url)
            await client.connect()
            await client.commit()
            with contextlib.suppress(ConnectionClosed):
                await client.wait_for(ResponseDone)
            await client.close()

    with pytest.raises(AssertionError, match="expected SessionHeartbeat, got InputAudioBufferCommit"):
        await conversation()

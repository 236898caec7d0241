"""Sessions that outlive their sockets: resumed without loss or repeat, taken over, refused, expired. Over real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pydantic
import pytest

from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, error
from duplex_core.events import CloseReason
from duplex_core.model import Configured, ModelInput, ModelOutput
from duplex_server.engine.lease import Lifetime
from duplex_server.serving import realtime
from tests.support.serving import PARROT, serving

RESUME = "/v1/realtime?autostart=0"


def break_off(caller: Any) -> None:
    """Lose the connection, without a word."""
    caller.socket.transport.abort()


def token_of(caller: Any) -> tuple[str, str]:
    """The session's id and the token that was told last."""
    told = [e["session"] for e in caller.seen if e["type"] in {"session.created", "session.resumed"}][-1]
    return told["id"], told["resume_token"]


def numbered(caller: Any) -> list[dict[str, Any]]:
    """The session's own events, without those about the socket."""
    about_socket = {"session.resumed", "session.replaced", "session.resync_required"}
    return [e for e in caller.seen if e["type"] not in about_socket]


def last_seq(caller: Any) -> int:
    """Number of the last event that arrived."""
    seq: int = caller.seen[-1]["server_event_seq"]
    return seq


@contextlib.asynccontextmanager
async def resumed(served: Any, session_id: str, token: str, last: int) -> AsyncIterator[Any]:
    async with served.call(RESUME) as caller:
        await caller.say("session.resume", session_id=session_id, resume_token=token, last_server_event_seq=last)
        yield caller


async def test_resume_without_loss_or_repeat_wherever_an_answer_is_cut(served: Any, speech: bytes) -> None:
    """Lose the socket after the first event of an answer, after the second, and so on to the last."""
    cut_after = 0
    finished = False
    while not finished:
        cut_after += 1
        async with served.session() as first:
            await first.by_hand(options={"pace": 0.02})
            await first.append(speech)
            await first.say("input_audio_buffer.commit", response_create=True)
            before = len(first.seen)
            while len(first.seen) - before < cut_after and not finished:
                finished = (await first.next())["type"] == "response.done"
            break_off(first)
        seen = list(first.seen)
        async with resumed(served, *token_of(first), seen[-1]["server_event_seq"]) as second:
            told = await second.next()
            assert told["type"] == "session.resumed"
            assert told["server_event_seq"] == seen[-1]["server_event_seq"]
            assert told["session"]["attachment_generation"] == 2
            if not finished:
                await second.until("response.done")
            await second.say("session.close")
            await second.rest()
        whole = seen + numbered(second)
        assert [e["server_event_seq"] for e in whole] == list(range(1, len(whole) + 1)), cut_after
        assert len({e["event_id"] for e in whole}) == len(whole)
        assert [e["type"] for e in whole].count("response.done") == 1
        assert whole[-1]["type"] == "session.closed"
        assert served.engine.sessions.taken == 0
    assert cut_after > 15


async def test_a_replay_that_is_cut_is_taken_up_where_it_was_cut(served: Any, speech: bytes) -> None:
    async with served.session() as first:
        await first.by_hand(options={"pace": 0.0})
        await first.append(speech)
        await first.say("input_audio_buffer.commit", response_create=True)
        await first.until("response.done")
        break_off(first)
    whole = list(first.seen)
    links = [first]
    for so_many in (1, 3, 7):
        async with resumed(served, *token_of(links[-1]), 2 if len(links) == 1 else last_seq(links[-1])) as link:
            told = await link.next()
            assert told["replayed_events"] >= so_many
            for _ in range(so_many):
                await link.next()
            break_off(link)
        links.append(link)
    again = [event for link in links[1:] for event in numbered(link)]
    assert again == whole[2 : 2 + len(again)], "a replay tells what was told, word for word"
    assert len(again) == 11


async def test_a_takeover_tells_the_old_socket_and_closes_it(served: Any, speech: bytes) -> None:
    async with served.session() as first:
        await first.by_hand(options={"pace": 0.02})
        await first.append(speech)
        await first.say("input_audio_buffer.commit", response_create=True)
        await first.until("response.output_audio.delta")
        async with resumed(served, *token_of(first), last_seq(first)) as second:
            assert (await second.next())["type"] == "session.resumed"
            rest = await first.rest()
            assert rest[-1]["type"] == "session.replaced"
            assert rest[-1]["attachment_generation"] == 2
            assert rest[-1]["server_event_seq"] == last_seq(first)
            assert (first.socket.close_code, first.socket.close_reason) == (1000, "session_replaced")
            await second.until("response.done")
            assert served.engine.sessions.taken == 1
        numbers = [event["server_event_seq"] for event in numbered(second)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_resume_that_is_refused_leaves_the_earlier_owner_in_place(served: Any) -> None:
    async with served.session() as first:
        session_id, token = token_of(first)
        for wrong in ((session_id, "wrong", 1), ("sess_unknown", token, 1)):
            async with resumed(served, *wrong) as refused:
                told = await refused.next()
                assert told["error"]["code"] == "session_not_found"
                assert not told["error"].get("retryable")
                assert await refused.rest() == []
                assert refused.socket.close_code == 1008
        async with resumed(served, session_id, token, 99) as refused:
            told = await refused.next()
            assert (told["error"]["code"], told["error"]["param"]) == ("invalid_value", "last_server_event_seq")
        await first.say("session.heartbeat")
        assert (await first.next())["type"] == "session.heartbeat_ack"
        assert served.engine.sessions.taken == 1
        async with resumed(served, session_id, token, 2) as second:
            assert (await second.next())["type"] == "session.resumed"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ('{"type": "session.heartbeat"}', "invalid_event"),
        ('{"type": "session.resume", "session_id": "sess_1"}', "invalid_value"),
        ('{"type": "session.resume", "session_id": 7, "resume_token": "x"}', "invalid_value"),
        ("{", "invalid_json"),
        (b"\x00", "binary_frame"),
    ],
)
async def test_a_socket_without_a_session_takes_nothing_but_a_resume(served: Any, frame: Any, code: str) -> None:
    async with served.call(RESUME) as caller:
        await caller.socket.send(frame)
        assert (await caller.next())["error"]["code"] == code
        assert await caller.rest() == []
        assert caller.socket.close_code == 1008
    assert served.engine.sessions.taken == 0


async def test_a_socket_that_never_says_what_it_resumes_is_closed(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "FIRST_COMMAND_S", 0.05)
    async with served.call(RESUME) as caller:
        told = await caller.next()
        assert told["error"]["code"] == "invalid_event"
        assert "session.resume" in told["error"]["message"]
        assert await caller.rest() == []
    async with served.call(RESUME) as caller:
        break_off(caller)
    async with served.session():
        assert served.engine.sessions.taken == 1


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it looks at what the server counts
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("code", [1000, None])
async def test_hanging_up_ends_the_session(served: Any, code: int | None) -> None:
    async with served.session() as caller:
        handle = served.engine.get_session(caller.seen[0]["session"]["id"])
        if code is None:
            caller.socket.transport.write(b"\x88\x80\x00\x00\x00\x00")  # a close frame that says nothing
        else:
            await caller.socket.close(code)
        async with asyncio.timeout(10):
            await handle.wait_ended()
    assert served.engine.sessions.taken == 0


@pytest.mark.parametrize("code", [1001, 1011, 4000, "broken", "not utf-8"])
async def test_any_other_end_of_a_socket_leaves_the_session_for_a_while(served: Any, code: Any) -> None:
    async with served.session() as caller:
        if code == "broken":
            break_off(caller)
        elif code == "not utf-8":
            caller.socket.transport.write(b"\x81\x82\x00\x00\x00\x00\xff\xfe")
            await caller.rest()
            assert caller.socket.close_code == 1007
        else:
            await caller.socket.close(code)
        await until(lambda: served.engine.sessions.detached == 1)
    async with resumed(served, *token_of(caller), 1) as again:
        assert (await again.next())["type"] == "session.resumed"
        assert served.engine.sessions.detached == 0
        await again.say("session.heartbeat")
        assert (await again.next())["type"] == "session.heartbeat_ack"


async def test_a_session_whose_client_does_not_come_back_expires(serving: Any) -> None:
    async with serving(lifetime=Lifetime(disconnect_grace_s=0.1)) as served:
        async with served.session() as caller:
            break_off(caller)
        await until(lambda: served.engine.sessions.taken == 0)
        session_id, token = token_of(caller)
        for wrong in ((session_id, "wrong", 1), ("sess_unknown", token, 1)):
            async with resumed(served, *wrong) as stranger:
                told = await stranger.next()
                assert (told["type"], told["error"]["code"]) == ("error", "session_not_found")
        for _ in range(2):
            async with resumed(served, session_id, token, 1) as late:
                told = await late.next()
                assert (told["type"], told["session_id"], told["reason"]) == ("session.closed", session_id, "expired")
                assert told["server_event_seq"] == 3, "after session.created and session.expired"
                assert await late.rest() == []
                assert late.socket.close_code == 1000
        async with httpx.AsyncClient(base_url=served.http) as client:
            text = (await client.get("/metrics")).text
        assert 'duplex_sessions_closed_total{reason="expired"} 1.0' in text
        assert 'duplex_resumes_total{outcome="refused"} 2.0' in text
        assert 'duplex_resumes_total{outcome="over"} 2.0' in text
        assert "duplex_sessions_detached 0.0" in text


async def test_a_session_that_died_while_nobody_had_it_says_of_what(serving: Any, gated: Any) -> None:
    """With the cause, and with the numbers that its events would have had."""
    async with serving(gated.spec) as served:
        async with served.session() as caller:
            break_off(caller)
            await until(lambda: served.engine.sessions.detached == 1)
        session_id, token = token_of(caller)
        handle = served.engine.get_session(session_id)
        assert handle is not None
        handle.close(CloseReason.ERROR, error(ErrorCode.ENGINE_ERROR, "stage work died"))
        async with resumed(served, session_id, token, 1) as ending:
            told = await ending.next()
            assert (told["type"], told["reason"]) == ("session.closed", "error")
        assert (told["error"]["code"], told["error"]["message"]) == ("engine_error", "stage work died")
        assert told["server_event_seq"] == 3, "after session.created and the error"


async def test_a_session_that_its_client_ended_is_over_for_who_comes_back_with_its_token(served: Any) -> None:
    async with served.session() as caller:
        await caller.say("session.close")
        (*_, closed) = await caller.rest()
    async with resumed(served, *token_of(caller), 1) as late:
        assert await late.next() == closed, "it is the event that was told"


async def test_a_client_that_says_nothing_is_told_that_its_session_expired(serving: Any) -> None:
    async with serving(lifetime=Lifetime(idle_ttl_s=0.2)) as served, served.session() as caller:
        for _ in range(5):
            await asyncio.sleep(0.1)
            await caller.say("session.heartbeat")
        expired, closed = (await caller.rest())[-2:]
        assert (expired["type"], expired["reason"]) == ("session.expired", "idle_ttl")
        assert (closed["type"], closed["reason"]) == ("session.closed", "expired")
        assert caller.types().count("session.heartbeat_ack") == 5


async def test_health_and_metrics_tell_of_sessions_that_nobody_has(served: Any) -> None:
    async with served.session() as caller:
        break_off(caller)
    await until(lambda: served.engine.sessions.detached == 1)
    async with httpx.AsyncClient(base_url=served.http) as client:
        health = (await client.get("/health")).json()
        assert (health["sessions"], health["detached"]) == (1, 1)
        assert "duplex_sessions_detached 1.0" in (await client.get("/metrics")).text
        async with resumed(served, *token_of(caller), 1) as again:
            await again.next()
            text = (await client.get("/metrics")).text
    assert "duplex_sessions_detached 0.0" in text
    assert 'duplex_resumes_total{outcome="resumed"} 1.0' in text


async def test_a_resumed_session_speaks_and_hears_in_its_own_format(served: Any) -> None:
    """Both that of the events that are told again and that of what comes after; and the client's audio is read in it."""
    async with served.session() as first:
        telephone = {"format": {"type": "audio/pcmu"}}
        await first.by_hand(audio={"input": dict(telephone), "output": dict(telephone)}, options={"pace": 0.02})
        said = bytes(0x20 if i // 8 % 2 else 0xA0 for i in range(4000))  # half a second of a loud tone
        await first.append(said)
        await first.say("input_audio_buffer.commit", response_create=True)
        cut = await first.until("response.output_audio.delta")
        break_off(first)
    async with resumed(served, *token_of(first), cut["server_event_seq"] - 2) as second:
        told = await second.next()
        assert told["session"]["audio"]["output"]["format"] == {"type": "audio/pcmu"}
        await second.append(said, duration_ms=500)
        await second.until("response.done")
        deltas = [e for e in second.seen if e["type"] == "response.output_audio.delta"]
        assert {(e["format"], e["sample_rate_hz"]) for e in deltas} == {("audio/pcmu", 8000)}
        whole = {e["server_event_seq"]: e for e in [*first.seen, *deltas] if e["type"] == cut["type"]}
        length = sum(len(base64.b64decode(e["delta"])) for e in whole.values())
        assert length == pytest.approx(4000, abs=20)


async def test_a_journal_that_is_too_short_asks_the_client_to_fetch_anew(serving: Any) -> None:
    async with serving(lifetime=Lifetime(journal_events=3)) as served:
        async with served.session() as first:
            for _ in range(9):
                await first.say("session.heartbeat")
                await first.next()
            break_off(first)
        async with resumed(served, *token_of(first), 4) as second:
            told, gap = await second.next(), await second.next()
            assert (told["type"], told["replayed_events"]) == ("session.resumed", 3)
            assert gap["type"] == "session.resync_required"
            assert (gap["last_server_event_seq"], gap["first_available_seq"]) == (4, 8)
            assert [(await second.next())["server_event_seq"] for _ in range(3)] == [8, 9, 10]
            await second.say("session.heartbeat")
            assert (await second.next())["server_event_seq"] == 11


async def test_sessions_that_nobody_has_do_not_hold_up_the_end_of_the_server(served: Any) -> None:
    async with served.session() as caller:
        break_off(caller)
    await until(lambda: served.engine.sessions.detached == 1)
    async with asyncio.timeout(5):
        await served.engine.shutdown(60.0)
    assert served.engine.sessions.taken == 0


class WithVoice(pydantic.BaseModel):
    voice: str = ""


class Configurable:
    """Keeps how it was configured last, and says nothing."""

    def __init__(self) -> None:
        self.config: SessionConfig | None = None

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, Configured):
            self.config = event.config
        return ()


async def test_a_voice_in_an_option_does_not_come_back_with_every_event() -> None:
    """Or the journal could not hold what a returning client has missed, and who reads it would get megabytes each time."""
    voice = "A" * 6_000_000
    model = Configurable()
    spec = dataclasses.replace(PARROT, options_model=WithVoice, create_session=lambda context: model)
    async with serving(spec) as served:
        async with served.session() as first:
            await first.by_hand(options={"voice": voice})
            told, told_size = first.seen[-1]["session"]["options"], len(str(first.seen[-1]))
            session_id, token = token_of(first)
            last = last_seq(first)
            for speed in range(30):
                await first.say("session.update", session={"type": "realtime", "instructions": f"Be quick, {speed}."})
            await first.until("session.updated", where=lambda event: "29" in event["session"]["instructions"])
            assert model.config is not None
            assert model.config.options["voice"] == voice
            break_off(first)
        async with resumed(served, session_id, token, last) as later:
            back = await later.next()
            assert (back["type"], back["replayed_events"]) == ("session.resumed", 30)
            await later.until("session.updated", where=lambda event: "29" in event["session"]["instructions"])
    assert told["voice"] == back["session"]["options"]["voice"] == "(6000000 characters)"
    assert told_size < 16_000
    assert "session.resync_required" not in later.types()

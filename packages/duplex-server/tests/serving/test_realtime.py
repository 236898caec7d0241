"""One conversation over a real socket, from the first event to the last."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
import websockets


def audio_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta")


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/realtime?duplex=1", "/v1/duplex", "/v1/realtime?model=parrot"])
async def test_every_address_opens_the_same_kind_of_session(served: Any, path: str) -> None:
    async with served.call(path) as caller:
        created = await caller.next()
        assert created["type"] == "session.created"
        assert created["session"]["model"] == "parrot"
        assert created["server_event_seq"] == 1


async def test_a_turn_by_hand_is_answered_in_the_order_of_the_wire(served: Any, speech: bytes) -> None:
    async with served.session() as caller:
        await caller.by_hand(options={"pace": 0.0})
        await caller.append(speech)
        await caller.say("input_audio_buffer.commit", response_create=True)
        done = await caller.until("response.done")
        assert done["response"]["status"] == "completed"
        types = caller.types()
        expected = [
            "input_audio_buffer.committed",
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.speak",
            "response.output_audio.delta",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        places = [types.index(each, types.index("response.created") if i else 0) for i, each in enumerate(expected)]
        assert places[1:4] == sorted(places[1:4])
        assert places[4:] == sorted(places[4:])
        assert [e["server_event_seq"] for e in caller.seen] == list(range(1, len(caller.seen) + 1))
        assert len({e["event_id"] for e in caller.seen}) == len(caller.seen)


async def test_the_answer_lasts_as_long_as_what_was_said_in_any_format(served: Any) -> None:
    """Echo repeats the speech, so its length survives two resamplers to the sample, tails included."""
    from duplex_core.testing.speech import burst

    for rate, out, width in ((8000, {"type": "audio/pcm", "rate": 48000}, 2), (48000, {"type": "audio/pcmu"}, 1)):
        async with served.session() as caller:
            formats = {"input": {"format": {"type": "audio/pcm", "rate": rate}}, "output": {"format": out}}
            await caller.by_hand(audio=formats, options={"pace": 0.0})
            said = burst(730, rate)
            for start in range(0, len(said), 1000):
                await caller.append(said[start : start + 1000])
            await caller.say("input_audio_buffer.commit", response_create=True)
            await caller.until("response.done")
            heard = audio_of(caller.seen)
            out_rate = float(str(out.get("rate", 8000)))
            assert len(heard) / width / out_rate * 1000 == pytest.approx(730, abs=0.5)
            delta = next(e for e in caller.seen if e["type"] == "response.output_audio.delta")
            assert delta["sample_rate_hz"] == out_rate
            assert delta["format"] == out["type"]


async def test_the_detector_takes_the_turn_and_the_next_one_interrupts_the_answer(
    served: Any, speech: bytes, quiet: bytes
) -> None:
    async with served.session() as caller:
        await caller.append(quiet + speech + quiet)
        await caller.until("input_audio_buffer.speech_started")
        await caller.until("input_audio_buffer.speech_stopped")
        await caller.until("input_audio_buffer.committed")
        first = (await caller.until("response.created"))["response"]["id"]
        await caller.until("response.output_audio.delta")
        await caller.append(speech + speech + speech + quiet)
        cut = await caller.until("output_audio_buffer.cleared")
        assert cut["response_id"] == first
        until = len(caller.seen)
        second = (await caller.until("response.created"))["response"]["id"]
        await caller.until("response.done", where=lambda e: e["response"]["id"] == second)
        late = [e for e in caller.seen[until:] if e.get("response_id") == first and "delta" in e]
        assert not late, "something of the old answer came after the fence"
        epochs = [e["metadata"]["epoch"] for e in caller.seen if e["type"] == "response.output_audio.delta"]
        assert epochs == sorted(epochs)
        assert epochs[-1] == cut["epoch"]


async def test_closing_is_the_last_event_and_the_slot_is_free_by_then(served: Any) -> None:
    async with served.session() as caller:
        assert served.engine.sessions.taken == 1
        await caller.say("session.close")
        await caller.say("session.close")
        events = await caller.rest()
        assert [e["type"] for e in events] == ["session.closed"]
        assert events[0]["reason"] == "client_closed"
        assert served.engine.sessions.taken == 0
        assert caller.socket.close_code == 1000


async def test_a_client_that_hangs_up_leaves_no_slot_behind(served: Any, speech: bytes) -> None:
    async with served.session() as caller:
        await caller.by_hand()
        await caller.append(speech)
        await caller.say("input_audio_buffer.commit", response_create=True)
        await caller.until("response.output_audio.delta")
        (session_id,) = [e["session"]["id"] for e in caller.seen if e["type"] == "session.created"]
        handle = served.engine.get_session(session_id)
    async with asyncio.timeout(10):
        await handle.wait_ended()
    assert served.engine.sessions.taken == 0


async def test_beyond_the_last_slot_a_call_is_refused_at_once_and_may_try_again(served: Any) -> None:
    import contextlib

    async with contextlib.AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(served.session()) for _ in range(4)]
        async with served.call() as refused:
            told = await refused.next()
            assert told["type"] == "error"
            assert told["error"]["code"] == "resource_exhausted"
            assert told["error"]["type"] == "rate_limit_error"
            assert told["error"]["retryable"] is True
            assert await refused.rest() == []
            assert refused.socket.close_code == 1013
        await callers[0].say("session.close")
        await callers[0].rest()
        async with served.session():
            assert served.engine.sessions.taken == 4


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("?duplex=0", "unsupported_parameter", "duplex"),
        ("?duplex=2", "invalid_value", "duplex"),
        ("?duplex=", "invalid_value", "duplex"),
        ("?autostart=maybe", "invalid_value", "autostart"),
        ("?autostart=0&duplex=0", "unsupported_parameter", "duplex"),
        ("?autostart=0&model=gpt-x", "model_not_found", "model"),
        ("?autostart=0&autostart=1", "invalid_value", "autostart"),
        ("?intent=transcription", "unsupported_parameter", "intent"),
        ("?intent=translation", "invalid_value", "intent"),
        ("?call_id=rtc_1", "unsupported_parameter", "call_id"),
        ("?model=gpt-x", "model_not_found", None),
        ("?model=parrot&model=gpt-x", "invalid_value", "model"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(served: Any, query: str, code: str, param: str | None) -> None:
    async with served.call(f"/v1/realtime{query}") as caller:
        told = await caller.next()
        assert told["type"] == "error"
        assert told["error"]["code"] == code
        assert told["error"].get("param") == param
        assert await caller.rest() == []
        assert caller.socket.close_code == 1008
    assert served.engine.sessions.taken == 0


@pytest.mark.parametrize("query", ["?duplex=true&autostart=1", "?model=parrot&model=parrot", "?api-version=2026-01-01"])
async def test_what_is_served_and_what_means_nothing_here_is_taken(served: Any, query: str) -> None:
    async with served.session(f"/v1/realtime{query}"):
        assert served.engine.sessions.taken == 1


async def test_pings_are_answered_while_a_flood_is_worked_off(served: Any) -> None:
    async with served.session() as caller:
        for _ in range(3000):
            await caller.say("session.heartbeat")
        async with asyncio.timeout(10):
            await (await caller.socket.ping())
        acks = 0
        while acks < 3000:
            event = await caller.until("session.heartbeat_ack", "error")
            assert event["type"] == "session.heartbeat_ack", event
            acks += 1


async def test_the_realtime_subprotocol_is_taken_when_offered(served: Any) -> None:
    async with served.call(subprotocols=[websockets.Subprotocol("realtime")]) as caller:
        assert caller.socket.subprotocol == "realtime"
    async with served.call() as caller:
        assert caller.socket.subprotocol is None

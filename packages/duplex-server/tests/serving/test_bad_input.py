"""Bad input of every kind: an error with a code, the state as before, the session alive."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from duplex_core.wire import MAX_EVENT_BYTES


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def append(**fields: Any) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "event_id": "mine", **fields})


EVEN = b64(bytes(480))
BAD = {
    "not JSON": ("{", "invalid_json", None),
    "not an object": ("[1]", None, None),
    "no type": ('{"event_id":"mine"}', None, None),
    "an unknown type": ('{"type":"response.sing","event_id":"mine"}', "unknown_event_type", None),
    "deep nesting": ("[" * 200_000, None, None),
    "deep options": (
        '{"type":"session.update","event_id":"mine","session":{"options":' + '{"a":' * 500 + "1" + "}" * 502,
        None,
        None,
    ),
    "bad base64": (append(audio="***"), None, "audio"),
    "an odd byte": (append(audio=b64(b"abc")), "invalid_audio", "audio"),
    "half a float": (append(audio=b64(bytes(6)), format="float32"), "invalid_audio", "audio"),
    "a wav file": (append(audio=b64(b"RIFF\x00\x00\x00\x00WAVEfmt " + bytes(32))), "invalid_audio", "audio"),
    "no audio": (append(audio=""), "empty_audio", "audio"),
    "a wrong rate": (append(audio=EVEN, sample_rate_hz=44100), "invalid_value", "sample_rate_hz"),
    "a rate of nothing": (append(audio=EVEN, sample_rate_hz=0), "invalid_value", "sample_rate_hz"),
    "two rates": (
        append(audio=EVEN, sample_rate_hz=16000, format={"type": "audio/pcm", "rate": 8000}),
        "invalid_value",
        "sample_rate_hz",
    ),
    "an unknown format": (append(audio=EVEN, format="mp3"), "invalid_value", "format"),
    "a wrong duration": (append(audio=EVEN, duration_ms=500), "invalid_value", "duration_ms"),
    "two channels": (append(audio=EVEN, channels=2), "unknown_parameter", "channels"),
    "a number for audio": (append(audio=7), "invalid_value", "audio"),
    "a wrong field type": (append(audio=EVEN, is_speech="yes"), "invalid_value", "is_speech"),
    "an unknown field": (append(audio=EVEN, loud=True), "unknown_parameter", "loud"),
    "an empty commit": (
        '{"type":"input_audio_buffer.commit","event_id":"mine"}',
        "input_audio_buffer_commit_empty",
        None,
    ),
    "an unknown item": (
        '{"type":"conversation.item.delete","event_id":"mine","item_id":"nope"}',
        "item_not_found",
        None,
    ),
    "a cancel of nothing": ('{"type":"response.cancel","event_id":"mine"}', "response_cancel_not_active", None),
    "a wrong threshold": (
        json.dumps(
            {
                "type": "session.update",
                "event_id": "mine",
                "session": {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2.0}}}},
            }
        ),
        "invalid_value",
        "session.audio.input.turn_detection.threshold",
    ),
    "an unknown option": (
        '{"type":"session.update","event_id":"mine","session":{"options":{"volume":11}}}',
        "unknown_parameter",
        "session.options.volume",
    ),
    "odd audio in an item": (
        json.dumps(
            {
                "type": "conversation.item.create",
                "event_id": "mine",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": b64(b"abc")}]},
            }
        ),
        "invalid_audio",
        "item.content[0].audio",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_it_is_an_error_and_the_session_goes_on_as_before(served: Any, name: str) -> None:
    text, code, param = BAD[name]
    async with served.session() as caller:
        await caller.by_hand()
        before = caller.seen[-1]["session"]
        await caller.socket.send(text)
        told = await caller.next()
        assert told["type"] == "error", told
        assert told["error"]["message"]
        if code is not None:
            assert told["error"]["code"] == code, told
        if param is not None:
            assert told["error"]["param"] == param, told
        if '"mine"' in text and '"' + "a" + '"' not in text:
            assert told["error"]["event_id"] == "mine"
        await caller.say("session.update", session={"type": "realtime"})
        assert (await caller.next())["session"] == before


async def test_a_binary_frame_is_an_error(served: Any) -> None:
    async with served.session() as caller:
        await caller.socket.send(b"\x00\x01")
        assert (await caller.next())["error"]["code"] == "binary_frame"
        await caller.say("session.heartbeat")
        assert (await caller.next())["type"] == "session.heartbeat_ack"


async def test_an_event_beyond_the_limit_is_an_error_and_one_just_below_is_not(served: Any) -> None:
    async with served.session() as caller:
        await caller.by_hand()
        await caller.socket.send(append(audio="A" * MAX_EVENT_BYTES))
        assert (await caller.next())["error"]["code"] == "event_too_large"
        samples = (MAX_EVENT_BYTES - 200) * 3 // 4 // 6 * 6
        await caller.append(bytes(samples))
        await caller.say("session.heartbeat")
        assert (await caller.next())["type"] == "session.heartbeat_ack"


async def test_an_item_just_below_the_limit_is_taken_and_told_back(served: Any) -> None:
    """Three events tell of it, each as large; that they wait at once says nothing about how their reader reads."""
    text = "x" * (MAX_EVENT_BYTES - 200)
    item = {"id": "large", "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    async with served.session() as caller:
        await caller.by_hand()
        await caller.say("conversation.item.create", item=item)
        told = [await caller.next() for _ in range(3)]
        assert {event["item"]["content"][0]["text"] for event in told} == {text}
        await caller.say("session.heartbeat")
        assert (await caller.next())["type"] == "session.heartbeat_ack"


async def test_a_hundred_bad_events_end_nothing(served: Any) -> None:
    async with served.session() as caller:
        for index in range(100):
            await caller.socket.send("{" if index % 2 else b"\xff")
        codes = [(await caller.next())["error"]["code"] for _ in range(100)]
        assert set(codes) == {"invalid_json", "binary_frame"}
        await caller.say("session.heartbeat")
        assert (await caller.next())["type"] == "session.heartbeat_ack"


async def test_refused_audio_leaves_the_stream_as_it_was(served: Any) -> None:
    """A bad append between two good ones costs nothing: the echo is as long as the good ones together."""
    from duplex_core.testing.speech import burst

    said = burst(400, 24_000)
    async with served.session() as caller:
        await caller.by_hand(options={"pace": 0.0})
        await caller.append(said[:9600])
        await caller.socket.send(append(audio=b64(b"abc")))
        await caller.socket.send(append(audio=EVEN, sample_rate_hz=11025))
        await caller.append(said[9600:])
        await caller.say("input_audio_buffer.commit", response_create=True)
        await caller.until("response.done")
        heard = [e for e in caller.seen if e["type"] == "response.output_audio.delta"]
        total = sum(len(base64.b64decode(e["delta"])) for e in heard)
        assert total / 2 / 24 == pytest.approx(400, abs=0.5)
        assert caller.types().count("error") == 2


async def test_errors_come_in_the_order_of_the_frames_that_caused_them(served: Any) -> None:
    """Whoever finds out: the codec, the converter of the audio, or the session."""
    causes = {
        "codec": '{"type":"response.sing","event_id":"%s"}',
        "session": '{"type":"conversation.item.delete","item_id":"nope","event_id":"%s"}',
        "audio": '{"type":"input_audio_buffer.append","audio":"YWJj","event_id":"%s"}',
        "not JSON": '{"type":"session.heartbeat","event_id":"%s",}',
        "heartbeat": '{"type":"session.heartbeat","event_id":"%s"}',
    }
    order = ["session", "codec", "heartbeat", "codec", "audio", "codec", "session", "heartbeat", "not JSON", "session"]
    sent = [(kind, f"{kind} {number}") for number, kind in enumerate(order * 40)]
    async with served.session() as caller:
        for kind, event_id in sent:
            await caller.socket.send(causes[kind] % event_id)
        told: list[Any] = []
        while len(told) < len(sent):
            event = await caller.next()
            told.append("heartbeat" if event["type"] == "session.heartbeat_ack" else event["error"].get("event_id"))
    # What is not JSON has no id that could be read.
    assert told == [
        "heartbeat" if kind == "heartbeat" else None if kind == "not JSON" else event_id for kind, event_id in sent
    ]


async def test_a_flood_of_what_is_no_command_is_answered_piece_by_piece_and_bounds_hold(served: Any) -> None:
    async with served.session() as caller:
        for number in range(3000):
            await caller.say("response.sing", event_id=str(number))
        for number in range(3000):
            assert (await caller.next())["error"]["event_id"] == str(number)
        await caller.say("session.heartbeat")
        await caller.until("session.heartbeat_ack")


def places(value: float) -> list[tuple[str, dict[str, Any]]]:
    """Every kind of place in which a client may give a number, with ``value`` in it."""
    session: list[dict[str, Any]] = [
        {"max_output_tokens": value},
        {"temperature": value},
        {"audio": {"output": {"speed": value}}},
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": value}}}},
        {"tools": [{"type": "function", "name": "f", "parameters": {"x": value}}]},
        {"options": {"pace": value}},
    ]
    session += [
        {"overlap": {name: value}}
        for name in ("noise_ms", "short_ms", "long_ms", "settle_ms", "longest_backchannel_ms")
    ]
    session += [
        {"audio": {"input": {"turn_detection": {"type": "server_vad", name: value}}}}
        for name in ("threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")
    ]
    item = {"type": "message", "id": "mine", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    return [
        *(("session.update", {"session": {"type": "realtime", **each}}) for each in session),
        ("input_audio_buffer.append", {"audio": EVEN, "duration_ms": value}),
        ("input_audio_buffer.append", {"audio": EVEN, "sample_rate_hz": value}),
        ("input_audio_buffer.append", {"audio": EVEN, "video_frames": [{"data": EVEN, "at_ms": value}]}),
        ("conversation.item.create", {"item": item}),
        ("conversation.item.truncate", {"item_id": "mine", "content_index": value, "audio_end_ms": value}),
        ("barge_in", {"played_ms": value}),
        ("playback.ack", {"played_ms": value, "committed_ms": value}),
        ("session.event_ack", {"server_event_seq": value}),
        ("response.create", {"response": {"max_output_tokens": value, "temperature": value}}),
    ]


@pytest.mark.parametrize("value", [2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 1e300, -1, -(2**63), -(2**64)])
async def test_no_number_of_a_clients_is_the_servers_fault(served: Any, value: float) -> None:
    async with served.session() as caller:
        for type_, fields in places(value):
            await caller.say(type_, **fields)
        await caller.say("session.heartbeat")
        await caller.until("session.heartbeat_ack")
        errors = [event["error"] for event in caller.seen if event["type"] == "error"]
    assert len(errors) > 15
    assert {error["type"] for error in errors} == {"invalid_request_error"}

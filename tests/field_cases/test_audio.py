"""Cases 23 to 25: audio of every kind."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import pytest

from duplex_core.testing.speech import burst
from tests.field_cases.scenes import AT_ONCE, RATE_HZ, break_off, done, refused, resumed, speech, token_of
from tests.support.serving import Caller, Served

BYTES = {"audio/pcm": 2, "audio/pcmu": 1, "audio/pcma": 1}
SAID_MS = 730


async def echoed_ms(caller: Caller, audio: bytes) -> float:
    """Say something and measure the answer, by its own account of what it is."""
    before = len(caller.seen)
    await caller.append(audio)
    await caller.say("input_audio_buffer.commit", response_create=True)
    await done(caller)
    deltas = [event for event in caller.seen[before:] if event["type"] == "response.output_audio.delta"]
    assert deltas
    lengths = [len(base64.b64decode(e["delta"])) * 1000 / BYTES[e["format"]] / e["sample_rate_hz"] for e in deltas]
    return float(sum(lengths))


def g711(ms: float) -> bytes:
    """Loud enough G.711: any bytes are audio."""
    return bytes([0x10, 0x90]) * round(ms * 4)


async def test_case_23_a_resumed_socket_keeps_the_sessions_own_formats(served: Served) -> None:
    """A telephone's session is taken up again: it goes on in G.711, both ways, and says so."""
    telephone = {"type": "audio/pcmu"}
    async with served.session() as first:
        await first.by_hand(
            audio={"input": {"format": telephone}, "output": {"format": telephone}}, options=AT_ONCE, playback={}
        )
        assert await echoed_ms(first, g711(SAID_MS)) == pytest.approx(SAID_MS, abs=1)
        break_off(first)
    async with resumed(served, *token_of(first), first.seen[-1]["server_event_seq"]) as second:
        shown = second.seen[0]["session"]["audio"]
        assert shown["input"]["format"]["type"] == shown["output"]["format"]["type"] == "audio/pcmu"
        assert await echoed_ms(second, g711(SAID_MS)) == pytest.approx(SAID_MS, abs=1)
        kinds = {(e["format"], e["sample_rate_hz"]) for e in second.seen if e["type"] == "response.output_audio.delta"}
        assert kinds == {("audio/pcmu", 8000)}


def wav(pcm: bytes, channels: int = 1) -> bytes:
    """PCM with a file's header."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(RATE_HZ)
        writer.writeframes(pcm)
    return file.getvalue()


async def test_case_24_a_file_is_not_taken_for_sound_nor_sound_for_something_else(served: Served) -> None:
    """Each is refused with its reason, and the next append is heard as if nothing had been."""

    def text(audio: bytes) -> str:
        return base64.b64encode(audio).decode()

    said = speech(200)
    bad: list[tuple[dict[str, Any], str, str]] = [
        ({"audio": text(wav(said))}, "invalid_audio", "audio"),
        ({"audio": text(wav(said + said, channels=2))}, "invalid_audio", "audio"),
        ({"audio": text(said), "channels": 2}, "unknown_parameter", "channels"),
        ({"audio": text(said + said), "duration_ms": 200}, "invalid_value", "duration_ms"),  # stereo called mono
        ({"audio": text(said), "duration_ms": 200, "sample_rate_hz": 48_000}, "invalid_value", "duration_ms"),
        ({"audio": text(said[:-1])}, "invalid_audio", "audio"),
        ({"audio": text(said), "format": "mp3"}, "invalid_value", "format"),
    ]
    async with served.session() as caller:
        await caller.by_hand(options=AT_ONCE)
        for fields, code, param in bad:
            error = await refused(caller, "input_audio_buffer.append", **fields)
            assert (error["code"], error["param"]) == (code, param), error
            assert error["message"]
        await caller.append(said, duration_ms=200)
        await caller.say("input_audio_buffer.commit", response_create=True)
        assert (await done(caller))["output"][0]["content"][0]["transcript"] == "You said 200 milliseconds."


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000, 48_000])
async def test_case_25_both_ends_are_resampled_and_say_their_rate(served: Served, rate: int) -> None:
    """The same speech at any rate, in and out, lasts as long; every event that carries audio tells format and rate."""
    form = {"type": "audio/pcm", "rate": rate}
    async with served.session() as caller:
        await caller.by_hand(audio={"input": {"format": form}, "output": {"format": form}}, options=AT_ONCE)
        assert await echoed_ms(caller, burst(SAID_MS, rate)) == pytest.approx(SAID_MS, abs=1)
        said = [e for e in caller.seen if e["type"] == "response.output_audio_transcript.done"][-1]["transcript"]
        assert int(said.split()[2]) == pytest.approx(SAID_MS, abs=1)
        carrying = [event for event in caller.seen if event["type"].endswith("audio.delta")]
        assert {(event["format"], event["sample_rate_hz"]) for event in carrying} == {("audio/pcm", rate)}

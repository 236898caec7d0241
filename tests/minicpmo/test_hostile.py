"""What one client sends that is out of all bounds changes nothing for anybody else, also after it has left."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import zlib
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from duplex_core.testing.speech import burst
from tests.minicpmo.conftest import TURN
from tests.minicpmo.served import INPUT_HZ, Answer, call, wav
from tests.support.serving import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
]
SPEECH = burst(2000.0, INPUT_HZ)
QUIET = bytes(2 * INPUT_HZ)


def file(samples: Any, rate: int = INPUT_HZ, **more: Any) -> bytes:
    """A recording."""
    content = io.BytesIO()
    soundfile.write(content, samples, rate, **{"format": "WAV", **more})
    return content.getvalue()


def hum(rate: int = INPUT_HZ) -> Any:
    return 0.1 * np.sin(2 * np.pi * 140 * np.arange(rate) / rate)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def trap() -> bytes:
    """A PNG of 8 by 8 pixels with an empty colour profile behind them: an IndexError in Pillow, and nothing that it documents."""
    header, rows = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0), zlib.compress(bytes(8 * 25))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"iCCP", b""), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


async def answered(served: Served, **options: Any) -> Answer:
    """A session of its own that is spoken to once."""
    async with call(served, microphone=False, options={"greedy": True, "seed": 1, **options}) as caller:
        await caller.append(SPEECH + QUIET)
        answer = await caller.answered(1)
        await caller.close()
    return answer


async def refused(served: Served, voice: bytes) -> dict[str, Any]:
    """What a session is told whose voice cannot be taken."""
    options = {"greedy": True, "reference_audio": base64.b64encode(voice).decode()}
    async with call(served, microphone=False, options=options) as caller:
        await caller.append(QUIET)
        error: dict[str, Any] = (await caller.until("error"))["error"]
        await caller.leave()
    return error


def same(one: Answer, other: Answer) -> bool:
    """Alike but for a thousandth of full scale, which the order of sums can make."""
    left, right = (np.frombuffer(each.pcm, "<i2").astype(np.int32) for each in (one, other))
    return one.text == other.text and len(left) == len(right) and bool(np.abs(left - right).max() <= 33)


async def test_a_voice_of_values_without_bounds_leaves_nothing_in_any_cache(served: Served) -> None:
    """Three at once, so that every slot and most blocks of the engine's cache are theirs; then a client like before."""
    before = await answered(served)
    loud = base64.b64encode(file(np.full(16_000, 1e18), subtype="FLOAT")).decode()
    theirs = await asyncio.gather(*(answered(served, reference_audio=loud) for _ in range(3)))
    assert [each.status for each in theirs] == ["completed"] * 3
    after = await asyncio.gather(*(answered(served) for _ in range(3)))
    assert all(same(before, each) for each in after)
    assert before.text == "".join(TURN)


async def test_files_that_decoders_trip_over_fail_who_sent_them_and_nobody_else(served: Served) -> None:
    empty = bytearray(file(hum(), format="FLAC"))
    empty[7] = 41  # its header's own length: it opens, and no sound can be read
    foreign = bytearray(file(hum(), subtype="PCM_16"))
    foreign[20] = 0x40  # G.721
    async with call(served) as neighbour:
        await neighbour.say(SPEECH)
        await neighbour.first_audio(1)
        for voice in (bytes(empty), bytes(foreign)):
            error = await refused(served, voice)
            assert (error["code"], error["param"]) == ("invalid_value", "session.options.reference_audio")
        seen = "data:image/png;base64," + base64.b64encode(trap()).decode()
        content = [{"type": "image_url", "image_url": {"url": seen}}]
        body = {"model": "minicpmo", "messages": [{"role": "user", "content": content}]}
        async with httpx.AsyncClient(base_url=served.http, timeout=120.0) as client:
            reply = await client.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
        answer = await neighbour.answered(1)
        await neighbour.close()
    assert (answer.status, answer.text) == ("completed", "".join(TURN))


async def test_a_second_whose_picture_is_none_is_heard_and_the_client_is_told(served: Served) -> None:
    async with call(served, microphone=False, options={"greedy": True, "seed": 1}) as caller:
        frame = base64.b64encode(trap()).decode()
        for pcm in (SPEECH[: len(QUIET)], SPEECH[len(QUIET) :], QUIET):
            audio = base64.b64encode(pcm).decode()
            await caller.send("input_audio_buffer.append", audio=audio, video_frames=[{"data": frame}])
        answer = await caller.answered(1)
        await caller.close()
    assert (answer.status, answer.text) == ("completed", "".join(TURN))
    told = [event["error"] for event in caller.of("error")]
    assert {(each["code"], each["param"]) for each in told} == {("invalid_value", "video_frames")}
    assert 2 <= len(told) <= 3


async def test_a_chat_with_more_sound_than_the_context_has_is_refused_at_once(served: Served) -> None:
    data = base64.b64encode(wav(bytes(2 * 4000 * 60 * 10), 4000)).decode()
    content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    body = {"model": "minicpmo", "messages": [{"role": "user", "content": content}]}
    async with httpx.AsyncClient(base_url=served.http, timeout=120.0) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "the sound in the messages takes 6000 positions of a context of 1024" in reply.json()["error"]["message"]

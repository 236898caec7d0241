"""A model that hears no words, and a transcriber beside it: `echo` with the cascade's recogniser, over a real socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm
from tests.conversations.conftest import start, stop
from tests.support.clips import Clip

pytestmark = pytest.mark.slow

CHUNK_MS = 100
SILENCE = bytes(SESSION_RATE_HZ * 2)
PREFIX = "conversation.item.input_audio_transcription."


@pytest.fixture(scope="module")
def transcribed() -> Iterator[str]:
    """`host:port` of a server of `echo` whose users are transcribed by `moonshine`."""
    process, address = start("echo", "--set", "transcribes=false", "--transcriber", "moonshine")
    yield address
    stop(process)


class Caller:
    """A client of the wire that speaks in real time and keeps what it gets."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def say(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **fields}))

    async def until(self, type_: str) -> dict[str, Any]:
        while True:
            async with asyncio.timeout(20):
                event: dict[str, Any] = json.loads(await self.socket.recv())
            self.seen.append(event)
            if event["type"] == type_:
                return event

    async def speak(self, pcm: bytes) -> None:
        """Send speech at the pace at which it sounds."""
        size = SESSION_RATE_HZ * 2 * CHUNK_MS // 1000
        due = asyncio.get_running_loop().time()
        for at in range(0, len(pcm), size):
            await self.say("input_audio_buffer.append", audio=base64.b64encode(pcm[at : at + size]).decode())
            due += CHUNK_MS / 1000
            await asyncio.sleep(due - asyncio.get_running_loop().time())

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [event for event in self.seen if event["type"] == type_]

    def deltas(self, item_id: str) -> str:
        return "".join(event["delta"] for event in self.of(PREFIX + "delta") if event["item_id"] == item_id)


@contextlib.asynccontextmanager
async def call(address: str, **audio_input: Any) -> AsyncIterator[Caller]:
    """A session with transcription, and with these settings of its input."""
    async with websockets.connect(f"ws://{address}/v1/realtime") as socket:
        caller = Caller(socket)
        await caller.until("session.created")
        audio = {"input": {"transcription": {"model": "moonshine"}, **audio_input}}
        await caller.say("session.update", session={"type": "realtime", "audio": audio})
        await caller.until("session.updated")
        yield caller


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


async def test_speech_is_transcribed_while_it_is_spoken_and_whole_when_it_ends(
    transcribed: str, say: dict[str, bytes]
) -> None:
    async with call(transcribed) as caller:
        await caller.speak(say["stop"] + SILENCE)
        completed = await caller.until(PREFIX + "completed")
        item_id = completed["item_id"]
        assert words(completed["transcript"]) == words("Please stop and tell me the color of the sky.")
        types = [event["type"] for event in caller.seen]
        assert types.index(PREFIX + "delta") < types.index("input_audio_buffer.speech_stopped")
        assert completed["transcript"].startswith(caller.deltas(item_id)[:10])
        (committed,) = caller.of("input_audio_buffer.committed")
        assert committed["item_id"] == item_id
        done = caller.of("response.done") or [await caller.until("response.done")]
        assert done[0]["response"]["status"] == "completed"
        assert done[0]["response"]["output"][0]["content"][0]["transcript"].startswith("You said "), "echo answers"


async def test_a_cancelled_answer_leaves_the_transcript(transcribed: str, say: dict[str, bytes]) -> None:
    """Commit by hand: the words are still being sought when the answer begins, and is cancelled."""
    async with call(transcribed, turn_detection=None) as caller:
        for at in range(0, len(say["story"]), 48_000):
            part = base64.b64encode(say["story"][at : at + 48_000]).decode()
            await caller.say("input_audio_buffer.append", audio=part)
        await caller.say("input_audio_buffer.commit")
        await caller.say("response.create")
        await caller.until("response.created")
        await caller.say("response.cancel")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "cancelled"
        assert not caller.of(PREFIX + "completed"), "the words were not known yet"
        completed = await caller.until(PREFIX + "completed")
        assert words(completed["transcript"]) == words("Please tell me a long story about a dog.")
        assert completed["item_id"] == caller.of("input_audio_buffer.committed")[0]["item_id"]
        assert not caller.of("error")


async def test_who_talks_over_the_answer_is_transcribed_too(transcribed: str, say: dict[str, bytes]) -> None:
    async with call(transcribed) as caller:
        await caller.speak(say["story"] + SILENCE)
        await caller.until("response.output_audio.delta")
        await caller.speak(say["stop"] + SILENCE)
        while len(caller.of(PREFIX + "completed")) < 2:
            await caller.until(PREFIX + "completed")
        first, second = (words(event["transcript"]) for event in caller.of(PREFIX + "completed"))
        assert first == words("Please tell me a long story about a dog.")
        assert second[-5:] == words("the color of the sky")
        assert caller.of("response.done")[0]["response"]["status"] == "cancelled"


@pytest.mark.clips
async def test_people_are_transcribed(transcribed: str, clips: list[Clip]) -> None:
    clip = next(each for each in clips if each.name.endswith("0930"))
    async with call(transcribed) as caller:
        await caller.speak(resample_pcm(clip.pcm(), 16_000, SESSION_RATE_HZ) + SILENCE)
        completed = await caller.until(PREFIX + "completed")
        assert words(completed["transcript"]) == words(clip.transcript)
        assert completed["usage"]["seconds"] > 2


async def test_without_the_wish_for_transcripts_none_are_sent(transcribed: str, say: dict[str, bytes]) -> None:
    async with call(transcribed, transcription=None) as caller:
        await caller.speak(say["capital"] + SILENCE)
        await caller.until("response.done")
        assert not [event for event in caller.seen if event["type"].startswith(PREFIX)]

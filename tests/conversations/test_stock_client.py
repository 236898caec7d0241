"""OpenAI's own Realtime client, unmodified, holds a spoken conversation with `duplex-server serve`.

Everything here is the `openai` package's: how it connects, its session object, its typed events. It knows nothing of us.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent

from duplex_client.audio import SESSION_RATE_HZ

pytestmark = pytest.mark.slow

CHUNK = SESSION_RATE_HZ * 2 // 10
SILENCE = bytes(SESSION_RATE_HZ * 2)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SESSION: dict[str, Any] = {
    "type": "realtime",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": SESSION_RATE_HZ},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 500, "interrupt_response": True},
            "transcription": {"model": "whisper-1"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": SESSION_RATE_HZ}, "voice": "marin"},
    },
    "tools": [WEATHER],
    "tool_choice": "auto",
}


class Talk:
    """One connection of the stock client and all that it received."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[RealtimeServerEvent] = []
        self.audio: dict[str, bytes] = {}
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.connection:
            self.events.append(event)
            if event.type == "response.output_audio.delta":
                played = self.audio.get(event.response_id, b"")
                self.audio[event.response_id] = played + base64.b64decode(event.delta)
            async with self._news:
                self._news.notify_all()

    async def wait(self, wanted: Callable[[RealtimeServerEvent], bool], since: int = 0) -> RealtimeServerEvent:
        """The first event from number `since` on that is wanted."""
        async with self._news:
            while True:
                for event in self.events[since:]:
                    if wanted(event):
                        return event
                await self._news.wait()

    async def event(self, name: str, since: int = 0) -> Any:
        """The first event of this name from number `since` on."""
        return await self.wait(lambda event: event.type == name, since)

    async def say(self, pcm: bytes, *, paced: bool = False) -> None:
        """Send speech as a microphone does."""
        for start in range(0, len(pcm), CHUNK):
            audio = base64.b64encode(pcm[start : start + CHUNK]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)
            if paced:
                await asyncio.sleep(0.1)

    def errors(self) -> list[Any]:
        """What was refused."""
        return [event for event in self.events if event.type == "error"]

    def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()


@asynccontextmanager
async def talking(server: str) -> AsyncIterator[Talk]:
    async with (
        asyncio.timeout(120),
        AsyncOpenAI(api_key="none", base_url=f"http://{server}/v1", websocket_base_url=f"ws://{server}/v1") as client,
        client.realtime.connect(model="cascade") as connection,
    ):
        talk = Talk(connection)
        try:
            await talk.event("session.created")
            await connection.session.update(session=SESSION)  # type: ignore[arg-type]
            await talk.event("session.updated")
            yield talk
        finally:
            talk.close()


async def test_a_spoken_conversation_with_tools_interruption_and_truncation(server: str, say: dict[str, bytes]) -> None:
    async with talking(server) as talk:
        connection = talk.connection

        # a question by voice, answered by voice
        await talk.say(say["capital"] + SILENCE)
        heard = await talk.event("conversation.item.input_audio_transcription.completed")
        assert "france" in heard.transcript.lower()
        first = await talk.event("response.done")
        assert first.response.status == "completed"
        assert "Paris" in first.response.output[0].content[0].transcript
        assert len(talk.audio[first.response.id]) > SESSION_RATE_HZ

        # a tool, asked for by voice
        mark = len(talk.events)
        await talk.say(say["weather"] + SILENCE)
        called = await talk.event("response.function_call_arguments.done", mark)
        assert called.name == "get_weather"
        await talk.event("response.done", mark)
        mark = len(talk.events)
        output = {"type": "function_call_output", "call_id": called.call_id, "output": json.dumps({"sky": "sunny"})}
        await connection.conversation.item.create(item=output)  # type: ignore[arg-type]
        await connection.response.create()
        told = await talk.event("response.done", mark)
        assert "sunny" in told.response.output[0].content[0].transcript.lower()

        # a long answer, talked over; then the client says how much of it was heard, as OpenAI's documentation asks
        mark = len(talk.events)
        await talk.say(say["story"] + SILENCE)
        delta = await talk.event("response.output_audio.delta", mark)
        await talk.say(SILENCE + SILENCE, paced=True)
        mark = len(talk.events)
        await talk.say(say["stop"] + SILENCE, paced=True)
        await talk.event("input_audio_buffer.speech_started", mark)
        await connection.conversation.item.truncate(item_id=delta.item_id, content_index=0, audio_end_ms=700)
        cut = await talk.wait(
            lambda event: event.type == "conversation.item.truncated" and event.audio_end_ms == 700, mark
        )
        assert cut.item_id == delta.item_id  # type: ignore[union-attr]
        answered = await talk.event("input_audio_buffer.committed", mark)
        answer = await talk.wait(
            lambda event: event.type == "response.done" and event.response.id != delta.response_id,
            talk.events.index(answered),
        )
        assert answer.response.status == "completed"  # type: ignore[union-attr]
        await connection.conversation.item.retrieve(item_id=delta.item_id)
        kept = await talk.event("conversation.item.retrieved", mark)
        remembered = kept.item.content[0].transcript
        assert 0 < len(remembered) < 60
        late = [
            event
            for event in talk.events[talk.events.index(cut) :]
            if event.type == "response.output_audio.delta" and event.response_id == delta.response_id
        ]
        assert not late, "nothing of the old answer came after the cut"
        assert not talk.errors()


async def test_a_client_that_commits_by_itself(server: str, say: dict[str, bytes]) -> None:
    async with talking(server) as talk:
        session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        await talk.connection.session.update(session=session)  # type: ignore[arg-type]
        await talk.say(say["capital"])
        await talk.connection.input_audio_buffer.commit()
        await talk.connection.response.create()
        done = await talk.event("response.done")
        assert "Paris" in done.response.output[0].content[0].transcript
        await talk.connection.response.cancel()
        refused = await talk.event("error")
        assert refused.error.code == "response_cancel_not_active"

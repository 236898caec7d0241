"""Chat completions on the embedded default, as the openai package asks for them, beside an open conversation."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import numpy as np
import openai
import pytest
import soxr
from openai import AsyncOpenAI

from duplex_client import DuplexClient
from duplex_client.audio import SESSION_RATE_HZ
from duplex_core import events as e
from duplex_server.audio.wav import read_wav, write_wav

pytestmark = pytest.mark.slow

QUESTION = {"role": "user", "content": "What is the capital of France?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def words_in(wav: bytes) -> str:
    """What a recogniser hears in a WAV file."""
    from model_cascade.parts.recognizer import Recognizer

    samples, rate_hz = read_wav(wav)
    heard = soxr.resample(samples.astype(np.float32) / 32768.0, rate_hz, 16_000)
    return Recognizer().transcribe(heard, lambda: False).lower()


def chat(server: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{server}/v1", api_key="none", timeout=60.0, max_retries=0)


async def test_an_answer_at_once_and_one_in_pieces(server: str) -> None:
    async with chat(server) as client:
        whole = await client.chat.completions.create(model="cascade", messages=[QUESTION])  # type: ignore[list-item]
        assert "Paris" in (whole.choices[0].message.content or "")
        assert whole.usage is not None
        assert whole.usage.completion_tokens > 0
        pieces = []
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            model="cascade", messages=[QUESTION], stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        assert len(pieces) > 2
        assert "Paris" in "".join(pieces)
        assert chunk.usage.total_tokens > 0


async def test_a_forced_tool_call(server: str) -> None:
    async with chat(server) as client:
        forced = await client.chat.completions.create(  # type: ignore[call-overload]
            model="cascade",
            messages=[{"role": "user", "content": "Is it raining in Rome?"}],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
        )
        (call,) = forced.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)
        assert forced.choices[0].finish_reason == "tool_calls"
        told = await client.chat.completions.create(
            model="cascade",
            messages=[
                {"role": "user", "content": "Is it raining in Rome?"},
                {"role": "assistant", "tool_calls": [call.model_dump()]},
                {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'},
            ],
        )
        assert told.choices[0].message.content == "Sky: clear."
        assert told.usage is not None
        assert told.usage.prompt_tokens > told.usage.completion_tokens > 0


async def test_chat_works_while_every_session_slot_is_taken_and_an_answer_is_spoken(
    server: str, say: dict[str, bytes]
) -> None:
    """A chat request needs no session slot."""
    async with asyncio.timeout(120), chat(server) as client:
        sessions = [DuplexClient(f"ws://{server}") for _ in range(4)]
        for session in sessions:
            await session.connect()
        speaking = sessions[0]
        await speaking.stream_pcm(say["story"] + bytes(SESSION_RATE_HZ * 2), rate_hz=SESSION_RATE_HZ, paced=False)
        answer = await anext(aiter(speaking.responses()))
        async for _ in answer.audio():
            break
        reply = await client.chat.completions.create(model="cascade", messages=[QUESTION])  # type: ignore[list-item]
        assert "Paris" in (reply.choices[0].message.content or "")
        assert await answer.wait() in {e.ResponseStatus.COMPLETED, e.ResponseStatus.INCOMPLETE}
        for session in sessions:
            await session.close()


async def test_a_spoken_question_is_answered_aloud_beside_a_conversation(server: str, say: dict[str, bytes]) -> None:
    """With the recogniser and the voice of the conversations, and no slot; what is said can be understood."""
    question = base64.b64encode(write_wav(say["capital"], SESSION_RATE_HZ)).decode()
    heard = {"type": "input_audio", "input_audio": {"data": question, "format": "wav"}}
    async with asyncio.timeout(120), chat(server) as client:
        session = DuplexClient(f"ws://{server}")
        await session.connect()
        await session.stream_pcm(say["story"] + bytes(SESSION_RATE_HZ * 2), rate_hz=SESSION_RATE_HZ, paced=False)
        answer = await anext(aiter(session.responses()))
        async for _ in answer.audio():
            break
        whole = await client.chat.completions.create(  # type: ignore[call-overload]
            model="cascade",
            messages=[{"role": "user", "content": [heard]}],
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
        )
        spoken = whole.choices[0].message.audio
        assert "Paris" in spoken.transcript
        assert "capital" in await asyncio.to_thread(words_in, base64.b64decode(spoken.data))
        assert whole.usage.completion_tokens > 0
        await answer.wait()
        assert {each.stage for each in answer.metrics.stages} >= {"language", "voice"}  # type: ignore[union-attr]
        await session.close()


async def test_a_wrong_request_says_what_is_wrong(server: str) -> None:
    async with chat(server) as client:
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.chat.completions.create(
                model="cascade",
                messages=[QUESTION],  # type: ignore[list-item]
                logprobs=True,
            )
    async with httpx.AsyncClient(base_url=f"http://{server}") as plain:
        other = await plain.post("/v1/embeddings", json={})
        assert other.status_code == 501
        assert "not available on a duplex server" in other.json()["error"]["message"]

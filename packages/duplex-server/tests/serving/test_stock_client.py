"""OpenAI's own realtime client holds a conversation with this server, unchanged."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import openai
import pytest

from duplex_core.testing.speech import burst


async def test_openais_client_speaks_is_answered_and_calls_a_tool(serving: Any) -> None:
    async with serving(key="s3cret") as served:
        client = openai.AsyncOpenAI(
            api_key="s3cret", base_url=f"{served.http}/v1", websocket_base_url=f"ws://127.0.0.1:{served.port}/v1"
        )
        tool: Any = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
        async with client, client.realtime.connect(model="parrot") as connection, asyncio.timeout(20):
            await connection.session.update(
                session={
                    "type": "realtime",
                    "instructions": "Aye.",
                    "output_modalities": ["audio"],
                    "audio": {"input": {"turn_detection": None}},
                    "tools": [tool],
                }
            )
            for start in range(0, 24_000, 4800):
                await connection.input_audio_buffer.append(
                    audio=base64.b64encode(burst(500, 24_000)[start : start + 4800]).decode()
                )
            await connection.input_audio_buffer.commit()
            await connection.response.create()
            audio, transcript, call = b"", "", None
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "response.output_audio_transcript.delta":
                    transcript += event.delta
                elif event.type == "response.done" and call is None and event.response.output:
                    last = event.response.output[-1]
                    if last.type == "function_call":
                        call = last
                        break
                    await connection.conversation.item.create(
                        item={
                            "type": "message",
                            "role": "user",
                            "content": [{"type": "input_text", "text": 'call clock {"zone": "utc"}'}],
                        }
                    )
                    await connection.response.create()
                else:
                    assert event.type != "error", event
            assert len(audio) / 48 == pytest.approx(500, abs=1)
            assert transcript.startswith("Aye. You said 500 milliseconds")
            assert call is not None
            assert (call.name, call.arguments) == ("clock", '{"zone": "utc"}')

"""Chat over HTTP, with plain requests and with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

from duplex_core.model import ModelInput, ModelOutput, Respond

USER: Any = {"role": "user", "content": "one two three"}


async def ask(served: Any, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=served.http) as client:
        return await client.post("/v1/chat/completions", json={"model": "parrot", "messages": [USER], **body})


async def test_an_answer_has_the_shape_that_openais_client_reads(served: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(model="parrot", messages=[USER])
        assert whole.choices[0].message.content == "one two three"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
        pieces = []
        usage = None
        stream = await client.chat.completions.create(
            model="parrot",
            messages=[USER],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        assert "".join(pieces) == "one two three"
        assert len(pieces) > 1
        assert usage == whole.usage
    assert served.engine.chats == 0
    assert served.engine.sessions.taken == 0


async def test_tools_are_called_and_their_results_answered(served: Any) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    asked: Any = {"model": "parrot", "messages": [{"role": "user", "content": "call clock"}], "tools": [tool]}
    async with openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(**asked)
        (call,) = whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls"
        assert call.function.name == "clock"
        json.loads(call.function.arguments)
        arguments = ""
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or ():
                assert piece.index == 0
                arguments += piece.function.arguments
        assert arguments == call.function.arguments
        asked["messages"] += [
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "noon"},
        ]
        told = await client.chat.completions.create(**asked)
        assert told.choices[0].message.content == "The tool gave noon"


async def test_the_length_limit_is_told(served: Any) -> None:
    answer = (await ask(served, max_completion_tokens=2)).json()
    assert answer["choices"][0]["message"]["content"] == "one two"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_instructions_reach_the_model_and_history_ends_with_the_question(served: Any) -> None:
    messages = [
        {"role": "system", "content": "Aye."},
        {"role": "developer", "content": [{"type": "text", "text": "Sir."}]},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "Aye."},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
    ]
    answer = (await ask(served, messages=messages)).json()
    assert answer["choices"][0]["message"]["content"] == "Aye. Sir. second"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "gpt-x"}, 404, "model_not_found", "model"),
        ({"n": 2}, 400, "unsupported_parameter", "n"),
        ({"stop": ["x"]}, 400, "unsupported_parameter", "stop"),
        ({"seed": 1}, 400, "unsupported_parameter", "seed"),
        ({"temperature": 1.0}, 400, "unsupported_parameter", "temperature"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter", "response_format"),
        ({"shout": True}, 400, "unknown_parameter", "shout"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "bard", "content": "x"}]}, 400, "invalid_value", "messages.0"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        *(
            ({name: value}, 400, "invalid_value", name)
            for name in ("max_tokens", "max_completion_tokens")
            for value in (2**31, 2**63, 2**64, 10**30, 1e300)
        ),
        ({"temperature": 10**40}, 400, "invalid_value", "temperature"),
        ({"n": 2**64}, 400, "unsupported_parameter", "n"),
        ({"seed": 10**30}, 400, "unsupported_parameter", "seed"),
        ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    served: Any, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    answer = await ask(served, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_settings_that_ask_for_nothing_are_fine(served: Any) -> None:
    answer = await ask(served, n=1, top_p=1, stop=None, user="me", presence_penalty=0, response_format={"type": "text"})
    assert answer.status_code == 200


async def test_a_body_that_is_not_json_is_refused(served: Any) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", content="{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("content", "kind", "code", "says"),
    [
        (b'{"model": "parrot"}', None, "invalid_value", "no Content-Type; send a JSON object"),
        (b'{"model": "parrot"}', "text/plain", "invalid_value", "'text/plain'; send a JSON object"),
        (b"model=parrot", "application/x-www-form-urlencoded", "invalid_value", "'Content-Type: application/json'"),
        (b"", "application/json", "invalid_value", "the body is empty; send a JSON object"),
        (b"[]", "application/json", "invalid_value", "a list and no object; send a JSON object"),
        (b'"hello"', "application/json", "invalid_value", "a string and no object"),
        (b"null", "application/json", "invalid_value", "null and no object"),
        (b"{}", "application/json", "invalid_value", 'is missing; send a JSON object with at least "model" and "mess'),
        (b'{"model":', "application/json", "invalid_json", "not valid JSON"),
        (b"\xff", "application/json", "invalid_json", "not valid JSON"),
        (b"[" * 100_000, "application/json", "invalid_json", "not valid JSON"),
        (b" " * (15 * 1024 * 1024 + 1), "application/json", "event_too_large", "larger than 15 MiB"),
    ],
)
async def test_a_body_that_is_no_request_is_told_what_to_send(
    served: Any, content: bytes, kind: str | None, code: str, says: str
) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        headers = {} if kind is None else {"content-type": kind}
        answer = await client.post("/v1/chat/completions", content=content, headers=headers)
    told = answer.json()["error"]
    assert answer.status_code == (413 if code == "event_too_large" else 400)
    assert told["code"] == code
    assert says in told["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"])
async def test_json_by_any_of_its_names_is_taken(served: Any, kind: str) -> None:
    body = json.dumps({"model": "parrot", "messages": [USER]})
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_work_stops_when_the_client_goes_away(serving: Any, gated: Any, stream: bool) -> None:
    async with serving(gated.spec) as served:
        body = {"model": "gated", "messages": [{"role": "user", "content": "hold"}], "stream": stream}
        async with httpx.AsyncClient(base_url=served.http) as client:
            call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await asyncio.to_thread(gated.begun.acquire)
            assert served.engine.chats == 1
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        async with asyncio.timeout(10):
            await served.engine.drain(10)
            await asyncio.to_thread(gated.stopped.acquire)
        assert served.engine.chats == 0


async def test_a_failing_stage_is_an_http_error_or_the_end_of_the_stream(serving: Any, gated: Any) -> None:
    async with serving(gated.spec) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            answer = await client.post(
                "/v1/chat/completions",
                json={"model": gated.spec.id, "messages": [{"role": "user", "content": "fail at once"}]},
            )
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_error"
            streamed = await client.post(
                "/v1/chat/completions",
                json={
                    "model": gated.spec.id,
                    "messages": [{"role": "user", "content": "fail after a word"}],
                    "stream": True,
                },
            )
        lines = [line for line in streamed.text.splitlines() if line]
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert lines[-1] == "data: [DONE]"


class Puzzled:
    """A model session that raises when asked."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, Respond):
            raise KeyError("a rule that was forgotten")
        return ()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_raises_is_a_server_error_and_the_next_request_is_served(
    serving: Any, stages: Any, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    models = iter([Puzzled(), stages.Session()])
    async with serving(stages.gated_model(lambda: next(models)).spec) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            body = {"model": "gated", "messages": [USER], "stream": stream}
            failed = await client.post("/v1/chat/completions", json=body)
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert served.engine.chats == 0
    assert "a rule that was forgotten" in caplog.text

"""``POST /v1/chat/completions``: ordinary chat on the engine that holds the conversations.

Owns the OpenAI shapes of the answer, whole or streamed as server-sent events, and the end of the work when the client goes
away. Mounted by :mod:`duplex_server.serving.app`. Uses the turn-based half of the engine only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pydantic
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request

from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.model import StopReason, TokenUsage
from duplex_core.wire import MAX_EVENT_BYTES
from duplex_server.engine.chat import AsyncOmni, ChatAudio, ChatDone, ChatEvent, ChatRequest, ChatText, ChatToolCall
from duplex_server.serving import bodies
from duplex_server.serving.chat_audio import Spoken, file_of
from duplex_server.serving.chat_schema import ChatCompletionRequest, to_request
from duplex_server.serving.errors import body_of, require_model, response_to

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Json = dict[str, Any]

MAX_BODY_BYTES = MAX_EVENT_BYTES
"""Largest request: as large as the largest event of a conversation."""
_SHAPE = 'a JSON object with at least "model" and "messages"'


class Completions:
    """Chat on one engine; knows what its spoken answers said."""

    def __init__(self, engine: AsyncOmni) -> None:
        """Answer with ``engine``."""
        self._engine = engine
        self._spoken = Spoken()

    async def answer(self, body: ChatCompletionRequest) -> Response:
        """The answer to a request; the work begins when it is sent.

        Raises:
            DuplexError: another model, or something that cannot be served.
        """
        served = self._engine.served
        require_model(served, body.model, param="model")
        # Off the loop: a request may hold minutes of speech.
        request = await asyncio.to_thread(to_request, body, served.capabilities, self._spoken)
        return _Answer(self._engine, request, body, self._spoken)


async def read(request: Request) -> ChatCompletionRequest:
    """What a request asks for.

    Raises:
        DuplexError: its body is not what it must be; the first thing that is wrong with it, by name.
    """
    bodies.require_json(request, _SHAPE)
    document = bodies.json_object(await bodies.read(request, MAX_BODY_BYTES), _SHAPE)
    try:
        return ChatCompletionRequest.model_validate(document)
    except pydantic.ValidationError as exc:
        raise DuplexError(_explain(exc.errors(include_url=False))) from None


def _explain(faults: Sequence[Any]) -> ErrorInfo:
    """The first of what pydantic finds wrong with a body, as an error that names the field."""
    fault: Mapping[str, Any] = faults[0]
    param = ".".join(str(each) for each in fault["loc"]) or None
    if fault["type"] == "extra_forbidden":
        return error(ErrorCode.UNKNOWN_PARAMETER, f"{param} is not a field of this request", param=param)
    if fault["type"] == "missing" and len(fault["loc"]) == 1:
        return error(ErrorCode.INVALID_VALUE, f"{param} is missing; send {_SHAPE}", param=param)
    return error(ErrorCode.INVALID_VALUE, f"{param or 'the body'}: {fault['msg']}", param=param)


class _Calls:
    """The tool calls of one answer, numbered as they appear."""

    def __init__(self) -> None:
        self.calls: dict[str, Json] = {}

    def add(self, piece: ChatToolCall) -> Json:
        """Take one piece; its shape in a stream."""
        known = self.calls.get(piece.call_id)
        if known is not None:
            known["function"]["arguments"] += piece.arguments
            index = list(self.calls).index(piece.call_id)
            return {"index": index, "function": {"arguments": piece.arguments}}
        function = {"name": piece.name, "arguments": piece.arguments}
        call: Json = {"id": piece.call_id, "type": "function", "function": function}
        self.calls[piece.call_id] = call
        return {"index": len(self.calls) - 1, **call, "function": dict(function)}


class _Answer(Response):
    """An answer that is made while it is sent, and not a moment longer than its client stays."""

    def __init__(self, engine: AsyncOmni, request: ChatRequest, body: ChatCompletionRequest, spoken: Spoken) -> None:
        super().__init__()
        self._engine = engine
        self._request = request
        self._stream = body.stream
        self._usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._spoken = spoken
        self._audio = body.audio
        self._audio_id = spoken.new_id()
        self._head: Json = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": engine.served.name,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or stop as soon as the client has gone."""
        work = asyncio.create_task((self._send_stream if self._stream else self._send_whole)(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await work

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        text, calls, pcm = "", _Calls(), bytearray()
        done = ChatDone(reason=StopReason.DONE, usage=TokenUsage())
        try:
            async with contextlib.aclosing(self._engine.generate(self._request)) as events:
                async for event in events:
                    match event:
                        case ChatText():
                            text += event.text
                        case ChatAudio():
                            pcm += event.pcm
                        case ChatToolCall():
                            calls.add(event)
                        case ChatDone():
                            done = event
        except DuplexError as exc:
            await response_to(exc.info)(scope, receive, send)
            return
        message: Json = {"role": "assistant", "content": text or None if calls.calls else text, "refusal": None}
        if self._audio is not None and (text or pcm):
            message |= {"content": None, "audio": await self._sound(text, bytes(pcm), self._audio.format)}
        if calls.calls:
            message["tool_calls"] = list(calls.calls.values())
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(done, calls)}
        body = {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(done.usage)}
        await JSONResponse(body)(scope, receive, send)

    async def _sound(self, transcript: str, pcm: bytes, kind: str) -> Json:
        """The ``audio`` of a whole answer."""
        data = await asyncio.to_thread(file_of, pcm, kind)
        until = self._spoken.keep(self._audio_id, transcript)
        return {"id": self._audio_id, "data": data, "expires_at": until, "transcript": transcript}

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._engine.generate(self._request)) as events:
            try:
                first = await anext(events)
            except DuplexError as exc:  # nothing was sent yet, so it can still be an HTTP error
                await response_to(exc.info)(scope, receive, send)
                return
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with contextlib.aclosing(self._chunks(first, events)) as chunks:
                async for chunk in chunks:
                    await send(_sse(json.dumps(chunk, ensure_ascii=False)))
            await send(_sse("[DONE]"))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self, first: ChatEvent, events: AsyncGenerator[ChatEvent]) -> AsyncGenerator[Json]:
        """The stream's objects, in order; a failure in mid-answer is the last of them."""
        calls, said = _Calls(), ""
        event: ChatEvent | None = first
        yield self._chunk({"role": "assistant", "content": "" if self._audio is None else None})
        try:
            while event is not None:
                match event:
                    case ChatText(text=text):
                        said += text
                        yield self._chunk({"content": text} if self._audio is None else self._more(transcript=text))
                    case ChatAudio(pcm=pcm):
                        yield self._chunk(self._more(data=base64.b64encode(pcm).decode()))
                    case ChatToolCall():
                        yield self._chunk({"tool_calls": [calls.add(event)]})
                    case ChatDone():
                        if self._audio is not None and said:
                            yield self._chunk({"audio": {"expires_at": self._spoken.keep(self._audio_id, said)}})
                        yield self._chunk({}, finish=_finish(event, calls))
                        if self._usage:
                            yield {**self._chunk(None), "usage": _usage(event.usage)}
                event = await anext(events, None)
        except DuplexError as exc:
            yield body_of(exc.info)

    def _more(self, **fields: Any) -> Json:
        """More of a spoken answer."""
        return {"audio": {"id": self._audio_id, **fields}}

    def _chunk(self, delta: Json | None, finish: str | None = None) -> Json:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _finish(done: ChatDone, calls: _Calls) -> str:
    if done.reason is StopReason.MAX_TOKENS:
        return "length"
    return "tool_calls" if calls.calls else "stop"


def _usage(usage: TokenUsage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _sse(data: str) -> Json:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}

"""A language model behind an OpenAI-compatible endpoint: ``POST {base_url}/chat/completions``, streamed.

Owns: the request's and the answer's JSON, and the connection. Called by: the cascade's language stage. Never: retries (an
answer may already have been heard), or shows the key in a message.

All requests share one connection pool on an event loop of its own thread, so that a request can be cancelled while the
endpoint is silent.
Source: OpenAI API reference, "Create chat completion" and "Streaming".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from model_cascade.parts.channel import Channel
from model_cascade.parts.errors import (
    BrokenAnswerError,
    Cancel,
    EndpointUnavailableError,
    LanguageModelError,
    RequestRefusedError,
    never,
)
from model_cascade.parts.language_model import (
    ChatRequest,
    Delta,
    Finished,
    FinishReason,
    Message,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolMode,
    Usage,
)
from model_cascade.parts.server_sent_events import EventReader
from model_cascade.parts.tool_calls import BrokenCall, Call, CallReader, Read

_REASONS = {
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}
_TRY_LATER = frozenset({408, 409, 425, 429})
_LONGEST_DETAIL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTimeouts:
    """How long to wait, in seconds.

    Attributes:
        connect_s: For the connection.
        silence_s: For the answer's beginning, and for each next piece of it.
        total_s: For the whole answer.
    """

    connect_s: float = 5.0
    silence_s: float = 30.0
    total_s: float = 120.0


class ChatEndpoint:
    """A language model somewhere else.

    Args:
        base_url: The endpoint's root, for example ``http://127.0.0.1:8000/v1``.
        model: The model's name there.
        api_key: Sent as a bearer token when it is not empty.
        timeouts: How long to wait.
        extra: More fields of every request, for example ``{"chat_template_kwargs": {"enable_thinking": False}}``.
        new_call_id: Makes ids for calls that the endpoint gives none.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str = "",
        timeouts: EndpointTimeouts | None = None,
        extra: Mapping[str, Any] | None = None,
        new_call_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        self.name = model
        self._timeouts = timeouts or EndpointTimeouts()
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._extra = dict(extra or {})
        self._new_call_id = new_call_id
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Timeout(self._timeouts.silence_s, connect=self._timeouts.connect_s)
        self._client = httpx.AsyncClient(headers=headers, timeout=limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-endpoint", daemon=True)
        self._thread.start()

    def stream(self, request: ChatRequest, cancelled: Cancel = never) -> Iterator[Delta]:
        """Answer, as :class:`~model_cascade.parts.language_model.LanguageModel` says."""
        if self._loop.is_closed():
            raise LanguageModelError("The language model was closed")
        channel: Channel[str] = Channel()
        body = {**request_body(self.name, request), **self._extra}
        work = asyncio.run_coroutine_threadsafe(self._post(body, channel), self._loop)
        work.add_done_callback(lambda done: channel.finish(_failure(done)))
        answer = _Answer(request, self._new_call_id)
        try:
            for data in channel.items(cancelled):
                yield from answer.take(data)
            if not cancelled():
                yield from answer.rest()
            yield answer.finished(cancelled=cancelled())
        finally:
            work.cancel()

    def prepare(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = (), cancelled: Cancel = never) -> None:
        """Do nothing: what an endpoint caches is its own affair."""

    def close(self) -> None:
        """End all answers and the connections; may be called again."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
        await self._loop.shutdown_asyncgens()  # those of answers that were left before their end

    async def _post(self, body: dict[str, Any], channel: Channel[str]) -> None:
        """Send the request and put the data of each event into the channel, up to ``[DONE]``."""
        try:
            async with asyncio.timeout(self._timeouts.total_s):
                await self._read(body, channel)
        except TimeoutError as error:
            late = f"{self._url} did not end its answer within {self._timeouts.total_s:g} s"
            raise EndpointUnavailableError(late) from error
        except httpx.TimeoutException as error:
            what = "connect" if isinstance(error, httpx.ConnectTimeout) else "answer"
            raise EndpointUnavailableError(f"{self._url} did not {what} in time") from error
        except httpx.ConnectError as error:
            raise EndpointUnavailableError(f"{self._url} cannot be reached: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BrokenAnswerError(f"The answer of {self._url} broke off: {error!r}") from error

    async def _read(self, body: dict[str, Any], channel: Channel[str]) -> None:
        async with self._client.stream("POST", self._url, json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise _refusal(self._url, response.status_code, (await response.aread()).decode("utf-8", "replace"))
            events = EventReader()
            async for line in response.aiter_lines():
                data = events.feed(line)
                if data == "[DONE]":
                    return
                if data is not None:
                    channel.put(data)
            if (data := events.finish()) not in {None, "[DONE]"}:
                channel.put(str(data))


class _Answer:
    """What has come of one answer."""

    def __init__(self, request: ChatRequest, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._reader = CallReader(frozenset(tool.name for tool in request.tools)) if request.tools else None
        self._calls: dict[int, tuple[str, str]] = {}
        self._reason: FinishReason | None = None
        self._usage = Usage()

    def take(self, data: str) -> Iterator[Delta]:
        """Read one event."""
        try:
            chunk = json.loads(data)
            if isinstance(chunk.get("error"), dict | str):
                raise _error_in_stream(chunk["error"])
            self._take_usage(chunk.get("usage") or {})
            for choice in (chunk.get("choices") or [])[:1]:
                delta = choice.get("delta") or {}
                if text := delta.get("content"):
                    yield from self._text([text] if self._reader is None else self._reader.feed(text))
                for place, call in enumerate(delta.get("tool_calls") or []):
                    yield self._call(call, place)
                if choice.get("finish_reason"):
                    self._reason = _REASONS.get(choice["finish_reason"], FinishReason.STOP)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BrokenAnswerError(f"The endpoint sent no chat completion chunk: {data[:_LONGEST_DETAIL]}") from error

    def rest(self) -> Iterator[Delta]:
        """Give what was held back because it might have become a call."""
        if self._reader is not None:
            yield from self._text(self._reader.finish())

    def _text(self, reads: Sequence[Read]) -> Iterator[Delta]:
        """Pass text on, and calls that the endpoint left in it."""
        for read in reads:
            if isinstance(read, BrokenCall):
                raise BrokenAnswerError(f"The model wrote a call that cannot be read: {read.raw[:_LONGEST_DETAIL]}")
            if isinstance(read, Call):
                index = len(self._calls)
                self._calls[index] = (self._new_call_id(), read.name)
                yield ToolCallDelta(
                    index=index, call_id=self._calls[index][0], name=read.name, arguments=read.arguments
                )
            else:
                yield TextDelta(text=read)

    def finished(self, *, cancelled: bool) -> Finished:
        """End the answer; one that ends without a reason has been cut off."""
        if cancelled:
            return Finished(reason=FinishReason.CANCELLED, usage=self._usage)
        if self._reason is None:
            raise BrokenAnswerError("The endpoint ended its answer without a finish_reason")
        reason = FinishReason.TOOL_CALLS if self._calls and self._reason is FinishReason.STOP else self._reason
        return Finished(reason=reason, usage=self._usage)

    def _call(self, call: Mapping[str, Any], place: int) -> ToolCallDelta:
        """Read a piece of a call. Id and name come with its first piece only; some endpoints leave out index or id."""
        index = call.get("index")
        index = place if index is None else int(index)
        function = call.get("function") or {}
        if index not in self._calls:
            self._calls[index] = (call.get("id") or self._new_call_id(), function["name"])
        call_id, name = self._calls[index]
        return ToolCallDelta(index=index, call_id=call_id, name=name, arguments=function.get("arguments") or "")

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            self._usage = Usage(
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
                cached_tokens=int(details.get("cached_tokens") or 0),
            )


def request_body(model: str, request: ChatRequest) -> dict[str, Any]:
    """Write a request as the endpoint's JSON; what was not asked for is left out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        choice = request.tool_choice
        is_function = choice.mode is ToolMode.FUNCTION
        named = {"type": "function", "function": {"name": choice.name}}
        body["tool_choice"] = named if is_function else choice.mode.value
    return body


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        written["content"] = message.content or None
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
    return written


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _failure(work: concurrent.futures.Future[None]) -> BaseException | None:
    """Tell with what a request ended; one that was cancelled ended because the model was closed, or nobody reads on."""
    return LanguageModelError("The language model was closed") if work.cancelled() else work.exception()


def _refusal(url: str, status: int, text: str) -> LanguageModelError:
    """Turn an HTTP status into an error, with what the endpoint says about it."""
    try:
        detail = json.loads(text)["error"]
        detail = detail["message"] if isinstance(detail, dict) else detail
    except (KeyError, TypeError, ValueError):
        detail = text
    message = f"{url} answered {status}: {str(detail).strip()[:_LONGEST_DETAIL] or 'no reason given'}"
    if status >= 500 or status in _TRY_LATER:
        return EndpointUnavailableError(message)
    if status in {401, 403}:
        return RequestRefusedError(f"{message}. Check the API key")
    if status == 404:
        return RequestRefusedError(f"{message}. Check the base URL and the model's name")
    return RequestRefusedError(message)


def _error_in_stream(error: Mapping[str, Any] | str) -> LanguageModelError:
    detail = error if isinstance(error, str) else error.get("message", error)
    return BrokenAnswerError(f"The endpoint gave up its answer: {str(detail)[:_LONGEST_DETAIL]}")

"""The language model behind an endpoint, against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from model_cascade.parts.chat_endpoint import ChatEndpoint, EndpointTimeouts
from model_cascade.parts.errors import (
    BrokenAnswerError,
    EndpointUnavailableError,
    LanguageModelError,
    RequestRefusedError,
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
    ToolChoice,
    ToolMode,
    ToolRequest,
    Usage,
)

HELLO = (Message(role="user", content="Hello"),)
WEATHER = Tool(name="weather", description="d", parameters={"type": "object", "properties": {}})


class Server(ThreadingHTTPServer):
    """Answers every request with ``script``, a function of the handler, and keeps what was asked."""

    daemon_threads = True

    def __init__(self, script: Callable[[Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.left = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = cast("Server", self.server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, self.headers.get("Authorization", ""), body))
        self.close_connection = True
        try:
            server.script(self)
        except (BrokenPipeError, ConnectionResetError):
            server.left.set()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def begin(self, status: int = 200, kind: str = "text/event-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, data: Any) -> None:
        self.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\r\n\r\n".encode())
        self.wfile.flush()

    def delta(self, reason: str | None = None, **delta: Any) -> None:
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


Serve = Callable[[Callable[[Handler], None]], Server]
Connect = Callable[..., ChatEndpoint]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(script: Callable[[Handler], None]) -> Server:
        server = Server(script)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    models: list[ChatEndpoint] = []

    def make(base_url: str, **options: Any) -> ChatEndpoint:
        ids = iter(range(100))
        model = ChatEndpoint(base_url=base_url, model="big", new_call_id=lambda: f"made-{next(ids)}", **options)
        models.append(model)
        return model

    yield make
    for model in models:
        model.close()


def answer(model: ChatEndpoint, **options: Any) -> list[Delta]:
    return list(model.stream(ChatRequest(messages=HELLO, **options)))


def say_hello(handler: Handler) -> None:
    handler.begin()
    handler.wfile.write(b": keep-alive\n\n")
    handler.delta(role="assistant", content="")
    handler.delta(content="Hel")
    handler.delta(content="lo.", reasoning_content="?")
    handler.delta(reason="stop")
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    handler.event({"choices": [], "usage": usage})
    handler.event("[DONE]")


def test_an_answer_is_streamed_with_its_usage(serve: Serve, connect: Connect) -> None:
    model = connect(serve(say_hello).base_url)
    assert answer(model) == [
        TextDelta(text="Hel"),
        TextDelta(text="lo."),
        Finished(reason=FinishReason.STOP, usage=Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4)),
    ]
    assert model.name == "big"


def test_the_request_is_what_the_protocol_says(serve: Serve, connect: Connect) -> None:
    server = serve(say_hello)
    call = ToolRequest(call_id="c1", name="weather", arguments="{}")
    messages = (
        Message(role="system", content="Be kind."),
        *HELLO,
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="c1", content="sunny"),
    )
    model = connect(server.base_url + "/", api_key="secret", extra={"top_k": 5})
    choice = ToolChoice(mode=ToolMode.FUNCTION, name="weather")
    request = ChatRequest(
        messages=messages, max_tokens=7, temperature=0.5, seed=3, stop=("X",), tools=(WEATHER,), tool_choice=choice
    )
    list(model.stream(request))
    path, authorization, body = server.asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "big",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        ],
        "max_tokens": 7,
        "temperature": 0.5,
        "seed": 3,
        "stop": ["X"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "d",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "top_k": 5,
    }


def test_calls_are_put_together_from_their_pieces(serve: Serve, connect: Connect) -> None:
    def script(handler: Handler) -> None:
        handler.begin()
        handler.delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "weather", "arguments": ""}}])
        handler.delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}])
        handler.delta(tool_calls=[{"index": 0, "function": {"arguments": ' "Rome"}'}}])
        handler.delta(tool_calls=[{"index": 1, "function": {"name": "timer", "arguments": "{}"}}])
        handler.delta(reason="tool_calls")
        handler.event("[DONE]")

    deltas = answer(connect(serve(script).base_url), tools=(WEATHER,))
    assert deltas == [
        ToolCallDelta(index=0, call_id="a", name="weather", arguments=""),
        ToolCallDelta(index=0, call_id="a", name="weather", arguments='{"city":'),
        ToolCallDelta(index=0, call_id="a", name="weather", arguments=' "Rome"}'),
        ToolCallDelta(index=1, call_id="made-0", name="timer", arguments="{}"),
        Finished(reason=FinishReason.TOOL_CALLS, usage=Usage()),
    ]


def test_calls_that_an_endpoint_leaves_in_the_text_are_read(serve: Serve, connect: Connect) -> None:
    def script(handler: Handler) -> None:
        handler.begin()
        for piece in ("Let me see. <tool", '_call>{"name": "weather", ', '"arguments": {}}</tool_call>'):
            handler.delta(content=piece)
        handler.delta(reason="stop")

    model = connect(serve(script).base_url)
    assert answer(model, tools=(WEATHER,)) == [
        TextDelta(text="Let me see. "),
        ToolCallDelta(index=0, call_id="made-0", name="weather", arguments="{}"),
        Finished(reason=FinishReason.TOOL_CALLS, usage=Usage()),
    ]
    assert "<tool_call>" in "".join(delta.text for delta in answer(model) if isinstance(delta, TextDelta))
    with pytest.raises(BrokenAnswerError, match="cannot be read"):
        answer(model, tools=(Tool(name="other"),))


@pytest.mark.parametrize(
    ("status", "body", "message", "error"),
    [
        (401, '{"error": {"message": "bad key"}}', "401: bad key. Check the API key", RequestRefusedError),
        (404, "<html>", "404: <html>. Check the base URL", RequestRefusedError),
        (400, '{"error": "no such field"}', "400: no such field", RequestRefusedError),
        (429, "", "429: no reason given", EndpointUnavailableError),
        (503, "x" * 9999, "503: xxx", EndpointUnavailableError),
    ],
)
def test_a_refusal_says_why_and_whether_to_try_again(
    *, status: int, body: str, message: str, error: type[LanguageModelError], serve: Serve, connect: Connect
) -> None:
    def script(handler: Handler) -> None:
        handler.begin(status, "application/json")
        handler.wfile.write(body.encode())

    with pytest.raises(error) as raised:
        answer(connect(serve(script).base_url, api_key="secret"))
    assert message in str(raised.value)
    assert len(str(raised.value)) < 500
    assert "secret" not in str(raised.value)
    assert raised.value.retryable == (error is EndpointUnavailableError)


def test_an_endpoint_that_is_not_there_is_told(connect: Connect, serve: Serve) -> None:
    server = serve(say_hello)
    server.shutdown()
    server.server_close()
    with pytest.raises(EndpointUnavailableError, match="cannot be reached"):
        answer(connect(server.base_url))


def test_an_address_that_is_none_is_told(connect: Connect) -> None:
    with pytest.raises(LanguageModelError):
        answer(connect("nowhere"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"choices": [{"delta": {"content": "Hel"}', "no chat completion chunk"),
        ("[1, 2]", "no chat completion chunk"),
        ('{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}', "no chat completion chunk"),
        ('{"error": {"message": "out of memory"}}', "gave up its answer: out of memory"),
        ('{"choices": [{"delta": {"content": "Hel"}}]}', "without a finish_reason"),
    ],
)
def test_an_answer_that_is_none_is_told(data: str, message: str, serve: Serve, connect: Connect) -> None:
    def script(handler: Handler) -> None:
        handler.begin()
        handler.event(data)

    with pytest.raises(BrokenAnswerError, match=message):
        answer(connect(serve(script).base_url))


def test_a_connection_that_breaks_is_told(serve: Serve, connect: Connect) -> None:
    def script(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.delta(content="Hel")

    with pytest.raises(BrokenAnswerError, match="broke off"):
        answer(connect(serve(script).base_url))


@pytest.mark.parametrize(
    ("timeouts", "message"),
    [
        (EndpointTimeouts(silence_s=0.1), "did not answer in time"),
        (EndpointTimeouts(total_s=0.1), "did not end its answer within 0.1 s"),
    ],
)
def test_an_endpoint_that_falls_silent_is_given_up(
    timeouts: EndpointTimeouts, message: str, serve: Serve, connect: Connect
) -> None:
    done = threading.Event()

    def script(handler: Handler) -> None:
        handler.begin()
        handler.delta(content="Hel")
        done.wait(5)

    stream = connect(serve(script).base_url, timeouts=timeouts).stream(ChatRequest(messages=HELLO))
    assert next(stream) == TextDelta(text="Hel")
    with pytest.raises(EndpointUnavailableError, match=message):
        next(stream)
    done.set()


def test_cancelling_leaves_a_silent_endpoint_at_once(serve: Serve, connect: Connect) -> None:
    server = serve(lambda _: None)

    def script(handler: Handler) -> None:
        handler.begin()
        handler.wfile.write(b": still thinking\n\n")
        stop.set()
        while True:  # until the reader is gone
            handler.wfile.write(b": still thinking\n\n")
            time.sleep(0.01)

    server.script = script
    stop = threading.Event()
    started = time.monotonic()
    deltas = list(connect(server.base_url).stream(ChatRequest(messages=HELLO), stop.is_set))
    assert deltas == [Finished(reason=FinishReason.CANCELLED, usage=Usage())]
    assert time.monotonic() - started < 5.0, "the endpoint itself would never end"
    assert server.left.wait(5), "the connection was closed"


def test_an_answer_that_is_not_read_to_its_end_is_left(serve: Serve, connect: Connect) -> None:
    def script(handler: Handler) -> None:
        handler.begin()
        while True:
            handler.delta(content="more ")
            time.sleep(0.01)

    server = serve(script)
    stream = connect(server.base_url).stream(ChatRequest(messages=HELLO))
    assert next(stream) == TextDelta(text="more ")
    stream.close()  # type: ignore[attr-defined]
    assert server.left.wait(5)


def test_several_answers_at_once(serve: Serve, connect: Connect) -> None:
    model = connect(serve(say_hello).base_url)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(answer(model)))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 5


def test_closing_ends_answers_and_may_come_twice(serve: Serve, connect: Connect) -> None:
    done = threading.Event()

    def script(handler: Handler) -> None:
        handler.begin()
        handler.delta(content="Hel")
        done.wait(5)

    model = connect(serve(script).base_url)
    stream = model.stream(ChatRequest(messages=HELLO))
    next(stream)
    model.close()
    with pytest.raises(LanguageModelError, match="closed"):
        next(stream)
    model.close()
    with pytest.raises(LanguageModelError, match="closed"):
        answer(model)
    done.set()


def test_preparing_asks_nothing(serve: Serve, connect: Connect) -> None:
    server = serve(say_hello)
    connect(server.base_url).prepare(HELLO)
    assert server.asked == []

"""Nonsense at the codec and at a server in a process of its own: all of it is answered, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.fuzz import codec, hunt, sockets
from benchmarks.fuzz.codec import Broken, check
from benchmarks.fuzz.frames import GOOD, frame
from benchmarks.fuzz.process import server
from benchmarks.fuzz.sockets import Disturbed, Report, fuzz
from duplex_core.events import Event, SessionUpdated
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import WireError, decode_command, encode_event

FRAMES = st.randoms(use_true_random=False).map(frame)


@settings(max_examples=300, deadline=None)
@given(FRAMES)
def test_the_codec_reads_a_frame_or_refuses_it_with_a_reason(each: str | bytes) -> None:
    check(each)


def test_so_it_does_with_twenty_thousand() -> None:
    rng = random.Random(20_000)
    taken = sum(check(frame(rng)) for _ in range(20_000))
    assert 1000 < taken < 10_000, "the frames are neither all honest nor all hopeless"


def test_the_frames_are_of_every_kind() -> None:
    rng = random.Random(1)
    reasons: Counter[str] = Counter()
    for _ in range(5000):
        try:
            reasons[type(decode_command(frame(rng))).__name__] += 1
        except WireError as refused:
            reasons[refused.info.code.value] += 1
    commands = {type(decode_command(text)).__name__ for text in GOOD.values()}
    assert commands <= reasons.keys()
    assert {"invalid_json", "invalid_event", "invalid_value", "unknown_parameter", "invalid_audio"} <= reasons.keys()


@pytest.mark.parametrize("wrong", ["raises", "loses"])
def test_a_codec_that_errs_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(_: Any) -> Any:
        raise IndexError("a corner that was forgotten")

    loses = {"session.heartbeat": "session.close"}
    if wrong == "raises":
        monkeypatch.setattr(codec, "decode_command", raises)
    else:
        monkeypatch.setattr(codec, "encode_command", lambda _: json.dumps({"type": loses["session.heartbeat"]}))
    with pytest.raises(Broken) as caught:
        check(GOOD["session.heartbeat"])
    assert caught.value.frame == GOOD["session.heartbeat"]


@pytest.fixture(scope="module")
def hammer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[str | bytes]], Report]]:
    """Sends frames to a server in a process of its own, beside a conversation; the server must end well."""
    log = tmp_path_factory.mktemp("fuzz") / "server.log"
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        address = runner.run(stack.enter_async_context(server(log, "--max-sessions", "4")))
        yield lambda frames: runner.run(fuzz(address, frames))
        runner.run(stack.aclose())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(FRAMES, min_size=10, max_size=40))
def test_a_server_answers_nonsense_and_nobody_else_notices(
    hammer: Callable[[list[str | bytes]], Report], frames: list[str | bytes]
) -> None:
    report = hammer(frames)
    assert report.frames > 0
    assert report.turns >= 1


def test_so_it_does_with_three_thousand(hammer: Callable[[list[str | bytes]], Report]) -> None:
    rng = random.Random(3000)
    report = hammer([frame(rng) for _ in range(3000)])
    assert report.turns > 3
    assert report.errors.total() > 1000


class Fake:
    """A server that answers nonsense and holds the conversation beside it, but for one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.seq: dict[ServerConnection, int] = {}

    async def attend(self, socket: ServerConnection) -> None:
        self.seq[socket] = 0
        said = ""
        await self.tell(socket, "session.created")
        async for text in socket:
            told: dict[str, Any] = json.loads(text)
            match told["type"]:
                case "conversation.item.retrieve":
                    await self.question(socket, told["event_id"])
                case "session.update":
                    await self.tell(socket, "session.updated")
                case "conversation.item.create":
                    said = told["item"]["content"][0]["text"]
                case "response.create":
                    content = [{"text": "of the other" if self.fault == "leaks" else said}]
                    await self.tell(socket, "response.done", response={"output": [{"id": "i", "content": content}]})
                case "conversation.item.delete":
                    await self.tell(socket, "conversation.item.deleted")
                case "session.close":
                    await self.tell(socket, "session.closed", reason="client_closed")
                case _:
                    pass

    async def question(self, socket: ServerConnection, event_id: str) -> None:
        match self.fault:
            case "hangs":
                return
            case "dies":
                await socket.close()
                return
            case "repeats":
                self.seq[socket] -= 1
            case "ends":
                await self.tell(socket, "session.closed", reason="error")
                return
            case _:
                pass
        code = "internal_error" if self.fault == "fails" else "item_not_found"
        named = None if self.fault == "fails" else event_id
        await self.tell(socket, "error", error={"code": code, "message": "m", "event_id": named})

    async def tell(self, socket: ServerConnection, kind: str, **fields: Any) -> None:
        self.seq[socket] += 1
        await socket.send(json.dumps({"type": kind, "server_event_seq": self.seq[socket], **fields}))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("none", None),
        ("hangs", "nothing came for"),
        ("dies", "without session.closed"),
        ("repeats", "after event 1 came event 1"),
        ("ends", "the session ended by itself"),
        ("fails", "a fault of the server's own"),
        ("leaks", "answered 'of the other'"),
    ],
)
async def test_a_server_that_errs_is_caught(fault: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATIENCE_S", 0.5)
    async with serve(Fake(fault).attend, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        hammered = fuzz(f"127.0.0.1:{port}", ['{"type":"x"}', '{"type":"y"}'])
        if said is None:
            assert (await hammered).turns >= 1
            return
        with pytest.raises(ExceptionGroup) as caught:
            await hammered
        assert caught.group_contains(Disturbed, match=said)


def test_what_a_guided_fuzzer_is_given_begins_with_honest_frames_and_changes_them(tmp_path: Path) -> None:
    hunt.plant(tmp_path)
    planted = [each.read_bytes() for each in sorted(tmp_path.iterdir())]
    assert len(planted) == len(COMMAND_EXAMPLES) + len(EVENT_EXAMPLES)
    rng = random.Random(1)
    for data in planted:
        hunt.target(data)
        changed = {hunt.mutated(data, rng) for _ in range(20)}
        assert len(changed - {data, None}) > 5
        for each in changed:
            hunt.target(each or b"\xff")
    assert hunt.mutated(b'"no document"', rng) is None


def test_a_codec_that_errs_on_an_event_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = EVENT_EXAMPLES["session.closed"]

    def loses(event: Event, **more: Any) -> str:
        return encode_event(closed if isinstance(event, SessionUpdated) else event, **more)

    monkeypatch.setattr(codec, "encode_event", loses)
    with pytest.raises(Broken, match="the event does not survive"):
        hunt.target(encode_event(EVENT_EXAMPLES["session.updated"], event_id="e", seq=1).encode())

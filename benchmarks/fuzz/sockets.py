"""A client that sends nonsense, beside one that holds a conversation which must go on undisturbed.

Owns both clients and what they demand of the server: every frame is answered or taken, the session lives unless the frame asked
for its end, and nothing of it reaches anybody else. Used by the long run and by the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from duplex_core.commands import SessionClose
from duplex_core.wire import WireError, decode_command

BATCH = 25
"""Frames between two questions: so many are on their way when the server is asked whether it is still there."""
PATIENCE_S = 30.0
"""How long an answer may take on a busy machine; more is a hang."""
TELL_EVERY = 50_000
"""Frames between two lines of a long run's progress."""


class Disturbed(AssertionError):
    """The server did what it must not; the message says what, and after which frames."""


class Report(msgspec.Struct, kw_only=True):
    """What a run did. ``frames`` are all that were sent; ``late`` of them came behind one that had ended the session."""

    frames: int = 0
    late: int = 0
    sessions: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    turns: int = 0


class Nonsense:
    """The client that sends the frames, over as many sessions as they end."""

    def __init__(self, url: str, report: Report, told: Callable[[Report], None]) -> None:
        """Talk to ``url`` and count into ``report``, which is shown to ``told`` now and then."""
        self._url = url
        self._report = report
        self._told = told
        self._asked = 0
        self._seq = 0

    async def run(self, frames: Iterable[str | bytes]) -> None:
        """Send all of ``frames``.

        Raises:
            Disturbed: a hang, a death, an event out of order, or an end that was not told.
        """
        source = iter(frames)
        left = True
        while left:
            async with _connected(self._url) as socket:
                self._report.sessions += 1
                left = await self._session(socket, source)

    async def _session(self, socket: ClientConnection, source: Iterator[str | bytes]) -> bool:
        """One session, until it ends or there is nothing more to send; whether there may be more."""
        self._seq = 0
        while batch := list(itertools.islice(source, BATCH)):
            self._asked += 1
            marker = f"question {self._asked}"
            question = {"type": "conversation.item.retrieve", "item_id": "nobody's", "event_id": marker}
            try:
                with contextlib.suppress(websockets.ConnectionClosed):  # what it said before is still to be read
                    await self._send(socket, batch)
                    await socket.send(json.dumps(question))
                ended = await self._answered(socket, marker)
            except websockets.ConnectionClosed as closed:
                raise Disturbed(f"the socket closed ({closed}) without session.closed after {batch!r}") from closed
            except TimeoutError:
                raise Disturbed(f"nothing came for {PATIENCE_S:g} s after {batch!r}") from None
            if ended:
                return True
        return False

    async def _send(self, socket: ClientConnection, batch: Sequence[str | bytes]) -> None:
        over = False
        for frame in batch:
            await socket.send(frame)
            self._report.frames += 1
            self._report.late += over
            over = over or _asks_for_the_end(frame)
            if self._report.frames % TELL_EVERY == 0:
                self._told(self._report)

    async def _answered(self, socket: ClientConnection, marker: str) -> bool:
        """Read up to the answer to the question ``marker``, or to the session's end; whether it was that."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                event: dict[str, Any] = json.loads(await socket.recv())
            if event["server_event_seq"] != self._seq + 1:
                raise Disturbed(f"after event {self._seq} came event {event['server_event_seq']}: {str(event)[:500]}")
            self._seq += 1
            if event["type"] == "session.closed":
                if event["reason"] != "client_closed":
                    raise Disturbed(f"the session ended by itself: {event}")
                return True
            if event["type"] == "error":
                if event["error"].get("event_id") == marker:
                    return False
                self._error(event["error"])

    def _error(self, error: dict[str, Any]) -> None:
        self._report.errors[error["code"]] += 1
        if error["code"] in {"internal_error", "engine_error"} or not error["message"]:
            raise Disturbed(f"a fault of the server's own: {error}")


def _connected(url: str) -> websockets.connect:
    return websockets.connect(url, max_size=None, max_queue=None, open_timeout=PATIENCE_S)


def _asks_for_the_end(frame: str | bytes) -> bool:
    try:
        return isinstance(frame, str) and isinstance(decode_command(frame), SessionClose)
    except WireError:
        return False


class Conversation:
    """The client beside it: says something, is answered, says the next thing."""

    def __init__(self, url: str, report: Report) -> None:
        """Talk to ``url`` and count into ``report``."""
        self._url = url
        self._report = report
        self._seq = 0

    async def run(self, over: asyncio.Event) -> None:
        """Hold the conversation until ``over``, at least one turn of it, and hang up.

        Raises:
            Disturbed: anything but the answers to what was said came, or they did not come.
        """
        async with _connected(self._url) as socket:
            await self._expect(socket, "session.created")
            patch = {"type": "realtime", "output_modalities": ["text"], "options": {"pace": 0.0}}
            await socket.send(json.dumps({"type": "session.update", "session": patch}))
            await self._expect(socket, "session.updated")
            while self._report.turns == 0 or not over.is_set():
                await self._turn(socket, f"this is turn {self._report.turns}")
                self._report.turns += 1
            await socket.send(json.dumps({"type": "session.close"}))
            await self._expect(socket, "session.closed")

    async def _turn(self, socket: ClientConnection, text: str) -> None:
        asked = f"item of turn {self._report.turns}"
        content = [{"type": "input_text", "text": text}]
        item = {"id": asked, "type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await socket.send(json.dumps({"type": "response.create"}))
        done = await self._expect(socket, "response.done")
        said = done["response"]["output"][0]["content"][0]["text"]
        if said != text:
            raise Disturbed(f"asked {text!r}, answered {said!r}")
        for item_id in (asked, done["response"]["output"][0]["id"]):  # so that a long run is no long conversation
            await socket.send(json.dumps({"type": "conversation.item.delete", "item_id": item_id}))
            await self._expect(socket, "conversation.item.deleted")

    async def _expect(self, socket: ClientConnection, wanted: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    event: dict[str, Any] = json.loads(await socket.recv())
                    if event["server_event_seq"] != self._seq + 1 or event["type"] == "error":
                        raise Disturbed(f"not what was to come after event {self._seq}: {str(event)[:500]}")
                    self._seq += 1
                    if event["type"] == wanted:
                        return event
        except (TimeoutError, websockets.ConnectionClosed) as exc:
            raise Disturbed(f"the conversation beside it was cut off waiting for {wanted}: {exc!r}") from exc


async def fuzz(address: str, frames: Iterable[str | bytes], told: Callable[[Report], None] = lambda _: None) -> Report:
    """Send ``frames`` to the server at ``address`` (`host:port`) while a conversation is held there.

    Args:
        address: of the server.
        frames: what is sent, one by one.
        told: is shown how far the run is, each :data:`TELL_EVERY` frames.

    Raises:
        Disturbed: the server did what it must not.
    """
    report, over = Report(), asyncio.Event()
    url = f"ws://{address}/v1/realtime"

    async def nonsense() -> None:
        try:
            await Nonsense(url, report, told).run(frames)
        finally:
            over.set()

    async with asyncio.TaskGroup() as both:
        both.create_task(nonsense())
        both.create_task(Conversation(url, report).run(over))
    return report

"""A client's bytes become the same frames however they arrive, and are refused for the same reasons as by the library alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from duplex_server.serving.connection import Connection
from duplex_server.serving.server import FRAME_LIMIT
from tests.support.lines import event, frame, line
from tests.support.serving import Served, serving

TEXT, CONTINUATION, BINARY, CLOSE, PING, PONG = 0x1, 0x0, 0x2, 0x8, 0x9, 0xA
MASK = b"\x37\xfa\x21\x3d"

Cut = Callable[[bytes], list[bytes]]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(max_sessions=256) as running:
        yield running


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each piece that came in; of what is not a whole frame no more is kept than has come of it."""
    seen: list[int] = []
    read = Connection.data_received

    def noted(self: Connection, data: bytes) -> None:
        seen.append(len(data))
        read(self, data)
        assert not self._held or len(self._held) < self._wanted <= FRAME_LIMIT + 14

    monkeypatch.setattr(Connection, "data_received", noted)
    return seen


@pytest.fixture
def library_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on the library gets all that comes."""
    return lambda: monkeypatch.setattr(Connection, "_cut", Connection._read_on)


def in_one(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def at_random(seed: int, most: int) -> Cut:
    def cut(data: bytes) -> list[bytes]:
        rng = random.Random(seed)
        places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randint(1, most)))})
        return [data[begin:end] for begin, end in itertools.pairwise(places)]

    return cut


CUTS: dict[str, Cut] = {"in one piece": in_one, "byte by byte": byte_by_byte}
CUTS |= {f"at random {seed}": at_random(seed, 4 if seed < 4 else 60) for seed in range(8)}


RAGGED = {name: cut for name, cut in CUTS.items() if name != "byte by byte"}


def item(number: int, size: int = 0, *, size_bytes: int = 0, mask: bytes = MASK) -> bytes:
    """A frame that makes an item, whose text has ``size`` characters or a few."""
    part = {"type": "input_text", "text": f"ligne numéro {number} €".ljust(size, "x")}
    content = {"type": "message", "role": "user", "id": f"item_{number}", "content": [part]}
    told = {"type": "conversation.item.create", "item": content}
    return frame(json.dumps(told, ensure_ascii=False).encode(), size_bytes=size_bytes, mask=mask)


def fragmented(number: int) -> bytes:
    """As :func:`item`, in three frames with a ping among them."""
    payload = item(number, mask=bytes(4))
    payload = payload[payload.index(b"{") :]
    parts = [frame(payload[:50], TEXT, last=False, mask=MASK), frame(payload[50:51], CONTINUATION, last=False)]
    return b"".join([*parts, frame(b"between", PING, mask=MASK), frame(payload[51:], CONTINUATION, mask=MASK)])


WHOLE = [
    item(0),
    frame(b"", PING),
    item(1, size_bytes=2),
    item(2, size_bytes=8, mask=bytes(4)),
    frame(b"x" * 125, PING, mask=MASK),
    frame(b"sound", BINARY, mask=MASK, size_bytes=8),
    item(3, 400),
    frame(b"nobody asked", PONG),
    item(4, 70_000),
    frame(b"p", PING, size_bytes=8, mask=MASK),
    frame(b"", TEXT),
    item(5),
]
MIXED = [*WHOLE[:4], fragmented(6), item(7), *WHOLE[4:], fragmented(8), item(9, 200)]
END = event("session.heartbeat") + frame(b"end", PING)


async def conversation(served: Served, data: bytes, cut: Cut) -> tuple[list[Any], list[bytes]]:
    """What ``data`` leads to: events, without what differs from session to session, and pongs."""
    events: list[dict[str, Any]] = []
    pongs: list[bytes] = []
    async with line(served.port) as client:
        sending = asyncio.create_task(client.send_in(cut(data + END)))
        while not (b"end" in pongs and events and events[-1]["type"] == "session.heartbeat_ack"):
            ((opcode, payload),) = await client.frames(1)
            if opcode == PONG:
                pongs.append(payload)
            else:
                events.append(json.loads(payload))
        await sending
    for told in events:
        del told["event_id"]
    return events[:-1], pongs


@pytest.mark.parametrize("frames", [WHOLE, MIXED], ids=["whole", "fragmented too"])
async def test_any_cutting_gives_the_same(
    served: Served, frames: list[bytes], pieces: list[int], library_alone: Callable[[], None]
) -> None:
    data = b"".join(frames)
    told = {}
    for name, cut in RAGGED.items():
        del pieces[:]
        told[name] = await conversation(served, data, cut)
        assert len(pieces) >= len(cut(data + END)) // 2, "most pieces were read by themselves"
    library_alone()
    wanted = await conversation(served, data, in_one)
    assert told == dict.fromkeys(RAGGED, wanted)
    events, pongs = wanted
    assert [each["item"]["id"] for each in events if each["type"] == "conversation.item.added"] == [
        f"item_{number}" for number in ([0, 1, 2, 6, 7, 3, 4, 5, 8, 9] if frames is MIXED else range(6))
    ]
    assert [each["error"]["code"] for each in events if each["type"] == "error"] == ["binary_frame", "invalid_json"]
    between = [b"between"] * (frames is MIXED)
    assert pongs == [b"", *between, b"x" * 125, b"p", *between, b"end"]


async def test_byte_by_byte_it_is_the_same_too(
    served: Served, pieces: list[int], library_alone: Callable[[], None]
) -> None:
    data = b"".join(each for each in MIXED if len(each) < 1000)
    given = await conversation(served, data, byte_by_byte)
    assert pieces.count(1) > len(data) // 2
    library_alone()
    assert given == await conversation(served, data, in_one)


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that the library hands over."""
    seen: list[bytes] = []
    handed = Connection.send_receive_event_to_app

    def noted(self: Connection) -> None:
        seen.append(b"".join(self.frames))
        handed(self)

    monkeypatch.setattr(Connection, "send_receive_event_to_app", noted)
    return seen


async def test_whole_messages_take_the_short_way_however_they_are_cut(served: Served, long_way: list[bytes]) -> None:
    frames = [item(0), item(1, size_bytes=2), frame(b"p", PING, mask=MASK), item(2, size_bytes=8), item(3, 400)]
    for cut in CUTS.values():
        events, pongs = await conversation(served, b"".join(frames), cut)
        assert len(events) == 3 * 4
        assert pongs == [b"p", b"end"]
    assert not long_way


async def test_they_do_so_behind_a_binary_one_too(served: Served, long_way: list[bytes]) -> None:
    async with line(served.port) as client:
        await client.send(frame(b"sound", BINARY, mask=MASK))
        assert (await client.events(1))[0]["error"]["code"] == "binary_frame"
        await client.send(item(1))
        assert len(await client.events(3)) == 3
    assert long_way == [b"sound"]


# -- what is refused -----------------------------------------------------------------------------------------------------


def header(size: int, *, mask: bytes = MASK, first: int = 0x80 | TEXT) -> bytes:
    return bytes([first, 0xFF]) + struct.pack("!Q", size) + mask


def with_bits(data: bytes, bits: int) -> bytes:
    return bytes([data[0] | bits]) + data[1:]


BROKEN = {
    "no mask": (b"\x81\x05hello", 1002),
    "no mask, a long one": (b"\x81\x7e\x01\x00" + bytes(256), 1002),
    "a reserved bit": (with_bits(item(1), 0x40), 1002),
    "a reserved bit of a ping": (with_bits(frame(b"", PING), 0x10), 1002),
    "an unknown kind": (frame(b"{}", 0x3), 1002),
    "an unknown control": (frame(b"{}", 0xB), 1002),
    "one byte too large": (header(FRAME_LIMIT + 1), 1009),
    "too large, without its mask": (header(FRAME_LIMIT + 1, mask=b""), 1009),
    "a binary one too large": (header(FRAME_LIMIT + 1, first=0x80 | BINARY), 1009),
    "a size of 64 bits": (header(2**64 - 1), 1009),
    "a large ping": (frame(b"x" * 126, PING, mask=MASK), 1002),
    "a large close": (frame(struct.pack("!H", 1000) + b"x" * 124, CLOSE), 1002),
    "a ping in pieces": (frame(b"x", PING, last=False), 1002),
    "no text": (frame(b"\xff\xfe", mask=MASK), 1007),
    "half a character": (frame("é".encode()[:1]), 1007),
    "a surrogate": (frame(b'"\xed\xa0\x80"'), 1007),
    "no text in pieces": (frame(b"\xc3", last=False) + frame(b"(", CONTINUATION), 1007),
    "a continuation of nothing": (frame(b"more", CONTINUATION), 1002),
    "a message in a message": (frame(b"{", last=False) + frame(b"}"), 1002),
    "half a close code": (frame(b"\x03", CLOSE), 1002),
    "a close code that is none": (frame(struct.pack("!H", 999), CLOSE), 1002),
    "a reason that is no text": (frame(struct.pack("!H", 1000) + b"\xff", CLOSE), 1007),
}


async def refusal(served: Served, broken: bytes, cut: Cut) -> bytes:
    """The payload of the server's close frame, after which nothing comes."""
    async with line(served.port) as client:
        await client.send(item(0))
        assert len(await client.events(3)) == 3
        with contextlib.suppress(ConnectionError):
            await client.send_in(cut(broken))
        end = await client.rest()
    at = end.rindex(b"\x88")
    assert end[at + 1] == len(end) - at - 2
    return end[at + 2 :]


async def test_what_breaks_the_protocol_is_refused_as_by_the_library(
    served: Served, library_alone: Callable[[], None]
) -> None:
    told = {}
    for name, (broken, _) in BROKEN.items():
        told[name] = {
            await refusal(served, before + broken, cut) for before in (b"", item(1)) for cut in (in_one, byte_by_byte)
        }
    library_alone()
    assert told == {name: {await refusal(served, broken, in_one)} for name, (broken, _) in BROKEN.items()}
    codes = {name: {int.from_bytes(each[:2]) for each in payloads} for name, payloads in told.items()}
    assert codes == {name: {code} for name, (_, code) in BROKEN.items()}


async def test_what_follows_a_close_is_not_read(served: Served) -> None:
    async with line(served.port) as client:
        await client.send(item(1) + frame(struct.pack("!H", 1000), CLOSE, mask=MASK) + item(2))
        end = await client.rest()
    assert end.endswith(b"\x88\x02\x03\xe8")
    assert b"item_2" not in end


@pytest.mark.parametrize("half", [1, 3, 40])
async def test_a_socket_that_the_server_closes_amid_a_frame_ends_with_the_clients_close(
    served: Served, half: int
) -> None:
    """Which is found behind what is left of that frame: else the server waits for it for ten seconds."""
    began = time.monotonic()
    async with line(served.port) as client:
        await client.send(event("session.close") + item(1)[:half])
        while (await client.frames(1))[0][0] != CLOSE:
            pass
        await client.send(item(1)[half:] + item(2) + frame(struct.pack("!H", 1000), CLOSE))
        assert await client.rest() == b""
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("half", [1, 3, 40])
async def test_a_client_that_goes_amid_a_frame_is_one_that_was_lost(
    served: Served, half: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with line(served.port) as client:
        await client.send(item(1) + item(2)[:half])
        told = await client.events(3)
    async with asyncio.timeout(20):
        while served.engine.sessions.detached < 1:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert {each["item"]["id"] for each in told} == {"item_1"}
    assert not caplog.records


# -- large frames --------------------------------------------------------------------------------------------------------


async def test_a_ping_is_answered_while_a_frame_behind_it_is_not_whole(served: Served) -> None:
    async with line(served.port) as client:
        await client.send(item(1)[:9])
        await client.send(item(1)[9:] + frame(b"now", PING, mask=MASK) + item(2)[:9])
        told = await client.frames(4)
        assert (PONG, b"now") in told
        await client.send(item(2)[9:])
        assert {each["item"]["id"] for each in await client.events(3)} == {"item_2"}


async def test_a_large_frame_in_small_pieces_costs_what_it_costs_in_large_ones(
    served: Served, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying it anew at each piece would take 30 gigabytes of copies, which no machine does in a second."""
    looks, spent = 0, 0.0
    cut, read = Connection._cut, Connection.data_received

    def counted(self: Connection, data: bytes) -> None:
        nonlocal looks
        looks += 1
        cut(self, data)

    def timed(self: Connection, data: bytes) -> None:
        nonlocal spent
        began = time.thread_time()
        read(self, data)
        spent += time.thread_time() - began

    monkeypatch.setattr(Connection, "_cut", counted)
    monkeypatch.setattr(Connection, "data_received", timed)
    data = event("input_audio_buffer.append", audio="A" * 15_000_000)
    async with line(served.port) as client:
        await client.send_in(data[at : at + 4096] for at in range(0, len(data), 4096))
        await client.send(event("session.heartbeat"))
        told = await client.events(2)
    assert [each["type"] for each in told] == ["error", "session.heartbeat_ack"]
    assert len(pieces) > 1000
    assert looks < 10
    assert spent < 1

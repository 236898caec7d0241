"""Frames: what is packed comes out again however the stream is cut, and what is cut short or no frame is known for that."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_server.engine.stages.processes.framing import Frame, FrameError, Unpacker, pack

FRAMES = st.lists(st.tuples(st.binary(max_size=200), st.lists(st.binary(max_size=300), max_size=6)), max_size=5)


def unpacked(stream: bytes, cuts: list[int]) -> tuple[list[Frame], Unpacker]:
    """Read ``stream`` in pieces of the given sizes, which are used again and again."""
    unpacker = Unpacker()
    frames: list[Frame] = []
    at = turn = 0
    while at < len(stream):
        space = unpacker.space()
        count = min(len(space), cuts[turn % len(cuts)], len(stream) - at)
        space[:count] = stream[at : at + count]
        frames += unpacker.received(count)
        at, turn = at + count, turn + 1
    return frames, unpacker


@given(FRAMES, st.lists(st.integers(1, 97), min_size=1, max_size=8))
def test_what_is_packed_comes_out_however_the_stream_is_cut(
    sent: list[tuple[bytes, list[bytes]]], cuts: list[int]
) -> None:
    stream = b"".join(part for header, buffers in sent for part in pack(header, buffers))
    frames, unpacker = unpacked(stream, cuts)
    assert [(bytes(f.header), [bytes(each) for each in f.buffers]) for f in frames] == sent
    assert unpacker.between


@pytest.mark.parametrize("size", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 16) + 1, 1 << 20])
def test_large_parts_are_received_where_they_stay(size: int) -> None:
    header, buffer = bytes(range(256)) * (size // 256 + 1), b"ab" * (size // 2)
    stream = b"".join(pack(header, [buffer, b"", buffer]))
    frames, unpacker = unpacked(stream, [1 << 17])
    assert [(bytes(f.header), [bytes(each) for each in f.buffers]) for f in frames] == [(header, [buffer, b"", buffer])]
    assert unpacker.between


@given(st.binary(max_size=50), st.lists(st.binary(min_size=1, max_size=50), max_size=3), st.data())
def test_a_stream_that_is_cut_short_gives_no_frame_and_is_known(
    header: bytes, buffers: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(pack(header, buffers))
    length = data.draw(st.integers(1, len(stream) - 1)) if len(stream) > 1 else 0
    frames, unpacker = unpacked(stream[:length], [13])
    whole = length == len(stream)
    assert (len(frames), unpacker.between) == (int(whole), whole)


def test_buffers_are_sent_as_they_are_and_received_as_memory_of_their_own() -> None:
    buffer = bytearray(b"samples")
    parts = pack(b"header", [memoryview(buffer)])
    assert parts[-1].obj is buffer  # type: ignore[union-attr]
    first, second = unpacked(b"".join(parts) * 2, [1000])[0]
    first.buffers[0][:] = b"changed"
    assert second.buffers[0] == b"samples"


@pytest.mark.parametrize(
    ("prefix", "match"),
    [
        (struct.pack("<II", 1 << 31, 0), "header of 2147483648 bytes"),
        (struct.pack("<II", 1, 1 << 20), "1048576 buffers"),
        (struct.pack("<IIQ", 1, 1, 1 << 40), "buffer of 1099511627776 bytes"),
    ],
)
def test_what_cannot_be_a_frame_is_refused_before_memory_is_taken_for_it(prefix: bytes, match: str) -> None:
    with pytest.raises(FrameError, match=match):
        unpacked(prefix, [64])

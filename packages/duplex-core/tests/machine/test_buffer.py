"""The input buffer: positions in samples, so that no cut ever drifts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.machine.buffer import InputBuffer
from tests.support.machines import RATE_HZ, numbered, same_audio

STEADY = settings(derandomize=True, database=None, deadline=None)
sizes = st.integers(1, 700)


def filled(ms: float) -> InputBuffer:
    buffer = InputBuffer(RATE_HZ)
    buffer.append(numbered(0, ms))
    return buffer


def test_it_begins_empty() -> None:
    buffer = InputBuffer(RATE_HZ)
    assert (buffer.start_ms, buffer.end_ms, buffer.duration_ms) == (0.0, 0.0, 0.0)
    assert buffer.cut(0, 1000) == b""
    buffer.clear()
    assert buffer.end_ms == 0.0


def test_a_cut_is_what_lies_there() -> None:
    assert same_audio(filled(1000).cut(250, 750), 250, 750)


def test_a_cut_gives_what_is_kept() -> None:
    buffer = filled(1000)
    buffer.drop_before(400)
    assert same_audio(buffer.cut(0, 5000), 400, 1000)
    assert buffer.cut(0, 400) == b""
    assert buffer.cut(700, 600) == b""


def test_the_time_line_goes_on_after_a_clear() -> None:
    buffer = filled(1000)
    buffer.clear()
    assert (buffer.start_ms, buffer.end_ms, buffer.duration_ms) == (1000.0, 1000.0, 0.0)
    buffer.append(numbered(1000, 1100))
    assert same_audio(buffer.cut(1000, 1100), 1000, 1100)


@pytest.mark.parametrize("before_ms", [-50.0, 0.0, 1000.0, 9000.0])
def test_dropping_beyond_either_end(before_ms: float) -> None:
    buffer = filled(1000)
    buffer.drop_before(before_ms)
    assert buffer.end_ms == 1000.0
    assert buffer.start_ms == min(max(before_ms, 0.0), 1000.0)


@STEADY
@given(pieces=st.lists(st.tuples(sizes, st.floats(0.0, 1.0)), max_size=60), rate=st.sampled_from([8000, 16000, 24000]))
def test_positions_never_drift(pieces: list[tuple[int, float]], rate: int) -> None:
    """Pieces of any number of samples, with cuts and drops at any millisecond between them."""
    buffer, whole = InputBuffer(rate), bytearray()
    for number, (samples, share) in enumerate(pieces):
        piece = (number % 250 + 1).to_bytes(2, "little") * samples
        buffer.append(piece)
        whole += piece
        assert buffer.end_ms == len(whole) / 2 * 1000 / rate
        at_ms = buffer.start_ms + share * buffer.duration_ms
        position = round(at_ms * rate / 1000)
        kept = round(buffer.start_ms * rate / 1000)
        head, tail = buffer.cut(buffer.start_ms, at_ms), buffer.cut(at_ms, buffer.end_ms)
        assert bool(head + tail == whole[kept * 2 :])
        assert len(head) == (position - kept) * 2
        if number % 3 == 2:
            buffer.drop_before(at_ms)
            assert round(buffer.start_ms * rate / 1000) == position
            assert bool(buffer.cut(0, buffer.end_ms) == tail)

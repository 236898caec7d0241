"""Messages as bytes on a stream: a header and, beside it, the buffers that it speaks of.

A frame is, little endian: the header's length (32 bits), the number of buffers (32 bits), the length of each buffer (64 bits
each), the header, the buffers. Owns that layout and nothing of what a header means. Pure: it is given bytes and gives bytes.
Buffers are neither joined nor copied on the way out, and each is received where it stays. Used by :mod:`.channel`. Must never
use pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_PREFIX = struct.Struct("<II")
_MOST_HEADER = 64 << 20
_MOST_BUFFERS = 1 << 16
_MOST_BUFFER = 4 << 30
_SCRATCH = 1 << 16
_DIRECT = 1 << 14
"""From this many missing bytes on, a buffer is received in place."""

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """The stream holds something that no frame begins with, or ends within a frame; or a frame would be too large."""


def pack(header: Buffer, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """The parts of a frame, to be sent one after the other.

    Args:
        header: anything.
        buffers: flat ones of single bytes; they are part of the result as they are.

    Raises:
        FrameError: it is more than a frame may have, which the other end would take for a broken stream.
    """
    _check(len(header), [len(each) for each in buffers])
    lengths = struct.pack(f"<II{len(buffers)}Q", len(header), len(buffers), *map(len, buffers))
    return [
        lengths + header if len(header) < _SCRATCH else lengths,
        *([header] if len(header) >= _SCRATCH else []),
        *buffers,
    ]


class Frame:
    """One frame as it was received; its buffers are memory of their own, and may be written to."""

    __slots__ = ("buffers", "header")

    def __init__(self, header: bytes | bytearray, buffers: list[bytearray]) -> None:
        self.header = header
        self.buffers = buffers


class Unpacker:
    """Takes a stream apart. Whoever reads puts bytes into :meth:`space` and says how many with :meth:`received`.

    A frame that has come whole is taken out at once. One that has not is put together piece by piece: each of its parts is
    filled where it will stay, a large one by the reader itself.
    """

    def __init__(self) -> None:
        """Begin at the beginning of a frame."""
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._in_place = False
        self._lengths: list[int] | None = None
        self._parts: list[bytearray] = []
        self._fill = bytearray(_PREFIX.size)
        self._filled = 0

    @property
    def between(self) -> bool:
        """Whether the stream may end here."""
        return self._lengths is None and not self._parts and not self._filled

    def space(self) -> memoryview:
        """Where the next bytes belong."""
        self._in_place = len(self._fill) - self._filled >= _DIRECT
        return memoryview(self._fill)[self._filled :] if self._in_place else self._scratch

    def received(self, count: int) -> list[Frame]:
        """The first ``count`` bytes of :meth:`space` have come; the frames that are whole now.

        Raises:
            FrameError: that is no frame.
        """
        frames: list[Frame] = []
        if self._in_place:
            self._filled += count
            self._advance(frames)
            return frames
        at = 0
        while at < count:
            if self.between and (end := self._whole(at, count, frames)):
                at = end
                continue
            taken = min(count - at, len(self._fill) - self._filled)
            with memoryview(self._fill) as fill:
                fill[self._filled : self._filled + taken] = self._scratch[at : at + taken]
            self._filled += taken
            at += taken
            self._advance(frames)
        return frames

    def _whole(self, at: int, count: int, frames: list[Frame]) -> int:
        """Take out the frame that begins at ``at`` if all of it has come: where it ends, or 0."""
        if count - at < _PREFIX.size:
            return 0
        lengths = _lengths(self._scratch, at, count)
        if lengths is None:
            return 0
        at += _PREFIX.size + 8 * (len(lengths) - 1)
        if at + sum(lengths) > count:
            return 0
        header = bytes(self._scratch[at : at + lengths[0]])
        at += lengths[0]
        buffers = []
        for length in lengths[1:]:
            buffers.append(bytearray(self._scratch[at : at + length]))
            at += length
        frames.append(Frame(header, buffers))
        return at

    def _advance(self, frames: list[Frame]) -> None:
        """Go on to the next part, and over all that are empty."""
        while self._filled == len(self._fill):
            if self._lengths is None:
                self._begin()
            else:
                self._parts.append(self._fill)
            if self._lengths is None:
                continue
            if len(self._parts) == len(self._lengths):
                frames.append(Frame(self._parts[0], self._parts[1:]))
                self._lengths, self._parts, length = None, [], _PREFIX.size
            else:
                length = self._lengths[len(self._parts)]
            self._fill, self._filled = bytearray(length), 0

    def _begin(self) -> None:
        """The prefix is whole, or the lengths of the buffers after it are: read them, or make room for them."""
        self._lengths = _lengths(self._fill, 0, len(self._fill))
        if self._lengths is None:
            _, count = _PREFIX.unpack_from(self._fill)
            self._fill.extend(bytes(8 * count))


def _lengths(data: Buffer, at: int, end: int) -> list[int] | None:
    """The lengths of a frame's header and buffers, if those of all have come.

    Raises:
        FrameError: there is no such frame.
    """
    header, count = _PREFIX.unpack_from(data, at)
    _check(header, (), count)
    if end - at < _PREFIX.size + 8 * count:
        return None
    lengths = struct.unpack_from(f"<{count}Q", data, at + _PREFIX.size)
    _check(header, lengths)
    return [header, *lengths]


def _check(header: int, buffers: Sequence[int], count: int | None = None) -> None:
    """Refuse a frame with a header and buffers of so many bytes, or so many buffers, when that is too much.

    Raises:
        FrameError: it is.
    """
    count = len(buffers) if count is None else count
    if header > _MOST_HEADER:
        raise FrameError(
            f"a frame cannot have a header of {header} bytes, only {_MOST_HEADER}: what is large belongs into a Tensor"
        )
    if count > _MOST_BUFFERS:
        raise FrameError(f"a frame cannot have {count} buffers, one for each Tensor, only {_MOST_BUFFERS}")
    if buffers and max(buffers) > _MOST_BUFFER:
        raise FrameError(f"a frame cannot have a buffer of {max(buffers)} bytes, only {_MOST_BUFFER}")

"""One end of the socket between the server and a worker process, on an event loop.

Owns the socket, its reading and its writing; knows frames and no message. Both ends use it. What :meth:`Channel.send` is given is
with the kernel, or copied, when that returns, so that its memory may be used again. Must never block the loop, and never wait for
the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence

from duplex_server.engine.stages.processes.framing import Buffer, Frame, FrameError, Unpacker

_READS = 32
"""Reads in a row before others on the loop have their turn."""
_PARTS = 512
"""Parts that are given to the kernel at once; it takes at most 1024."""
_SMALL = 1 << 15
"""Frames up to this size are joined with others that are sent in the same turn of the loop, where that is asked for."""
_SOCKET_BYTES = 1 << 22


class Channel:
    """A stream socket with frames on it."""

    def __init__(self, sock: socket.socket, received: Callable[[Frame], None], ended: Callable[[str], None]) -> None:
        """Read from ``sock`` from now on.

        Args:
            sock: a connected stream socket; the channel owns it.
            received: is given each frame.
            ended: called once when the stream has ended or broken, with what happened; not after :meth:`close`.
        """
        self._sock = sock
        self._received = received
        self._ended = ended
        self._unpacker = Unpacker()
        self._arrived: deque[Frame] = deque()
        self._backlog: deque[memoryview] = deque()
        self._joined: list[Buffer] = []
        self._joined_bytes = 0
        self._flushing = False
        self._deaf = False
        self._over = False
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)  # as much of it as the system allows
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a frame. After the stream's end nothing happens."""
        self.flush()
        self._write(parts)

    def send_joined(self, parts: Sequence[Buffer]) -> None:
        """Send a frame with the others of this turn of the loop, at its end, when it is small; else at once."""
        size = sum(map(len, parts))
        if size > _SMALL:
            self.send(parts)
            return
        self._joined.append(b"".join(parts))
        self._joined_bytes += size
        if self._joined_bytes > 8 * _SMALL:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send now what waits for the end of the turn."""
        if self._joined:
            parts, self._joined, self._joined_bytes = self._joined, [], 0
            self._write(parts)

    def drain(self) -> None:
        """Read what there is, now: all that was sent, when the other end has been closed."""
        while not self._over and self._read():
            pass

    def finish(self, timeout_s: float) -> None:
        """Send the rest, for which this waits, and close."""
        self.flush()
        backlog = list(self._backlog)
        if not self._over:
            self._detach()
        with self._sock, contextlib.suppress(OSError):  # nobody reads any more
            self._sock.settimeout(timeout_s)
            for part in backlog:
                self._sock.sendall(part)

    def close(self) -> None:
        """Send nothing and read nothing from now on. Idempotent."""
        if not self._over:
            self._detach()
        self._sock.close()

    def _flush(self) -> None:
        self._flushing = False
        self.flush()

    def _write(self, parts: Sequence[Buffer]) -> None:
        if self._over or self._deaf:
            return
        index = 0
        if not self._backlog:
            index, parts = self._write_now(parts)
        if index >= len(parts):
            return
        if not self._backlog:
            self._loop.add_writer(self._sock, self._writable)
        self._backlog.extend(memoryview(bytes(part)) for part in parts[index:] if len(part))

    def _write_now(self, parts: Sequence[Buffer]) -> tuple[int, Sequence[Buffer]]:
        """Give the kernel what it takes: the first part that it has not taken, and the parts with that one cut."""
        index = 0
        left: list[Buffer] = list(parts)
        while index < len(left):
            try:
                sent = self._sock.sendmsg(left[index : index + _PARTS])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._deaf = True  # what the other end has sent is still read, and its end is told there
                return len(left), left
            while index < len(left) and sent >= len(left[index]):
                sent -= len(left[index])
                index += 1
            if sent:
                left[index] = memoryview(left[index])[sent:]
        return index, left

    def _writable(self) -> None:
        index, left = self._write_now(list(self._backlog))
        self._backlog = deque(memoryview(part) for part in left[index:])
        if not self._backlog:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        for _ in range(_READS):
            if self._over or not self._read():
                return

    def _read(self) -> bool:
        """Read once; whether there may be more."""
        try:
            count = self._sock.recv_into(self._unpacker.space())
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:  # it has ended without reading everything
            self._end("")
            return False
        except OSError as exc:
            self._end(f"the stream broke: {exc}")
            return False
        if not count:
            self._end("" if self._unpacker.between else "the stream ended within a frame")
            return False
        try:
            frames = self._unpacker.received(count)
        except FrameError as exc:
            self._end(str(exc))
            return False
        self._arrived.extend(frames)
        self._hand_on()
        return True

    def _hand_on(self) -> None:
        """Hand on what has arrived; when that raises, the rest a little later."""
        try:
            while self._arrived and not self._over:
                self._received(self._arrived.popleft())
        finally:
            if self._arrived and not self._over:
                self._loop.call_soon(self._hand_on)

    def _end(self, why: str) -> None:
        self._detach()
        self._ended(why)

    def _detach(self) -> None:
        self._over = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._backlog.clear()
        self._joined.clear()

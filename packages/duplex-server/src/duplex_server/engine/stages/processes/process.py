"""One worker process: started, spoken to, listened to, and certainly gone at the end.

Owns the operating system's side: the process and its group, the socket to it, the pipe with what it prints. A process's group is
killed as soon as the process itself has ended, while it still keeps its id from being given away; then it is reaped. Used by
:mod:`.replica`. Must never block the loop: one small thread a process waits for its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from duplex_server.engine.stages.processes.channel import Channel
from duplex_server.engine.stages.processes.framing import Buffer, Frame, pack
from duplex_server.engine.stages.processes.messages import FromWorker, ToWorker

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(*sys.argv[2:])"
_CHILD = "duplex_server.engine.stages.processes.child"
_LAST_LINES = 20
_LONGEST_LINE = 4096
_CLOSED_S = 2.0
"""How long a process that has closed its end of the socket may take to end."""

log = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()


class WorkerProcess:
    """A process that runs :mod:`duplex_server.engine.stages.processes.child`."""

    def __init__(
        self,
        name: str,
        received: Callable[[FromWorker, list[bytearray]], None],
        broken: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        """Start it.

        Args:
            name: for people: in the list of processes, and in the names of the loggers of what it prints.
            received: is given each message, with the buffers beside it.
            broken: called when nothing can be said to it any more; it ends soon.
            ended: called once, when the process is gone and all that it had sent has been received.

        Raises:
            OSError: the system starts no more processes.
        """
        self._received = received
        self._stream_broken = broken
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._log = logging.getLogger(f"duplex_server.stage.{name}")
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        self._lines = _Lines(self._log)
        self._gone = asyncio.Event()
        self._doom: asyncio.TimerHandle | None = None
        self._broken = ""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._process = _spawn(name, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours, self._frame, self._stream_ended)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._loop.add_reader(self._output.fileno(), self._printed)
        threading.Thread(target=self._wait, name=f"stage-{name}-wait", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its id, which is its group's as well."""
        return self._process.pid

    def send(self, message: ToWorker, buffers: list[Buffer] | None = None) -> None:
        """Send a message; to one that has ended nothing is sent."""
        self._channel.send(pack(_encoder.encode(message), buffers or ()))

    def terminate(self) -> None:
        """Ask the process to end, by signal."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and all that it has started."""
        self._signal(signal.SIGKILL)

    def doom(self, after_s: float) -> None:
        """Kill it after so long, if it has not ended by then."""
        if self._doom is None:
            self._doom = self._loop.call_later(after_s, self.kill)

    async def gone(self) -> None:
        """Wait until it is gone and everything of it has been released."""
        await self._gone.wait()

    def how_it_ended(self) -> str:
        """By a signal, or with a status."""
        code = self._process.returncode
        if code is None:
            how = "it runs"
        elif code < 0:
            how = f"it was ended by signal {-code} ({_signal_name(-code)})"
        else:
            how = f"it ended with status {code}"
        return f"{how}; {self._broken}" if self._broken else how

    def last_words(self) -> str:
        """What it printed last, in one line."""
        return self._lines.last()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _wait(self) -> None:
        """Runs on the process's own thread, until the process has ended."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it has left behind
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everyone who would be told
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        """Receive the rest and release everything, each step also when another fails."""
        with contextlib.ExitStack() as last:
            last.callback(self._ended)
            last.callback(self._gone.set)
            last.callback(self._lines.close)
            last.callback(self._output.close)
            last.callback(self._loop.remove_reader, self._output.fileno())
            last.callback(self._printed)
            last.callback(self._channel.close)
            last.callback(self._spare)
            self._channel.drain()

    def _spare(self) -> None:
        if self._doom is not None:
            self._doom.cancel()

    def _frame(self, frame: Frame) -> None:
        try:
            message = self._decoder.decode(frame.header)
        except msgspec.DecodeError as exc:
            self._broken = f"it sent what is no message: {exc}"
            self.kill()
            return
        self._received(message, frame.buffers)

    def _stream_ended(self, why: str) -> None:
        """It ends, or it cannot be spoken to any more and therefore has to."""
        self._broken = why
        self.doom(_CLOSED_S)
        self._stream_broken()

    def _printed(self) -> None:
        try:
            while data := os.read(self._output.fileno(), 1 << 16):
                self._lines.feed(data)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._output.fileno())  # at its end it would be readable for ever


_LEVELS = {b"<3>": logging.ERROR, b"<4>": logging.WARNING, b"<6>": logging.INFO, b"<7>": logging.DEBUG}


class _Lines:
    """What a process prints, as lines of the log. A line may begin with its level, as ``<3>`` and the like do for systemd."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._begun = b""
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def feed(self, data: bytes) -> None:
        *whole, self._begun = (self._begun + data).split(b"\n")
        for line in whole:
            self._tell(line)
        if len(self._begun) > _LONGEST_LINE:
            self.close()

    def close(self) -> None:
        if self._begun:
            self._tell(self._begun)
            self._begun = b""

    def last(self) -> str:
        return " | ".join(self._last)

    def _tell(self, line: bytes) -> None:
        level = _LEVELS.get(line[:3])
        text = (line if level is None else line[3:])[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()
        if text:
            self._last.append(text)
            self._log.log(logging.INFO if level is None else level, "%s", text)


def _spawn(name: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    path = [entry or os.getcwd() for entry in sys.path]
    command = [
        *(sys.executable, "-P", "-c", _BOOT.format(module=_CHILD), json.dumps(path)),
        *(str(theirs.fileno()), str(os.getpid()), name, str(log.getEffectiveLevel())),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        bufsize=0,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

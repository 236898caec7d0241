"""The entry of a worker process: it makes the runtime's driver, and speaks for it to the server.

Owns the process: its event loop, its logging, its end. Started by :mod:`.process` and by nobody else. A fault of the driver ends
the process, and says why to the server. Must never outlive the server, answer for what was aborted, or import torch or vllm by
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from duplex_core.errors import ErrorCode, ErrorInfo, error
from duplex_core.stages import Forward, StageMetrics, StageRequest, StageSpec
from duplex_server.engine.stages.loading import StageLoadError, describe, resolve
from duplex_server.engine.stages.processes import messages as say
from duplex_server.engine.stages.processes.channel import Channel
from duplex_server.engine.stages.processes.driver import Driver
from duplex_server.engine.stages.processes.framing import Buffer, Frame, FrameError, pack
from duplex_server.engine.stages.processes.payloads import PayloadError, Payloads
from duplex_server.process import run

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_REST_S = 1.0
"""How long the server may take to read what was sent last."""
_NIL = msgspec.Raw(b"\xc0")


def main(fd: str, parent: str, name: str, level: str) -> None:
    """Be a worker process until the server says that it is over, or is gone."""
    sys.argv = [name]
    _die_with(int(parent), name)
    faulthandler.enable()
    _log_to_stderr(int(level))
    sock = socket.socket(fileno=int(fd))
    sock.set_inheritable(False)
    sys.exit(run(Worker(sock).run()))


class Worker:
    """The process between its socket and its driver."""

    def __init__(self, sock: socket.socket) -> None:
        """Speak on ``sock``."""
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[say.ToWorker] = msgspec.msgpack.Decoder(say.ToWorker)
        self._over = asyncio.Event()
        self._status = 0
        self._channel: Channel
        self._driver: Driver | None = None
        self._starting: asyncio.Task[None] | None = None
        self._sink: ChildSink

    async def run(self) -> int:
        """Work until it is over; the process's status."""
        asyncio.get_running_loop().set_exception_handler(self._raised)
        self._channel = Channel(self._sock, self._frame, self._ended)
        await self._over.wait()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        if self._driver is not None:
            await self._driver.stop()
        self._channel.finish(_REST_S)
        return self._status

    def die(self, reason: str) -> None:
        """End the process, for this reason."""
        if not self._over.is_set():
            self._channel.send(pack(self._encoder.encode(say.Dead(reason))))
            self._status = 1
            self._over.set()

    def _ended(self, why: str) -> None:
        """The server is gone, or cannot be understood any more."""
        if why:
            log.error("nothing more can be received: %s", why)
            self._status = 1
        self._over.set()

    def _raised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something on the loop raised: a callback's exception is the driver's death, a forgotten task's is told only."""
        loop.default_exception_handler(context)
        if "handle" in context:
            failure = context.get("exception")
            self.die(describe(failure) if isinstance(failure, BaseException) else str(context["message"]))

    def _frame(self, frame: Frame) -> None:
        if self._over.is_set():
            return
        message = self._decoder.decode(frame.header)
        if isinstance(message, say.Start):
            self._starting = asyncio.create_task(self._start(message))
            self._starting.add_done_callback(self._started)
        elif isinstance(message, say.Ping):
            self._channel.send_joined(pack(self._encoder.encode(say.Pong())))
        elif isinstance(message, say.Stop):
            self._over.set()
        else:
            self._pass(message, frame.buffers)

    async def _start(self, message: say.Start) -> None:
        payloads = Payloads(message.spec)
        driver_class = resolve("driver", message.driver)
        self._sink = ChildSink(self, self._channel, payloads, message.spec)
        self._driver = driver_class(self._sink)
        await self._driver.start(message.spec, message.device, message.seats)
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need look at it
        self._channel.send(pack(self._encoder.encode(say.Ready())))

    def _started(self, task: asyncio.Task[None]) -> None:
        """The stage is ready, or cannot be started, or is not wanted any more."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            if isinstance(failure, StageLoadError):
                self.die(str(failure))
            else:
                log.error("the stage cannot be started", exc_info=failure)
                self.die(describe(failure))

    def _pass(self, message: say.Place | say.Release | say.Submit | say.Abort, buffers: list[bytearray]) -> None:
        """Hand a message to the driver."""
        assert self._driver is not None
        if isinstance(message, say.Submit):
            request = self._sink.begin(message, buffers)
            if request is not None:
                self._driver.submit(request)
        elif isinstance(message, say.Abort):
            self._sink.forget(message.session_id, message.request_id)
            self._driver.abort(message.session_id, message.request_id)
        elif isinstance(message, say.Place):
            self._driver.place(message.session_id)
        else:
            self._sink.forget(message.session_id, None)
            self._driver.release(message.session_id)


class _Begun:
    """A request that is open."""

    __slots__ = ("at", "key", "request")

    def __init__(self, request: StageRequest, key: int, at: float) -> None:
        self.request = request
        self.key = key
        self.at = at


class ChildSink:
    """The driver's sink (:class:`~duplex_server.engine.stages.processes.driver.Sink`): it sends what the driver tells."""

    def __init__(self, worker: Worker, channel: Channel, payloads: Payloads, spec: StageSpec) -> None:
        """Send on ``channel`` for ``worker``."""
        self._worker = worker
        self._channel = channel
        self._payloads = payloads
        self._stage = spec.name
        self._encoder = msgspec.msgpack.Encoder()
        self._open: dict[int, _Begun] = {}
        """By the identity of the request, which is held here, so that no other can have it."""

    def begin(self, message: say.Submit, buffers: list[bytearray]) -> StageRequest | None:
        """A request has come; what to hand to the driver, unless it had to be refused."""
        try:
            payload = self._payloads.decode(message.payload, buffers)
        except PayloadError:
            log.exception("request %s is not of the stage's payloads type", message.request_id)
            self._send(say.Failed(message.key, self._error("was given what is not of its payloads type"), ()))
            return None
        request = StageRequest(
            stage=self._stage,
            request_id=message.request_id,
            fence=message.fence,
            lane=message.lane,
            purpose=message.purpose,
            payload=payload,
        )
        self._open[id(request)] = _Begun(request, message.key, message.at)
        return request

    def forget(self, session_id: str, request_id: str | None) -> None:
        """One request, or all of a session's, are over for the server."""
        for identity, begun in list(self._open.items()):
            request = begun.request
            if request.fence.session_id == session_id and request_id in (None, request.request_id):
                del self._open[identity]

    def submitted_at(self, request: StageRequest) -> float:
        """When the server submitted it; now, for one that has ended."""
        begun = self._open.get(id(request))
        return time.monotonic() if begun is None else begun.at

    def output(
        self,
        request: StageRequest,
        payload: Any,
        *,
        forward: Forward | None = None,
        final: bool = False,
        metrics: tuple[StageMetrics, ...] = (),
    ) -> None:
        """Send a piece of an answer."""
        begun = self._open.get(id(request))
        if begun is None:
            return
        buffers: list[Buffer] = []
        try:
            message = say.Output(
                key=begun.key,
                at=time.monotonic(),
                payload=self._payloads.encode(payload, buffers),
                kind=None if forward is None else forward.kind,
                forward=_NIL if forward is None else self._payloads.encode(forward.payload, buffers),
                final=final,
                metrics=metrics,
            )
            self._send(message, buffers)
        except (PayloadError, FrameError):
            log.exception("what request %s put out cannot be sent", request.request_id)
            self.failed(request, self._error("failed; the server's log says why"))
            return
        if final:
            del self._open[id(request)]

    def failed(self, request: StageRequest, info: ErrorInfo, *, metrics: tuple[StageMetrics, ...] = ()) -> None:
        """Send that a request has failed."""
        begun = self._open.pop(id(request), None)
        if begun is not None:
            self._send(say.Failed(begun.key, info, metrics))

    def stats(
        self,
        gauges: Mapping[str, float],
        *,
        counts: Mapping[str, int] | None = None,
        samples: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Send measurements."""
        self._send(say.Measured(gauges=gauges, counts=counts or {}, samples=samples or {}))

    def dead(self, reason: str) -> None:
        """End the process."""
        self._worker.die(reason)

    def _send(self, message: say.FromWorker, buffers: Sequence[Buffer] = ()) -> None:
        self._channel.send_joined(pack(self._encoder.encode(message), buffers))

    def _error(self, what: str) -> ErrorInfo:
        return error(ErrorCode.ENGINE_ERROR, f"the model's stage {self._stage} {what}")


def _die_with(parent: int, name: str) -> None:
    """Be killed when the server's process is gone, and at once if it is gone already. Linux only; elsewhere the socket ends."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, f"stage {name}".encode()[:15], 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


class _Levelled(logging.Formatter):
    """Each line of a record begins with its level, as the server's reader of lines has it."""

    def format(self, record: logging.LogRecord) -> str:
        number = 3 if record.levelno >= logging.ERROR else 4 if record.levelno >= logging.WARNING else 6
        number = 7 if record.levelno < logging.INFO else number
        return "\n".join(f"<{number}>{line}" for line in super().format(record).splitlines())


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Levelled("%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])

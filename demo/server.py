"""The server of the demo: the very command that a user would type, in a process of its own, held to one core.

Owns starting it, waiting until it says that it listens, and stopping it. Called by `conversation.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_S = 180.0
STOP_S = 20.0
_LISTENING = re.compile(r"Listening on (?P<url>\S+)(?: \(model (?P<model>[^)]+)\))?")


class ServerFailed(Exception):
    """The server did not start, or did not stop as it should; the message has its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Who computes where. `None` is wherever the system likes."""

    server: frozenset[int] | None
    client: frozenset[int] | None

    @property
    def told(self) -> str:
        """One clause for the reader of the figures."""
        if self.server is None:
            return f"the server is not pinned (this system cannot do it); the machine has {os.cpu_count()} cores"
        if self.client is None:
            return "the server and this client share the machine's only core"
        return f"the server has one core (number {min(self.server)}); this client runs on the others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that listens."""

    url: str
    model: str
    cores: Cores
    start_s: float


def share_cores() -> Cores:
    """Give the last core to the server and the others to this process; as far as this system can."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(server=None, client=None)
    usable = os.sched_getaffinity(0)
    last = frozenset({max(usable)})
    rest = frozenset(usable - last)
    if rest:
        os.sched_setaffinity(0, rest)
    return Cores(server=last, client=rest or None)


def command() -> str:
    """Where `duplex-server` is: beside this interpreter, or on the path.

    Raises:
        ServerFailed: it is not installed.
    """
    beside = Path(sys.executable).with_name("duplex-server")
    found = str(beside) if beside.exists() else shutil.which("duplex-server")
    if found is None:
        raise ServerFailed("duplex-server is not installed here; run `nox -s demo`, which installs what the demo needs")
    return found


@asynccontextmanager
async def serving(log: Path, options: list[str]) -> AsyncIterator[Running]:
    """Run `duplex-server serve --port 0` while the context lasts; what it prints goes to `log`.

    Raises:
        ServerFailed: it did not begin to listen within three minutes, or did not end well when told to.
    """
    cores = share_cores()
    loop = asyncio.get_running_loop()
    started = loop.time()
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(command(), "serve", "--port", "0", *options), stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        if cores.server is not None:
            os.sched_setaffinity(process.pid, cores.server)
        draining: asyncio.Task[None] | None = None
        try:
            url, model = await _listening(process, log)
            draining = asyncio.create_task(_drain(process))
            yield Running(url=url, model=model, cores=cores, start_s=loop.time() - started)
        except BaseException:
            await _stop(process)
            raise
        finally:
            if draining is not None:
                draining.cancel()
        status = await _stop(process)
    if status != 0:
        raise ServerFailed(f"the server ended with status {status} when it was told to stop. {_last_words(log)}")


async def _listening(process: asyncio.subprocess.Process, log: Path) -> tuple[str, str]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            while line := await process.stdout.readline():
                if found := _LISTENING.search(line.decode(errors="replace")):
                    return found["url"], found["model"] or "unknown"
    except TimeoutError:
        raise ServerFailed(f"the server did not begin to listen within {START_S:g} s. {_last_words(log)}") from None
    raise ServerFailed(f"the server ended with status {await process.wait()} at its start. {_last_words(log)}")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.readline():
        pass


async def _stop(process: asyncio.subprocess.Process) -> int:
    _tell(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            return await process.wait()
    except TimeoutError:
        _tell(process, signal.SIGKILL)
    return await process.wait()


def _tell(process: asyncio.subprocess.Process, what: signal.Signals) -> None:
    """Send a signal, unless the process has ended.

    Not by the process's own method: that one looks first whether it has ended, and takes its status from asyncio then.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, what)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"Its last words ({log}):\n" + "\n".join(lines[-12:]) if lines else "It said nothing."

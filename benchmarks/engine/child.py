"""The measured process as its parent sees it: started, read, stopped.

Owns the child process and every figure that is read off it from outside: processor time of all its threads, memory. Called by
:mod:`benchmarks.engine.rounds`. Linux only, as pinning is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
STOP_S = 10.0


class Child:
    """A running server. ``host`` and ``port`` are where it listens, ``pid`` is for profilers."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        """Hold a process that has said where it listens."""
        self.pid = process.pid
        self.host = str(urlsplit(address).hostname)
        self.port = int(urlsplit(address).port or 0)

    def cpu_s(self) -> float:
        """Processor time of the process so far, user and system, all threads, in seconds; to the nanosecond.

        The clock's number is what ``clock_getcpuclockid(3)`` makes of a process id.
        """
        return time.clock_gettime((~self.pid << 3) | 2)

    def waited_s(self) -> float:
        """How long the main thread could have run and was not let, because others had the core, in seconds."""
        _, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()
        return int(waited) / 1e9

    def resident_bytes(self) -> int:
        """Memory that the process holds and does not share with others."""
        sizes: dict[str, int] = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
            name, _, size = line.partition(":")
            sizes[name] = int(size.split()[0]) * 1024
        return sizes["Private_Clean"] + sizes["Private_Dirty"]


@contextlib.asynccontextmanager
async def running(kind: str, *, core: int) -> AsyncIterator[Child]:
    """Start a server of ``kind`` on ``core`` and end it with the block.

    Raises:
        RuntimeError: it did not start; its own message is on stderr.
    """
    command = [sys.executable, "-m", "benchmarks.engine.server", kind, "--core", str(core)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=environment)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise RuntimeError(f"the {kind} server ended before it listened")
        yield Child(process, address)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

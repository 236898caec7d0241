"""A server in a process of its own, which must live through everything.

Used by the long run and by the tests. Never ends a process that it did not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

LISTENING = re.compile(r"Listening on http://(?P<address>\S+) ")
COMMAND = "from duplex_server.cli import main; main()"


class ServerFailed(AssertionError):
    """It did not start, did not live, or complained of itself."""


@contextlib.asynccontextmanager
async def server(log: Path, *options: str) -> AsyncIterator[str]:
    """Run ``duplex-server serve echo`` on a free port; its `host:port`. Afterwards it must end well.

    Args:
        log: where what it writes goes.
        options: more of its command line.

    Raises:
        ServerFailed: it did not start, it died, or there is a traceback in its log.
    """
    arguments = ["serve", "echo", "--port", "0", "--detector", "energy", *options]

    def said() -> str:
        return log.read_text(encoding="utf-8")

    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(  # noqa: ASYNC220 - our own command, awaited below
            [sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            found = LISTENING.search(line)
            if found is None:
                raise ServerFailed(f"the server did not start: {said()[-2000:]}")
            yield found["address"]
            if process.poll() is not None:
                raise ServerFailed(f"the server died with status {process.returncode}")
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.communicate, timeout=40)
    if process.returncode != 0 or "Traceback" in said():
        raise ServerFailed(f"the server ended with status {process.returncode}: {said()[-4000:]}")

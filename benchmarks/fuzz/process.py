"""A server in a process of its own, which must live through everything.

Used by the long run and by the tests. Never ends a process that it did not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

LISTENING = re.compile(r"Listening on http://(?P<address>\S+) ")
COMMAND = "from duplex_server.cli import main; main()"


SETTLE_S = 30.0
"""How long a session may take to end once its client has hung up, on a busy machine."""


class ServerFailed(AssertionError):
    """It did not start, did not live, kept a session, or complained of itself."""


def _empty(address: str) -> None:
    """Wait until the server has no session.

    Raises:
        ServerFailed: it still has one after :data:`SETTLE_S`.
    """
    until = time.monotonic() + SETTLE_S
    while True:
        with urllib.request.urlopen(f"http://{address}/health", timeout=SETTLE_S) as answer:
            health: dict[str, Any] = json.load(answer)
        if health["sessions"] == 0:
            return
        if time.monotonic() > until:
            raise ServerFailed(f"nobody is there any more, and the server has sessions: {health}")
        time.sleep(0.1)


@contextlib.asynccontextmanager
async def server(log: Path, *options: str) -> AsyncIterator[str]:
    """Run ``duplex-server serve echo`` on a free port; its `host:port`. Afterwards no session may be left, and it must end well.

    Args:
        log: where what it writes goes.
        options: more of its command line.

    Raises:
        ServerFailed: it did not start, it died, it holds a session whose client is gone, or there is a traceback in its log.
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
            await asyncio.to_thread(_empty, found["address"])
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.communicate, timeout=40)
    if process.returncode != 0 or "Traceback" in said():
        raise ServerFailed(f"the server ended with status {process.returncode}: {said()[-4000:]}")

"""A real server for the conversations: the command that a user types, in a process that cannot reach the network.

The server runs with every address but the loopback's refused, so that each conversation here also shows that nothing is
fetched at run time.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm
from tests.conversations.offline import ATTEMPT

LISTENING = re.compile(r"Listening on http://(?P<address>\S+) ")
OFFLINE = Path(__file__).with_name("offline.py")


def start(*options: str) -> tuple[subprocess.Popen[str], str]:
    """Start `duplex-server serve` on a free port; the process and its `host:port`."""
    process = subprocess.Popen(
        [sys.executable, str(OFFLINE), "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = LISTENING.search(line)
    if found is None:
        _, errors = process.communicate(timeout=30)
        raise AssertionError(f"the server said {line!r} and then {errors[-2000:]}")
    return process, found["address"]


def stop(process: subprocess.Popen[str]) -> None:
    """Tell the server to stop, as an operator would; it must end well."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors[-2000:]
    assert "Traceback" not in errors, errors[-4000:]
    assert errors.count(ATTEMPT) == 1, (
        "the server reached out to the network (the first attempt is the hook's own test)"
    )


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """`host:port` of a server of the embedded default model."""
    process, address = start()
    yield address
    stop(process)


@pytest.fixture(scope="session")
def say() -> dict[str, bytes]:
    """Lines of the scripted user at the session's rate, spoken by the second voice."""
    from model_cascade.parts.voices import load_voice

    voice = load_voice("nano-gb")
    lines = {
        "capital": "What is the capital of France?",
        "story": "Please tell me a long story about a dog.",
        "stop": "Please stop and tell me the color of the sky.",
        "weather": "What is the weather in Paris?",
    }
    return {
        name: resample_pcm(voice.synthesize(text).tobytes(), voice.sample_rate_hz, SESSION_RATE_HZ)
        for name, text in lines.items()
    }

"""What the pages on the Python client and on getting started show is run as it stands there."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from demo.user import spoken
from duplex_client.audio import SESSION_RATE_HZ, write_wav
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, address_of, listen

pytestmark = pytest.mark.slow

TEXTS = {
    "question": "What is the capital of France, and what is the capital of Germany?",
    "second": "Please stop talking to me now.",
}

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "client.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


BLOCKS = blocks(PAGE)
SCRIPTS = blocks(DOCS / "getting-started.md")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with DuplexOmni.start("echo") as engine:
        listener, ready = listen("127.0.0.1", 0), asyncio.Event()
        with listener:
            server = Server(create_app(engine), ready.set)
            serving = asyncio.create_task(server.serve([listener]))
            await ready.wait()
            yield address_of(listener)
            assert engine.sessions.taken == 0
            server.should_exit = True
            await serving


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) == 5
    assert len(SCRIPTS) == 3


@pytest.fixture(scope="module")
def spoken_lines() -> dict[str, bytes]:
    return {name: line.pcm for name, line in zip(TEXTS, spoken(list(TEXTS.items())), strict=True)}


@pytest.fixture
def question(tmp_path: Path, spoken_lines: dict[str, bytes]) -> Path:
    path = tmp_path / "demo-out" / "question.wav"
    write_wav(path, np.frombuffer(spoken_lines["question"], dtype="<i2"), SESSION_RATE_HZ)
    return path


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
async def test_the_pages_examples_run(block: str, url: str, question: Path, spoken_lines: dict[str, bytes]) -> None:
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    (example,) = [each for each in names.values() if inspect.iscoroutinefunction(each)]
    wanted = inspect.signature(example, eval_str=True).parameters
    given = {
        "url": url,
        "question": spoken_lines["question"],
        "second": spoken_lines["second"],
        "folder": question.parent,
    }
    if "folder" in wanted:
        given["question"] = question
    said = await example(**{name: given[name] for name in wanted})
    if "second" in wanted:
        interrupted, played_ms = said
        assert interrupted
        assert 500.0 <= played_ms < 5000.0
    elif "folder" in wanted:
        assert "You said" in said
        assert soundfile.info(question.parent / "answer-1.wav").duration > 0.5
    else:
        assert said is None or "You said" in said


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
async def test_getting_starteds_examples_run(script: str, url: str, question: Path) -> None:
    """As programs of their own, in a folder with what the demo leaves."""
    ADDRESS = "ws://127.0.0.1:8000"
    assert (ADDRESS in script) == ("Inline" not in script)
    program = script.replace(ADDRESS, url.replace("http://", "ws://"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program, cwd=question.parents[1], stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    assert len(out.decode().split()) >= 2
    if "WavSink" in script:
        assert soundfile.info(question.parent / "heard-1.wav").duration > 0.5

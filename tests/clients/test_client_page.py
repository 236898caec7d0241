"""What the page on the Python client shows is run as it stands there."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from demo.user import spoken
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, address_of, listen

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


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
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
async def test_the_pages_examples_run(block: str, url: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    (example,) = [each for each in names.values() if inspect.iscoroutinefunction(each)]
    (line,) = spoken([("question", "What is the capital of France?")])
    given = {"url": url, "question": line.pcm}
    wanted = inspect.signature(example).parameters
    said = await example(**{name: given[name] for name in wanted})
    assert said is None or "You said" in said

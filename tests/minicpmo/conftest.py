"""One server for all conversations of this folder: starting four stages takes most of a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.minicpmo.served import serving, write_talking
from tests.support.serving import Served

TURN = (
    "I heard every word of that",
    " and shall answer slowly so nobody",
    " gets lost on the way,",
    " then tell you what comes next",
    " before it all ends,",
    " which will be soon now,",
    " unless somebody has more questions",
    " about things we left out",
    " while going through them.",
)
"""What the checkpoint says in a turn, unit by unit: about a second each."""
WRITTEN = "Here is one written reply."


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that holds conversations."""
    return write_talking(tmp_path_factory.mktemp("minicpmo") / "checkpoint", TURN, WRITTEN)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    """Its server, with three sessions' and one chat's seats on each stage."""
    async with serving(checkpoint, sessions=3) as server:
        yield server

"""One server for all conversations of this folder, since starting four stages takes most of a minute; and where the goldens are.

Called by pytest; holds no test and no test's expectations. The golden data is looked for as by the package's own tests.
"""

from __future__ import annotations

import os
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
    " unless somebody has questions.",
)
"""What the checkpoint says in a turn, unit by unit: about a second each."""
WRITTEN = "Here is one written reply."
BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[3] / "shared" / "goldens"


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder of MiniCPM-o's golden data; where there is none the test is skipped, or fails where it is required."""
    folder = Path(os.environ.get("DUPLEX_GOLDENS") or BESIDE_THE_REPOSITORY) / "minicpmo"
    if not (folder / "checkpoint" / "config.json").is_file():
        missing = f"no golden data: {folder}/checkpoint does not exist; set DUPLEX_GOLDENS to the folder of all goldens"
        if os.environ.get("DUPLEX_REQUIRE_GOLDENS", "") not in {"", "0"}:
            pytest.fail(missing)
        pytest.skip(missing)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that holds conversations."""
    return write_talking(tmp_path_factory.mktemp("minicpmo") / "checkpoint", TURN, WRITTEN)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    """Its server, with three sessions' and one chat's seats on each stage."""
    async with serving(checkpoint, sessions=3) as server:
        yield server

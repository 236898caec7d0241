"""Fixtures for the tests of this package: where the golden data is. Called by pytest; holds no test and no test's expectations.

The golden data, recorded with the vendor's reference code on a tiny checkpoint, is not part of the repository. It is looked for
where `DUPLEX_GOLDENS` says, else in `shared/goldens` beside the repository. Where it is absent a test that needs it is skipped
and says so; with `DUPLEX_REQUIRE_GOLDENS=1`, as in CI, it fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER_VARIABLE = "DUPLEX_GOLDENS"
REQUIRE_VARIABLE = "DUPLEX_REQUIRE_GOLDENS"
BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[4] / "shared" / "goldens"


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder of MiniCPM-o's golden data: `checkpoint/`, `inputs/`, and one folder a run."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or BESIDE_THE_REPOSITORY) / "minicpmo"
    if not (folder / "checkpoint" / "config.json").is_file():
        missing = (
            f"no golden data: {folder}/checkpoint does not exist; set {FOLDER_VARIABLE} to the folder of all goldens"
        )
        if os.environ.get(REQUIRE_VARIABLE, "") not in {"", "0"}:
            pytest.fail(missing)
        pytest.skip(missing)
    return folder

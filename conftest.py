"""Fixtures for the tests of every package. Called by pytest; holds no test and no test's expectations."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support import clips as speech
from tests.support.drawing import leave_other_modules_out

leave_other_modules_out()


@pytest.fixture(scope="session")
def clips() -> list[speech.Clip]:
    """Recorded human speech with transcripts; without it the test is skipped, or fails where CI requires it."""
    try:
        return speech.load()
    except speech.ClipsMissing as missing:
        if speech.required():
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is marked ``engines`` where torch is not installed: it could not even be imported.

    A module carries the mark itself; a folder whose ``conftest.py`` imports torch has nothing else in it.
    """
    if importlib.util.find_spec("torch") is not None:
        return None
    if collection_path.is_dir():
        shared = collection_path / "conftest.py"
        return (shared.is_file() and "\nimport torch\n" in shared.read_text(encoding="utf-8")) or None
    return (collection_path.suffix == ".py" and "pytest.mark.engines" in collection_path.read_text("utf-8")) or None

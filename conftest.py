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
    """Leave out the modules marked ``engines`` where torch is not installed: they could not even be imported."""
    if collection_path.suffix != ".py" or importlib.util.find_spec("torch") is not None:
        return None
    return "pytest.mark.engines" in collection_path.read_text(encoding="utf-8") or None

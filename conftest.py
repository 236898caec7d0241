"""Fixtures for the tests of every package. Called by pytest; holds no test and no test's expectations."""

from __future__ import annotations

import pytest

from tests.support import clips as speech


@pytest.fixture(scope="session")
def clips() -> list[speech.Clip]:
    """Recorded human speech with transcripts; without it the test is skipped, or fails where CI requires it."""
    try:
        return speech.load()
    except speech.ClipsMissing as missing:
        if speech.required():
            pytest.fail(str(missing))
        pytest.skip(str(missing))

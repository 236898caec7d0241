"""Fixtures of the field cases: servers of echo and of the model whose stage waits for the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.serving import Served, serving
from tests.support.stages import Gated, gated_model


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server of echo."""
    async with serving(max_sessions=4) as running:
        yield running


@pytest.fixture
def gated() -> Gated:
    """A model that says ``hold`` until it is let go."""
    return gated_model(concurrency=2)


@pytest.fixture
async def held(gated: Gated) -> AsyncIterator[Served]:
    """A server of that model."""
    async with serving(gated.spec, max_sessions=4) as running:
        yield running

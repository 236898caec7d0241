"""Fixtures of the server's tests: an engine around a small model, a listening server, a client of the wire.

Owns no expectation; the parts stand in :mod:`tests.support.serving` and :mod:`tests.support.stages`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest

from duplex_core.spec import ModelSpec
from duplex_core.testing.speech import burst, silence
from duplex_server.engine.omni import DuplexOmni
from tests.support import stages as stages_module
from tests.support.serving import PARROT, Served, engine_of, serving


@pytest.fixture
def stages() -> ModuleType:
    """The module of the tests' own model and stage."""
    return stages_module


@pytest.fixture
def gated() -> Any:
    """A model whose stage does what its text says, and the gate of that stage."""
    return stages_module.gated_model()


@pytest.fixture
def parrot() -> ModelSpec:
    return PARROT


@pytest.fixture(name="engine_of")
def _engine_of() -> Callable[..., contextlib.AbstractAsyncContextManager[DuplexOmni]]:
    return engine_of


@pytest.fixture(name="serving")
def _serving() -> Callable[..., contextlib.AbstractAsyncContextManager[Served]]:
    return serving


@pytest.fixture
async def engine() -> AsyncIterator[DuplexOmni]:
    async with engine_of() as running:
        yield running


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(max_sessions=4) as running:
        yield running


@pytest.fixture
def speech() -> bytes:
    """Half a second of what goes for speech, 16-bit mono PCM at 24 kHz, the format that a session begins with."""
    return burst(500, 24_000)


@pytest.fixture
def quiet() -> bytes:
    """A second of silence at 24 kHz."""
    return silence(1000, 24_000)

"""Two stages on vLLM, started once for all tests of this folder: a start costs many seconds."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.support import vllm_pipeline as pipeline
from tests.support.vllm_driven import Driven


class Checkpoints(NamedTuple):
    thinker: Path
    talker: Path


class Stages(NamedTuple):
    thinker: Driven
    talker: Driven


@pytest.fixture(scope="session", autouse=True)
def let_go() -> Iterator[None]:
    """Collect at the very end what vLLM leaves to the collector, whose warnings are vLLM's."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """A random thinker and a random talker."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return Checkpoints(
        pipeline.make_checkpoint(folder / "thinker", pipeline.THINKER_TOKENS, 0),
        pipeline.make_checkpoint(folder / "talker", pipeline.TALKER_TOKENS, 1),
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stages(checkpoints: Checkpoints) -> AsyncIterator[Stages]:
    """Both, each with four sessions' and one chat's seats, in this process."""
    running = Stages(Driven("thinker"), Driven("talker"))
    try:
        await running.thinker.start(checkpoints.thinker, decider="tests.support.vllm_pipeline:Inverse")
        await running.talker.start(checkpoints.talker)
        yield running
    finally:
        for each in running:
            await each.stop()

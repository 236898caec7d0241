"""A thinker and a talker on vLLM equal transformers: tokens exactly, hidden states to 1e-4."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from duplex_core.workers import Append, Sampling
from tests.support import vllm_pipeline as pipeline

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="session")]

CLOSE = 1e-4


def turn(rng: random.Random, *, hidden: bool = True, tokens: int | None = None) -> Append:
    """A turn's append: some ids, and sometimes embeddings among them."""
    ids = [rng.randrange(pipeline.THINKER_TOKENS) for _ in range(rng.randint(2, 7))]
    return Append(ids=ids, sampling=Sampling(max_tokens=tokens or rng.randint(1, 5)), hidden=hidden)


class Expected:
    """What transformers makes of the same turns: the thinker, and the talker that is fed its hidden states."""

    def __init__(self, checkpoints: Any) -> None:
        self.thinker = pipeline.Reference(checkpoints.thinker)
        self.talker = pipeline.Reference(checkpoints.talker)

    def turn(self, append: Append) -> tuple[list[int], Any]:
        return self.thinker.append(append)

    def speech(self, speak: pipeline.Speak) -> list[int]:
        return self.talker.append(pipeline.spoken(speak.hidden))[0]


def close(hidden: Any, wanted: Any) -> bool:
    given = np.asarray(hidden)
    return given.shape == tuple(wanted.shape) and bool(np.abs(given - wanted.numpy()).max() < CLOSE)


async def test_ten_turns_equal_transformers(stages: Any, checkpoints: Any) -> None:
    rng, expected = random.Random(1), Expected(checkpoints)
    for each in stages:
        each.driver.place("ten")
    for _ in range(10):
        append = turn(rng)
        thought = await stages.thinker.ask("ten", pipeline.Work(appends=(append,), speak=True))
        (segment,), (speak,) = thought.segments, thought.forwards
        ids, hidden = expected.turn(append)
        assert list(segment.ids) == ids
        assert close(segment.hidden, hidden)
        assert segment.fed == len(hidden)
        assert segment.context == len(expected.thinker.context)
        spoken = await stages.talker.ask("ten", speak)
        assert list(spoken.segments[0].ids) == expected.speech(speak)
    for each in stages:
        each.driver.release("ten")

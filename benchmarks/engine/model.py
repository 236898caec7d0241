"""The free model: it speaks all the time, from sound that was made beforehand, and costs next to nothing.

A model package as any other, so that the server runs the same code for it as for a real model, and what is measured is the
server. It hears everything and opens its turns itself: with the first audio, and again 1.5 s after it was interrupted. A turn
never ends by itself; a piece of 100 ms goes out every 100 ms. Registered by :mod:`benchmarks.engine.server`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic

from benchmarks.engine.sound import PIECE_MS, babble, pieces
from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.config import SessionConfig
from duplex_core.fence import Fence
from duplex_core.hookspecs import hookimpl
from duplex_core.model import (
    AudioArrived,
    BeginTurn,
    Configured,
    Deadline,
    Interrupted,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    WakeAt,
)
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan

INPUT_HZ = 16000
"""What it hears, so that the server resamples what clients send."""
OUTPUT_HZ = 24000
"""What it says: what clients get."""
AGAIN_MS = 1500.0
"""How long it is silent after an interruption."""
SPEAK = "speak"
AGAIN = "again"

_SOUND = pieces(babble(OUTPUT_HZ, 1.0), OUTPUT_HZ)


class FreeSession:
    """One conversation with the free model."""

    def __init__(self) -> None:
        """Begin silent."""
        self._fence: Fence | None = None
        self._turn: Fence | None = None
        self._silenced = False
        self._due_ms = 0.0
        self._said = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case AudioArrived(fence=fence):
                self._fence = fence
                return () if self._turn is not None or self._silenced else self._begin(now_ms)
            case Deadline(key=key):
                return self._speak() if key == SPEAK else self._begin(now_ms)
            case Interrupted(fence=fence):
                self._fence, self._turn, self._silenced = fence, None, True
                return (WakeAt(key=SPEAK, at_ms=None), WakeAt(key=AGAIN, at_ms=now_ms + AGAIN_MS))
            case Respond(fence=fence):
                self._fence = self._turn = fence
                self._due_ms = now_ms
                return self._speak()
            case Configured(fence=fence):
                self._fence = fence
            case _:
                pass  # whatever else is said to it, it goes on speaking
        return ()

    def _begin(self, now_ms: float) -> Sequence[ModelOutput]:
        assert self._fence is not None, "the configuration comes before anything else"
        self._silenced = False
        self._fence = self._turn = self._fence.next_turn()
        self._due_ms = now_ms
        return (BeginTurn(fence=self._turn), *self._speak())

    def _speak(self) -> Sequence[ModelOutput]:
        if self._turn is None:
            return ()
        pcm = _SOUND[self._said % len(_SOUND)]
        self._said += 1
        self._due_ms += PIECE_MS
        return (Speak(fence=self._turn, pcm=pcm), WakeAt(key=SPEAK, at_ms=self._due_ms))


def _capabilities(deploy: pydantic.BaseModel) -> Capabilities:
    return Capabilities(turn_policy=TurnPolicy.MODEL, input_rate_hz=INPUT_HZ, output_rate_hz=OUTPUT_HZ)


def _session_config(deploy: pydantic.BaseModel) -> SessionConfig:
    return SessionConfig(model="free", turn_detection=None)


def _stage_plan(checkpoint: Checkpoint, deploy: pydantic.BaseModel) -> StagePlan:
    return StagePlan(stages=())


def _create_session(context: SessionContext) -> FreeSession:
    return FreeSession()


FREE = ModelSpec(
    id="free",
    summary="speaks all the time at no cost; for measuring the server",
    claims=lambda checkpoint: False,
    claims_text="only the name free",
    capabilities=_capabilities,
    session_config=_session_config,
    stage_plan=_stage_plan,
    create_session=_create_session,
    max_sessions=1000,
)
"""The free model."""


@hookimpl
def duplex_register_models() -> list[ModelSpec]:
    """Offer the free model."""
    return [FREE]

"""The settings of native: of all of it, and of one session. Validated by the engine, before a session sees them."""

from __future__ import annotations

import pydantic


class NativeSettings(pydantic.BaseModel):
    """The deploy settings.

    Attributes:
        unit_ms: how long the units are in which native hears and speaks, in ms.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    unit_ms: float = pydantic.Field(default=1000.0, ge=80.0, le=2000.0)


class NativeOptions(pydantic.BaseModel):
    """What ``session.options`` may hold: the script of the decisions.

    Attributes:
        silence_ms: how long the user must have been silent, after speech, for native to answer unasked, in ms.
        turn_units: how many units an answer lasts.
        forced_listen: so many units at the session's beginning are listened to, whatever is in them.
        patience_ms: for how long after the last audio native goes on listening to silence, when nobody waits for it, in ms.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    silence_ms: float = pydantic.Field(default=600.0, ge=0.0, le=10_000.0)
    turn_units: int = pydantic.Field(default=3, ge=1, le=60)
    forced_listen: int = pydantic.Field(default=0, ge=0, le=60)
    patience_ms: float = pydantic.Field(default=3000.0, ge=0.0, le=60_000.0)

"""The settings of echo: of all of it, and of one session. Validated by the engine, before a session sees them."""

from __future__ import annotations

import pydantic


class EchoSettings(pydantic.BaseModel):
    """The deploy settings.

    Attributes:
        transcribes: whether echo says of the user's speech how long it was, in the place of a transcript. Without it echo
            transcribes nothing, and a transcriber may.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    transcribes: bool = True


class EchoOptions(pydantic.BaseModel):
    """What ``session.options`` may hold.

    Attributes:
        chunk_ms: how long the pieces are in which an answer is spoken, in ms.
        pace: how long a piece takes to be given out, as a share of how long it sounds: 1 is real time, 0 is all at once.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    chunk_ms: float = pydantic.Field(default=100.0, ge=20.0, le=1000.0)
    pace: float = pydantic.Field(default=1.0, ge=0.0, le=2.0)

"""What the server and a worker process say to each other.

Owns the messages and nothing of how they travel (:mod:`.framing`). Payloads are encoded by :mod:`.payloads` before and stand here
as they are. Both ends are of one version, so the fields may change freely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence
from duplex_core.stages import Lane, LinkKind, Purpose, StageMetrics, StageSpec
from duplex_server.engine.stages.processes.driver import Seats


class Start(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="start"):
    """The first message: be this stage's replica. ``driver`` is the import path of the runtime's driver."""

    spec: StageSpec
    driver: str
    device: str
    seats: Seats


class Place(msgspec.Struct, frozen=True, array_like=True, tag="place"):
    """A session or a chat request begins."""

    session_id: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """It has ended."""

    session_id: str


class Submit(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="submit"):
    """A request. ``key`` names it in what comes back: no two requests to a process have the same.

    ``at`` is when it was submitted, in seconds of the machine's monotonic clock.
    """

    key: int
    at: float
    request_id: str
    fence: Fence
    lane: Lane
    purpose: Purpose
    payload: msgspec.Raw


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Stop one request, or all of a session's."""

    session_id: str
    request_id: str | None


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Are you there?"""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """End."""


ToWorker = Start | Place | Release | Submit | Abort | Ping | Stop


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Everything is loaded."""


class Output(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="output"):
    """One piece of an answer. ``forward`` is a payload for the links of kind ``kind``, where that is not ``None``.

    ``at`` is when it was sent, in seconds of the machine's monotonic clock.
    """

    key: int
    at: float
    payload: msgspec.Raw
    kind: LinkKind | None
    forward: msgspec.Raw
    final: bool
    metrics: tuple[StageMetrics, ...]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A request ended without its final output."""

    key: int
    error: ErrorInfo
    metrics: tuple[StageMetrics, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="measured"):
    """What the driver measured since it last told."""

    gauges: Mapping[str, float]
    counts: Mapping[str, int]
    samples: Mapping[str, Sequence[float]]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Here."""


class Dead(msgspec.Struct, frozen=True, array_like=True, tag="dead"):
    """The process ends now, for this reason. Before ``Ready`` it is the sentence that the user is told."""

    reason: str


FromWorker = Ready | Output | Failed | Measured | Pong | Dead

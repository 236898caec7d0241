"""What the stages did for each answer: gathered from their replies, told with ``response.done``, once.

Owns which work belongs to which answer. Used by :class:`~duplex_core.machine.exchange.Exchange`, through which all of that
passes. Measures nothing itself and decides nothing.

Work belongs to the answer under whose turn it was asked for. Output-lane work that was begun ahead, under the turn before, and
is still wanted when the answer opens belongs to it too; its times then lie before ``response.created`` and are negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from duplex_core.events import Event, ResponseCreated, ResponseDone
from duplex_core.stage_metrics import merged, moved
from duplex_core.stages import Lane, StageMetrics, StageReply, StageRequest

_ENDS_OF_ANSWERS = (ResponseCreated, ResponseDone)

Known = Callable[[StageRequest], tuple[StageMetrics, ...]]
"""What has been done so far for a request that is open, one entry a stage."""


class Spending:
    """Of one session. What is kept is bounded: an entry for each stage, lane and turn since the last answer."""

    def __init__(self, known: Known) -> None:
        """Begin with nothing done; ``known`` is asked about work that is open when its answer ends."""
        self._known = known
        self._open: dict[tuple[str, str], tuple[StageRequest, float]] = {}
        self._done: dict[tuple[int, Lane], tuple[StageMetrics, ...]] = {}
        self._answer: tuple[int, float] | None = None

    def submitted(self, request: StageRequest, now_ms: float) -> None:
        """Work is about to be given to a stage."""
        self._open[request.stage, request.request_id] = (request, now_ms)

    def ended(self, reply: StageReply) -> None:
        """The last reply to a request has come."""
        request, begun_ms = self._open.pop((reply.stage, reply.request_id), (None, 0.0))
        if request is not None:
            self._count(request, moved(reply.metrics, begun_ms))

    def stopped(self, requests: Iterable[StageRequest], *, by_model: bool = False) -> None:
        """Requests are about to be aborted. One that the model does without, before there is an answer, is nobody's."""
        for request in requests:
            _, begun_ms = self._open.get((request.stage, request.request_id), (None, 0.0))
            wanted = self._answer is not None and (not by_model or request.fence.turn == self._answer[0])
            if wanted and (request.stage, request.request_id) in self._open:
                self._count(request, moved(self._known(request), begun_ms))
            self._open.pop((request.stage, request.request_id), None)

    def complete(self, event: Event, now_ms: float) -> Event:
        """``event`` as it goes out: the end of an answer with what the stages did for it."""
        if not isinstance(event, _ENDS_OF_ANSWERS):
            return event
        if isinstance(event, ResponseCreated):
            self._answer = (event.turn_id, now_ms)
            return event
        if event.metrics is None or self._answer is None:
            return event
        turn, begun_ms = self._answer
        self.stopped(
            [request for request, _ in self._open.values() if _belongs(request.fence.turn, request.lane, turn)]
        )
        spent = [each for (made, lane), done in self._done.items() if _belongs(made, lane, turn) for each in done]
        self._done.clear()
        self._answer = None
        stages = tuple(map(_rounded, merged(moved(spent, -begun_ms))))
        return msgspec.structs.replace(event, metrics=msgspec.structs.replace(event.metrics, stages=stages))

    def _count(self, request: StageRequest, metrics: tuple[StageMetrics, ...]) -> None:
        key = (request.fence.turn, request.lane)
        self._done[key] = merged([*self._done.get(key, ()), *metrics])


def _belongs(made: int, lane: Lane, turn: int) -> bool:
    """Whether work asked for under one turn is part of the answer of another."""
    return made == turn or (lane is Lane.OUTPUT and made < turn)


def _rounded(metrics: StageMetrics) -> StageMetrics:
    """Times to the microsecond: the clock's own noise says nothing."""
    changes = {name: round(value, 3) for name in _TIMES if (value := getattr(metrics, name)) is not None}
    return msgspec.structs.replace(metrics, **changes)


_TIMES = ("begun_ms", "queue_ms", "first_ms", "total_ms", "ms_per_token")

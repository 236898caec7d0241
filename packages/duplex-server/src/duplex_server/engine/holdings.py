"""What one session holds outside itself: stage work, timers, its ear, its slot with its seats on the stages.

Owns their release: all of it, once, each part even when another fails, the slot last. Used by the session runner alone. Must
never forget a piece of work before its stage has let go of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from duplex_core.machine.io import TimerFired
from duplex_core.model import Deadline
from duplex_core.stages import Lane, StageFailed, StageMetrics, StageReply, StageRequest
from duplex_server.engine.listening import Listening
from duplex_server.engine.stages.host import StageHost
from duplex_server.engine.ticks import Ticks
from duplex_server.engine.timers import Rung, Timers

Due = TimerFired | Deadline
"""A timer of the machine's, or one of the model's; one key may stand in both."""


class Holdings:
    """Everything that must be free before a session's slot is."""

    def __init__(
        self,
        *,
        stages: StageHost,
        ticks: Ticks,
        listening: Listening,
        ring: Callable[[Rung[Due]], None],
        free_slot: Callable[[], None],
    ) -> None:
        """Begin with nothing but the slot; ``ring`` is called on the event loop when a timer is due."""
        self.listening = listening
        self._stages = stages
        self._free_slot = free_slot
        self.timers = Timers(ring, ticks.call_at)
        self._work: dict[tuple[str, str], StageRequest] = {}
        self.released = False
        """Whether :meth:`release` has been called."""

    def submit(self, request: StageRequest) -> None:
        """Give work to a stage."""
        self._work[request.stage, request.request_id] = request
        self._stages.submit(request)

    def settle(self, reply: StageReply) -> None:
        """A stage has answered; its last answer ends the request."""
        if isinstance(reply, StageFailed) or reply.final:
            self._work.pop((reply.stage, reply.request_id), None)

    def known(self, request: StageRequest) -> tuple[StageMetrics, ...]:
        """What the stages have done so far for a request that is open."""
        return self._stages.known(request.fence, request.stage, request.request_id)

    def abort(self, stage: str, request_id: str) -> None:
        """Stop one request; it is forgotten when the stage has let go of it, so that a failure here can be repaired."""
        request = self._work.get((stage, request_id))
        if request is not None:
            self._stages.abort(request.fence, stage, request_id)
            del self._work[stage, request_id]

    def abort_lane(self, lane: Lane) -> None:
        """Stop all requests of one lane."""
        for key in [key for key, request in self._work.items() if request.lane is lane]:
            self.abort(*key)

    def release(self) -> None:
        """Free everything, the slot last. Idempotent."""
        if self.released:
            return
        self.released = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._free_slot)
            stack.callback(self.listening.close)
            for key in list(self._work):
                stack.callback(self.abort, *key)
            stack.callback(self.timers.close)

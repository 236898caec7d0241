"""One session machine and one model session, joined: the order in which they hear each other, and what is too late.

Owns that order (nothing else does), the list of open stage requests and armed timers, and so the one place where stale
results are dropped. Used by the server's session runner and by the test driver, so that both run conversations alike. It
performs nothing itself: every action goes to the ``perform`` callable, in order, as it comes. No clock, no I/O, no task.

The order: a step's effects are performed, its :class:`~duplex_core.machine.io.Tell` effects put into a queue, its events
sent; then the queue is worked off, one told input at a time, each of the model's outputs in turn, a decision going into the
machine. Only an empty queue lets the next input in. So a response is announced before its first delta, also when the
model answers at once, and a model is never called while outputs of its last call are waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from duplex_core.events import CloseReason, Event
from duplex_core.fence import Fence
from duplex_core.machine.io import (
    NOTHING,
    AbortOutput,
    CloseRequested,
    Detect,
    Effect,
    JudgeEndOfTurn,
    MachineInput,
    ReleaseSlot,
    ResetDetector,
    SetTimer,
    Step,
    Tell,
    TimerFired,
)
from duplex_core.machine.spending import Known, Spending
from duplex_core.model import Abort, Closed, Deadline, Decision, ModelInput, ModelOutput, ModelSession, Submit, WakeAt
from duplex_core.stages import Lane, StageFailed, StageReply, StageRequest

Action = (
    Event | SetTimer | Detect | ResetDetector | JudgeEndOfTurn | AbortOutput | ReleaseSlot | Submit | Abort | WakeAt
)
"""What is left to do outside: send an event, arm a timer, run a detector, give or withdraw stage work, free the slot."""

_WORK = (Submit, Abort, WakeAt)

EARLY_MS = 1.0
"""How much early a timer may fire (clocks are coarse) and still count as due."""


class Machine(Protocol):
    """What is asked of the session machine here."""

    def open(self, now_ms: float) -> Step:
        """Begin."""

    def handle(self, given: MachineInput, now_ms: float, /) -> Step:
        """Take one input."""


class Exchange:
    """Moves inputs between one machine, one model session and the outside.

    Every method takes one input from outside and returns when everything that follows from it has been performed. A
    failure of the model's or the machine's code comes out as it is; after one of the model's, or one that its answer brought
    about, the model is told nothing more, so that the machine can still be closed.
    """

    def __init__(
        self,
        machine: Machine,
        model: ModelSession,
        perform: Callable[[Action], None],
        *,
        adapt: Callable[[Decision], Sequence[Decision]] = lambda decision: (decision,),
        known: Known = lambda request: (),
    ) -> None:
        """Join ``machine`` and ``model``.

        Args:
            machine: the session's rules.
            model: the model's side.
            perform: takes each action as it comes; must not call back into this object.
            adapt: makes of a model's decision those that the machine gets: speech is converted from the model's rate to the
                response's output format, and what a resampler still holds is let out before the end of the turn.
            known: what the stages have done so far for an open request, for the metrics of an answer that ends before it.
        """
        self._machine = machine
        self._model = model
        self._perform = perform
        self._adapt = adapt
        self._spending = Spending(known)
        self._told: deque[ModelInput] = deque()
        self._requests: dict[tuple[str, str], StageRequest] = {}
        self._timers: dict[str, float] = {}
        self._alarms: dict[str, float] = {}
        self._fence: Fence | None = None
        self._deaf = False
        self._over = False
        self._now_ms = 0.0

    @property
    def open_requests(self) -> tuple[StageRequest, ...]:
        """Stage requests that were submitted and are neither finished nor aborted."""
        return tuple(self._requests.values())

    @property
    def armed(self) -> tuple[str, ...]:
        """Keys of timers that are set: the machine's, then the model's."""
        return (*sorted(self._timers), *sorted(self._alarms))

    def open(self, now_ms: float) -> None:
        """Begin the session."""
        self._now_ms = now_ms
        self._carry_out(self._machine.open(now_ms))
        self._work_off()

    def take(self, given: MachineInput, now_ms: float) -> None:
        """Give the machine an input from outside. A timer that was set anew or cancelled meanwhile is ignored."""
        self._now_ms = now_ms
        if isinstance(given, TimerFired) and not self._due(self._timers, given.key):
            return
        self._carry_out(self._machine.handle(given, now_ms))
        self._work_off()

    def reply(self, reply: StageReply, now_ms: float) -> None:
        """Give the model a stage's reply, unless its request is over: finished, aborted, or fenced off.

        A stage that died has taken with it what it knew of the session, which ends with the stage's error.
        """
        key = (reply.stage, reply.request_id)
        if key not in self._requests:
            return
        if isinstance(reply, StageFailed) or reply.final:
            del self._requests[key]
            self._spending.ended(reply)
        if isinstance(reply, StageFailed) and reply.fatal:
            self.take(CloseRequested(reason=CloseReason.ERROR, error=reply.error), now_ms)
        else:
            self._tell_from_outside(reply, now_ms)

    def wake(self, key: str, now_ms: float) -> None:
        """A timer of the model's is due; one that was set anew or cancelled meanwhile is ignored."""
        self._now_ms = now_ms
        if self._due(self._alarms, key):
            self._tell_from_outside(Deadline(key=key), now_ms)

    def _tell_from_outside(self, event: ModelInput, now_ms: float) -> None:
        self._now_ms = now_ms
        self._told.append(event)
        self._work_off()

    def _work_off(self) -> None:
        while self._told:
            event = self._told.popleft()
            if not self._deaf:
                self._ask(event)

    def _ask(self, event: ModelInput) -> None:
        """Tell the model, and put out what it answers, unless the session is closed by then."""
        whole = False
        try:
            for output in tuple(self._model.handle(event, self._now_ms)):
                if not self._over:
                    self._put_out(output)
            whole = True
        finally:
            if not whole or isinstance(event, Closed):
                self._deaf = True
                self._told.clear()

    def _put_out(self, output: ModelOutput) -> None:
        if not isinstance(output, _WORK):
            for decision in self._adapt(output):
                self._carry_out(self._machine.handle(decision, self._now_ms))
        elif isinstance(output, Submit):
            self._submit(output)
        elif isinstance(output, Abort):
            withdrawn = self._requests.pop((output.stage, output.request_id), None)
            if withdrawn is not None:
                self._spending.stopped([withdrawn], by_model=True)
                self._perform(output)
        else:
            self._arm(self._alarms, output.key, output.at_ms)
            self._perform(output)

    def _submit(self, submit: Submit) -> None:
        request = submit.request
        stale = self._fence is not None and not self._fence.admits(request.fence)
        if stale and request.lane is Lane.OUTPUT:
            return
        self._requests[request.stage, request.request_id] = request
        self._spending.submitted(request, self._now_ms)
        self._perform(submit)

    def _carry_out(self, step: Step) -> None:
        if step is NOTHING:
            return
        try:
            self._carry_out_effects(step.effects)
        finally:  # what the machine has told stays told, also when something outside failed: a response has its end
            for event in step.events:
                self._perform(self._spending.complete(event, self._now_ms))

    def _carry_out_effects(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._told.append(effect.event)
                continue
            if isinstance(effect, SetTimer):
                self._arm(self._timers, effect.key, effect.at_ms)
            elif isinstance(effect, AbortOutput):
                self._fence = effect.fence
                self._forget(Lane.OUTPUT)
            elif isinstance(effect, ReleaseSlot):
                self._release()
            self._perform(effect)

    def _forget(self, *lanes: Lane) -> None:
        self._spending.stopped(request for request in self._requests.values() if request.lane in lanes)
        self._requests = {key: request for key, request in self._requests.items() if request.lane not in lanes}

    def _release(self) -> None:
        """Nothing may be begun any more; what was to be told has lost its meaning, but for the close itself."""
        self._over = True
        self._told.clear()
        self._forget(*Lane)
        self._timers.clear()
        self._alarms.clear()
        self._told.append(Closed())

    @staticmethod
    def _arm(timers: dict[str, float], key: str, at_ms: float | None) -> None:
        if at_ms is None:
            timers.pop(key, None)
        else:
            timers[key] = at_ms

    def _due(self, timers: dict[str, float], key: str) -> bool:
        """Whether this timer is set and its time has come; if so it is spent."""
        at_ms = timers.get(key)
        if at_ms is None or self._now_ms < at_ms - EARLY_MS:
            return False
        del timers[key]
        return True

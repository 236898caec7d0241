"""Machine and model joined, at the end: nothing is begun once the slot is given back, and a faulty model hears nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, error
from duplex_core.events import CloseReason
from duplex_core.machine.exchange import Action, Exchange
from duplex_core.machine.io import AbortOutput, CloseRequested, ReleaseSlot, SlotReleased
from duplex_core.machine.output import ModelFault
from duplex_core.machine.session import SessionMachine
from duplex_core.stages import Lane, StageRequest
from tests.support.machines import kinds

Answer = Callable[[m.ModelInput], Sequence[m.ModelOutput]]


class Model:
    """Answers by the rule given, and writes down what it heard."""

    def __init__(self, answer: Answer) -> None:
        self.heard: list[m.ModelInput] = []
        self._answer = answer

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        self.heard.append(event)
        return self._answer(event)


def joined(answer: Answer) -> tuple[Exchange, Model, list[Action]]:
    machine = SessionMachine(session_id="sess_1", config=SessionConfig(model="m"), capabilities=Capabilities())
    model, done = Model(answer), list[Action]()
    exchange = Exchange(machine, model, done.append)
    exchange.open(0.0)
    return exchange, model, done


def work(event: m.ModelInput, request_id: str) -> m.Submit:
    fence = getattr(event, "fence", None)
    assert fence is not None
    return m.Submit(request=StageRequest(stage="s", request_id=request_id, fence=fence, lane=Lane.INPUT, payload=None))


def test_no_work_is_begun_after_the_slot_is_released() -> None:
    """A model that submits at every chance, while its session closes with an interruption still to be heard."""

    def eager(event: m.ModelInput) -> Sequence[m.ModelOutput]:
        return () if isinstance(event, m.Closed) else (work(event, f"r{id(event)}"),)

    exchange, model, done = joined(eager)
    exchange.take(c.ResponseCreate(), 0.0)
    exchange.take(c.SessionClose(), 1.0)
    released = next(index for index, action in enumerate(done) if isinstance(action, ReleaseSlot))
    assert "Submit" not in kinds(done[released:])
    assert not exchange.open_requests
    assert not exchange.armed
    assert kinds(model.heard)[-1] == "Closed"
    exchange.take(SlotReleased(), 2.0)
    assert kinds(done)[-1] == "SessionClosed"


def test_a_model_that_ends_the_session_begins_nothing_after_it() -> None:
    full = error(ErrorCode.CONTEXT_FULL, "the context is full")

    def ends(event: m.ModelInput) -> Sequence[m.ModelOutput]:
        if isinstance(event, m.Respond):
            return (
                m.Fatal(error=full),
                work(event, "late"),
                m.WakeAt(key="late", at_ms=9.0),
                m.EndTurn(fence=event.fence),
            )
        return ()

    exchange, model, done = joined(ends)
    exchange.take(c.ResponseCreate(), 0.0)
    assert "Submit" not in kinds(done)
    assert "WakeAt" not in kinds(done)
    assert kinds(done).count("ResponseDone") == 1
    assert kinds(model.heard)[-2:] == ["Respond", "Closed"]


def test_a_model_whose_answer_was_a_fault_is_told_nothing_more() -> None:
    def faulty(event: m.ModelInput) -> Sequence[m.ModelOutput]:
        return (m.EndTurn(fence=event.fence.next_turn()),) if isinstance(event, m.Respond) else ()

    exchange, model, done = joined(faulty)
    with pytest.raises(ModelFault):
        exchange.take(c.ResponseCreate(), 0.0)
    heard = len(model.heard)
    exchange.take(CloseRequested(reason=CloseReason.ERROR, error=error(ErrorCode.INTERNAL_ERROR, "failed")), 1.0)
    exchange.take(SlotReleased(), 2.0)
    assert len(model.heard) == heard
    assert kinds(done)[-1] == "SessionClosed"
    assert kinds(done).count("ResponseDone") == 1


def test_what_was_told_stays_told_when_something_outside_fails() -> None:
    """A stage that will not let go costs the session, and no response its end."""
    machine = SessionMachine(session_id="sess_1", config=SessionConfig(model="m"), capabilities=Capabilities())
    done: list[Action] = []

    def perform(action: Action) -> None:
        if isinstance(action, AbortOutput):
            raise OSError("the stage does not let go")
        done.append(action)

    exchange = Exchange(machine, Model(lambda event: ()), perform)
    exchange.open(0.0)
    exchange.take(c.ResponseCreate(), 0.0)
    with pytest.raises(OSError, match="does not let go"):
        exchange.take(c.ResponseCancel(), 1.0)
    assert kinds(done)[-3:] == ["OutputBufferCleared", "ResponseDone", "RateLimitsUpdated"]
    exchange.take(CloseRequested(reason=CloseReason.ERROR, error=error(ErrorCode.INTERNAL_ERROR, "failed")), 2.0)
    exchange.take(SlotReleased(), 3.0)
    assert kinds(done)[-1] == "SessionClosed"
    assert kinds(done).count("ResponseDone") == 1

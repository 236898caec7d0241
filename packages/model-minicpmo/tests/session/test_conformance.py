"""The conformance kit on MiniCPM-o's session and rules, over stages on paper; the same kit over its real stages is beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from duplex_core.commands import Command
from duplex_core.config import SessionConfig
from duplex_core.events import ErrorEvent, ResponseCreated, ResponseDone, ResponseStatus
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.invariants import MADE
from duplex_core.testing.speech import burst
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import FORCED_UNITS, Subject
from duplex_core.testing.suite.interruption import Interruption as WhenInterrupted
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.rules.turn import Interruption
from model_minicpmo.testing.paper import PaperHost


class OnPaper(Subject):
    """What all suites here are told of the model."""

    (spec,) = duplex_register_models()
    plugin = "model_minicpmo.plugin"
    bad_options: ClassVar[Mapping[str, Any]] = {
        "no_such_option": 1,
        "temperature": 0,
        "window": "wide",
        "top_p": 2,
        "interruption": "ignore",
    }
    unit_ms = 1000.0
    listens_first: ClassVar[Mapping[str, Any]] = {"forced_listen": FORCED_UNITS}
    max_points = 12
    interruption = Interruption.CLOSE

    @classmethod
    def config(cls) -> SessionConfig:
        config = super().config()
        chosen = {"forced_listen": 0, "interruption": cls.interruption.value}
        return msgspec.structs.replace(config, options={**config.options, **chosen})

    @pytest.fixture
    def host(self) -> StageHost:
        return PaperHost()


class TestOnPaper(OnPaper, ModelConformance):
    pass


class TestKeepingTheTalker(OnPaper, WhenInterrupted):
    interruption = Interruption.KEEP_TALKER


class TestDroppingUnits(OnPaper, WhenInterrupted):
    interruption = Interruption.DROP_UNIT

    @classmethod
    def other_speech(cls) -> bytes:
        """Longer than a unit: of what interrupts, the model hears what comes after the unit that is dropped."""
        return burst(1900.0, cls.input_rate_hz(), hz=140.0)

    def _stop(self, driver: ConversationDriver, command: Command) -> None:
        """Stop the answer: it ends once and nothing of it comes after, though the model goes on with its turn, in another."""
        (stopped,) = driver.all_of(ResponseCreated)
        was_made = bool(driver.all_of(ResponseDone))
        driver.send(command)
        fence = len(driver.events)
        assert not driver.all_of(ErrorEvent)
        driver.settle()
        late = [event for event in driver.events[fence:] if isinstance(event, MADE)]
        assert stopped.response.id not in {event.response_id for event in late}
        first = driver.all_of(ResponseDone)[0]
        assert first.response.id == stopped.response.id
        assert was_made or first.response.status is ResponseStatus.CANCELLED
        assert len(driver.all_of(ResponseDone)) == len(driver.all_of(ResponseCreated))

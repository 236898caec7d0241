"""What an interruption does to the model's turn and to the engine's, for each value of the option; over stages on paper.

What it does to talker and voice is shown on the recorded runs, beside the loop's other tests.
"""

from __future__ import annotations

import msgspec
import pydantic
import pytest

from duplex_core.commands import BargeIn, InputAudioBufferAppend, InputAudioBufferCommit, ResponseCreate, VideoFrame
from duplex_core.config import OverlapMode, OverlapSettings, ServerVad, TurnDetection
from duplex_core.events import (
    OutputAudioDelta,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.items import item_text
from duplex_core.model import Interrupted
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.options import SessionOptions
from model_minicpmo.payloads import Open, Orders, Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.rules.turn import Interruption, UnitView, for_unit
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import PaperHost

(SPEC,) = duplex_register_models()
RATE_HZ = 16_000
CLOSING = (Interruption.CLOSE, Interruption.KEEP_TALKER)
SLOW_MS = 450.0
"""What the stages take for a piece when they are slow: a second's decision, and then its sound, are just in time."""
WHOLE = "1 of 3. 2 of 3. 3 of 3."
"""What the stages on paper answer."""


class Talk:
    """A session over stages on paper, and what they were given."""

    def __init__(
        self, interruption: Interruption, *, detection: TurnDetection | None = None, ms_per_piece: float = 10.0
    ) -> None:
        self.host = PaperHost()
        config = msgspec.structs.replace(
            SPEC.session_config(MiniCPMOSettings()),
            options={"interruption": interruption.value},
            turn_detection=detection,
            overlap=OverlapSettings(mode=OverlapMode.IMMEDIATE),
        )
        self.driver = ConversationDriver(SPEC, config=config, host=self.host, ms_per_piece=ms_per_piece)

    def until_it_speaks(self) -> None:
        """Say something, and wait until the first second of the answer is there."""
        self.driver.stream(silence(400.0, RATE_HZ) + burst(1200.0, RATE_HZ))
        while not self.driver.all_of(OutputAudioDelta):
            self.driver.stream(silence(100.0, RATE_HZ))

    def until_it_is_deciding(self) -> None:
        """The same, and then until the thinker has begun on the second."""
        self.until_it_speaks()
        given = len(self.orders)
        while len(self.orders) == given:
            self.driver.stream(silence(100.0, RATE_HZ))

    @property
    def units(self) -> list[Unit]:
        """All units that the stages were given."""
        return [payload for _, payload in self.host.paper.given if isinstance(payload, Unit)]

    @property
    def orders(self) -> list[Orders]:
        """Their orders."""
        return [unit.orders for unit in self.units]

    @property
    def answers(self) -> list[tuple[ResponseStatus, str]]:
        """How each response ended, and what was said in it."""
        done = self.driver.all_of(ResponseDone)
        return [(each.response.status, "".join(map(item_text, each.response.output))) for each in done]


def view(interruption: Interruption, *, interrupted: bool) -> UnitView:
    return UnitView(taken_in=7, forced_listen=0, interrupted=interrupted, asked=True, interruption=interruption)


@pytest.mark.parametrize("interruption", Interruption)
def test_only_the_unit_after_an_interruption_is_ordered_differently(interruption: Interruption) -> None:
    usual, after = (for_unit(view(interruption, interrupted=interrupted)) for interrupted in (False, True))
    assert (usual.forced, usual.ends_turn, usual.asked, usual.dropped) == (False, False, True, False)
    closes = interruption in CLOSING
    assert (after.forced, after.ends_turn, after.asked, after.dropped) == (closes, closes, False, not closes)


def test_the_option_is_one_of_three() -> None:
    assert Interruption(SessionOptions().interruption) is Interruption.CLOSE
    chosen = [SessionOptions.model_validate({"interruption": each.value}) for each in Interruption]
    assert [Interruption(each.interruption) for each in chosen] == list(Interruption)
    with pytest.raises(pydantic.ValidationError, match="interruption"):
        SessionOptions.model_validate({"interruption": "ignore"})


@pytest.mark.parametrize("interruption", Interruption)
def test_speech_over_an_answer_ends_it_once_and_the_next_one_is_another(interruption: Interruption) -> None:
    talk = Talk(interruption, detection=ServerVad())
    driver = talk.driver
    talk.until_it_speaks()
    given = len(talk.orders)
    at_ms = driver.now_ms
    driver.stream(burst(2200.0, RATE_HZ, hz=140.0) + silence(5000.0, RATE_HZ))
    driver.settle()
    invariants.check(driver.events)
    (told,) = [each for each in driver.told if isinstance(each.event, Interrupted)]
    assert told.at_ms > at_ms
    assert len(driver.all_of(ResponseCreated)) == len(talk.answers)
    first, second, *_ = talk.answers
    assert first[0] is ResponseStatus.CANCELLED
    assert second[0] is ResponseStatus.COMPLETED
    after = [each for each in talk.orders[given:] if each.number >= given]
    if interruption in CLOSING:
        assert [each.ends_turn for each in after].count(True) == 1
        assert second[1] == WHOLE, "the next answer is a new one"
    else:
        assert not any(each.forced or each.ends_turn for each in talk.orders)
        assert WHOLE.endswith(second[1])
        assert second[1] != WHOLE, "the model goes on with its turn"


@pytest.mark.parametrize("interruption", Interruption)
def test_nothing_of_an_answer_that_was_stopped_is_heard(interruption: Interruption) -> None:
    """Stopped while the thinker decides on its second unit: what comes of that is dropped."""
    talk = Talk(interruption, ms_per_piece=SLOW_MS)
    driver = talk.driver
    talk.until_it_is_deciding()
    driver.send(BargeIn())
    fence, given = len(driver.events), len(talk.orders)
    driver.stream(silence(5000.0, RATE_HZ))
    driver.settle()
    invariants.check(driver.events)
    assert [each.number for each in talk.orders if each.forced] == ([given] if interruption in CLOSING else [])
    first, *others = talk.answers
    assert first[0] is ResponseStatus.CANCELLED
    if interruption in CLOSING:
        assert not others
        assert not [each for each in driver.events[fence:] if isinstance(each, invariants.MADE)]
    else:  # the model says what is left of its turn, without what it said in the unit that was under way
        assert others == [(ResponseStatus.COMPLETED, "3 of 3.")]


@pytest.mark.parametrize("interruption", Interruption)
def test_the_stages_are_told_the_choice_and_get_every_second_but_a_dropped_one(interruption: Interruption) -> None:
    talk = Talk(interruption, detection=ServerVad())
    driver = talk.driver
    talk.until_it_speaks()
    driver.stream(burst(2200.0, RATE_HZ, hz=140.0) + silence(1000.0, RATE_HZ))
    (opened,) = [payload for _, payload in talk.host.paper.given if isinstance(payload, Open)]
    assert opened.options.interruption == interruption
    dropped = interruption is Interruption.DROP_UNIT
    seconds = int(driver.now_ms // 1000)
    assert [each.number for each in talk.orders] == list(range(seconds - dropped))
    # What was dropped was heard all the same: the utterance that it is part of is as long as it was.
    started, stopped = driver.all_of(SpeechStarted)[-1], driver.all_of(SpeechStopped)[-1]
    assert stopped.audio_end_ms - started.audio_start_ms > 2200.0


@pytest.mark.parametrize("interruption", Interruption)
def test_a_question_behind_the_unit_that_an_interruption_takes_is_answered(interruption: Interruption) -> None:
    """The question's last second waits behind a busy thinker; it is not the unit that is made to listen, or dropped."""
    talk = Talk(interruption, ms_per_piece=SLOW_MS)
    driver = talk.driver
    talk.until_it_is_deciding()
    driver.send(BargeIn())
    driver.stream(burst(100.0, RATE_HZ, hz=140.0))
    driver.send(InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone, count=2)
    assert (done.response.status, bool(done.response.output)) == (ResponseStatus.COMPLETED, True)
    driver.settle()
    invariants.check(driver.events)
    assert not driver.exchange.open_requests


@pytest.mark.parametrize("interruption", Interruption)
def test_a_question_asked_at_once_after_an_interruption_keeps_its_sound_and_its_picture(
    interruption: Interruption,
) -> None:
    """A unit of silence is what the interruption takes: the question's own unit is heard and seen."""
    talk = Talk(interruption)
    driver = talk.driver
    talk.until_it_speaks()
    driver.send(BargeIn())
    given = len(talk.units)
    tail = burst(300.0, RATE_HZ, hz=140.0)
    driver.send(InputAudioBufferAppend(audio=tail, video_frames=(VideoFrame(data=b"\xff\xd8jpeg"),)), ResponseCreate())
    driver.wait_for(ResponseDone, count=2)
    *silent, asked = talk.units[given : given + 1 + (interruption in CLOSING)]
    assert (asked.orders.asked, asked.pictures) == (True, (b"\xff\xd8jpeg",))
    assert any(bytes(asked.samples.data))
    assert [(each.orders.forced, each.pictures, any(bytes(each.samples.data))) for each in silent] == (
        [(True, (), False)] if interruption in CLOSING else []
    )
    assert talk.answers[1][0] is ResponseStatus.COMPLETED
    driver.settle()
    invariants.check(driver.events)

"""Units that fail: what travels with one is carried by the next, or the client is told; over stages on paper."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from duplex_core.commands import BargeIn, ConversationItemCreate, ResponseCancel, ResponseCreate
from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_core.events import OutputAudioDelta, ResponseCreated, ResponseDone, ResponseStatus, SessionClosed
from duplex_core.items import InputAudio, InputImage, InputText, MessageItem, Role, item_text
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.payloads import Orders, Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.rules.turn import Interruption
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import Paper, PaperHost

(SPEC,) = duplex_register_models()
RATE_HZ = 16_000
QUIET = silence(1000.0, RATE_HZ)
WHOLE = "1 of 3. 2 of 3. 3 of 3."
PICTURE = InputImage(image_url="data:image/png;base64," + base64.b64encode(b"a picture").decode())


class Failing(PaperHost):
    """Stages that fail the next `failures` units that `chosen` picks, before anything of them is taken in."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.code = ErrorCode.ENGINE_ERROR
        self.chosen: Callable[[Orders], bool] = lambda orders: True
        self.failed: list[Orders] = []
        host = self

        class Stages(Paper):
            def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
                if isinstance(payload, Unit) and host.failures and host.chosen(payload.orders):
                    host.failures -= 1
                    host.failed.append(payload.orders)
                    raise DuplexError(error(host.code, "the stage failed"))
                super().run(session_id, payload, emit)

        self.paper = Stages()


class Talk:
    def __init__(self, interruption: Interruption = Interruption.CLOSE) -> None:
        self.host = Failing()
        config = msgspec.structs.replace(
            SPEC.session_config(MiniCPMOSettings()),
            turn_detection=None,
            options={"interruption": interruption.value},
        )
        self.driver = ConversationDriver(SPEC, config=config, host=self.host)

    def until_it_speaks(self) -> None:
        self.driver.stream(silence(400.0, RATE_HZ) + burst(1200.0, RATE_HZ))
        while not self.driver.all_of(OutputAudioDelta):
            self.driver.stream(silence(100.0, RATE_HZ))

    def write(self, *content: Any) -> None:
        self.driver.send(ConversationItemCreate(item=MessageItem(role=Role.USER, content=content)))

    @property
    def units(self) -> list[Unit]:
        return [payload for _, payload in self.host.paper.given if isinstance(payload, Unit)]

    @property
    def answers(self) -> list[tuple[ResponseStatus, str]]:
        done = self.driver.all_of(ResponseDone)
        return [(each.response.status, "".join(map(item_text, each.response.output))) for each in done]

    def well(self) -> None:
        self.driver.settle()
        invariants.check(self.driver.events)
        assert not self.driver.exchange.open_requests
        assert not self.driver.all_of(SessionClosed)


@pytest.mark.parametrize("failures", [1, 3])
def test_an_interruption_stays_pending_until_a_unit_has_carried_it(failures: int) -> None:
    talk = Talk()
    talk.until_it_speaks()
    given = len(talk.units)
    talk.host.failures, talk.host.chosen = failures, lambda orders: orders.ends_turn
    talk.driver.send(BargeIn())
    talk.driver.stream(QUIET * (failures + 4))
    assert [orders.ends_turn for orders in talk.host.failed] == [True] * failures
    after = [unit.orders for unit in talk.units[given:]]
    assert [each.ends_turn for each in after].count(True) == 1
    assert after[0].ends_turn, "the first one that the stages take in"
    assert len(talk.driver.all_of(ResponseCreated)) == 1, "the answer does not go on by itself"
    talk.well()


@pytest.mark.parametrize("failures", [1, 2])
def test_a_question_behind_the_failed_unit_is_answered_or_told_to_have_failed(failures: int) -> None:
    talk = Talk()
    talk.until_it_speaks()
    given = len(talk.units)
    talk.host.failures, talk.host.chosen = failures, lambda orders: orders.ends_turn
    talk.driver.send(BargeIn())
    talk.write(InputText(text="And now?"))
    talk.driver.send(ResponseCreate())
    talk.driver.wait_for(ResponseDone, count=2)
    closing, *_ = [unit.orders for unit in talk.units[given:]]
    assert closing.ends_turn
    if failures == 1:
        assert talk.answers[1] == (ResponseStatus.COMPLETED, WHOLE)
    else:
        assert talk.answers[1][0] is ResponseStatus.FAILED
    assert [unit.orders.text for unit in talk.units if unit.orders.text] == ["And now?"]
    talk.well()


@pytest.mark.parametrize("code", [ErrorCode.ENGINE_ERROR, ErrorCode.INVALID_VALUE])
def test_a_question_that_failed_is_told_and_taken_in_with_the_next_unless_it_was_at_fault(code: ErrorCode) -> None:
    talk = Talk()
    talk.host.failures, talk.host.code = 1, code
    talk.write(InputText(text="What is this?"), PICTURE)
    talk.driver.send(ResponseCreate())
    done = talk.driver.wait_for(ResponseDone)
    assert done.response.status is ResponseStatus.FAILED
    assert done.response.status_details is not None
    assert done.response.status_details.error is not None
    assert done.response.status_details.error.code == code.value
    assert talk.host.failed[0].waited_for
    talk.driver.send(ResponseCreate())
    assert talk.driver.wait_for(ResponseDone, count=2).response.status is ResponseStatus.COMPLETED
    seen = [(unit.orders.text, unit.pictures) for unit in talk.units if unit.orders.text or unit.pictures]
    assert seen == ([("What is this?", (b"a picture",))] if code is ErrorCode.ENGINE_ERROR else [])
    talk.well()


def test_a_question_fails_with_any_of_its_units() -> None:
    talk = Talk()
    talk.host.failures = 1
    talk.write(InputAudio(audio=burst(2500.0, RATE_HZ)))
    talk.driver.send(ResponseCreate())
    assert talk.driver.wait_for(ResponseDone).response.status is ResponseStatus.FAILED
    assert not talk.host.failed[0].asked
    talk.well()
    count = len(talk.answers) + 1
    talk.driver.send(ResponseCreate())
    assert talk.driver.wait_for(ResponseDone, count=count).response.status is ResponseStatus.COMPLETED


def test_a_question_that_was_cancelled_before_its_unit_was_decided_is_not_answered_and_the_next_is() -> None:
    talk = Talk()
    talk.write(InputText(text="One?"))
    talk.driver.stream(QUIET[:3200])
    talk.driver.send(ResponseCreate(), ResponseCancel())
    talk.write(InputText(text="Two?"))
    talk.driver.send(ResponseCreate())
    talk.driver.wait_for(ResponseDone, count=2)
    assert talk.answers == [(ResponseStatus.CANCELLED, ""), (ResponseStatus.COMPLETED, WHOLE)]
    assert [unit.orders.text for unit in talk.units if unit.orders.text] == ["One?", "Two?"]
    talk.well()


@pytest.mark.parametrize("wait_ms", [0.0, 300.0, 1500.0, 5000.0])
@pytest.mark.parametrize("interruption", Interruption)
@pytest.mark.parametrize("microphone", [False, True], ids=["mute", "open"])
def test_an_answer_that_is_asked_for_after_one_was_cancelled_is_whole(
    wait_ms: float, interruption: Interruption, *, microphone: bool
) -> None:
    talk = Talk(interruption)
    for number in (0, 1):
        talk.driver.send(ResponseCreate())
        talk.driver.run_until(partial(sounding, talk, 2 * number))
        talk.driver.send(ResponseCancel())
        if microphone:
            talk.driver.stream(silence(wait_ms, RATE_HZ))
        else:
            talk.driver.advance(wait_ms)
        if interruption is Interruption.DROP_UNIT and wait_ms > 1000.0:
            return  # its turn is left open in the model, which goes on with it by itself
        talk.driver.send(ResponseCreate())
        talk.driver.wait_for(ResponseDone, count=2 * number + 2)
        status, text = talk.answers[2 * number + 1]
        assert status is ResponseStatus.COMPLETED
        assert text == WHOLE if interruption is not Interruption.DROP_UNIT else text
    talk.well()


def sounding(talk: Talk, number: int) -> bool:
    created = talk.driver.all_of(ResponseCreated)[number:]
    return any(each.response_id == created[0].response.id for each in talk.driver.all_of(OutputAudioDelta) if created)

"""The temperature of a session and of one response, down to the units; over stages on paper."""

from __future__ import annotations

import msgspec

from duplex_core.commands import ConversationItemCreate, ResponseCreate, SessionUpdate
from duplex_core.config import SessionConfig
from duplex_core.events import ResponseDone
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import silence
from model_minicpmo.payloads import Options, Unit, at_temperature
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import PaperHost

(SPEC,) = duplex_register_models()


def temperatures(host: PaperHost) -> list[float | None]:
    return [payload.orders.temperature for _, payload in host.paper.given if isinstance(payload, Unit)]


def test_a_response_s_temperature_holds_for_its_answer_and_the_session_s_for_the_rest() -> None:
    host = PaperHost()
    config: SessionConfig = msgspec.structs.replace(SPEC.session_config(MiniCPMOSettings()), turn_detection=None)
    driver = ConversationDriver(SPEC, config=config, host=host)
    driver.stream(silence(1000.0, 16_000))
    driver.send(SessionUpdate(session=SessionPatch(temperature=0.4)))
    driver.stream(silence(1000.0, 16_000))
    item = MessageItem(role=Role.USER, content=(InputText(text="Is anybody there?"),))
    driver.send(ConversationItemCreate(item=item), ResponseCreate(response=ResponseParams(temperature=0.0)))
    driver.wait_for(ResponseDone)
    driver.stream(silence(1000.0, 16_000))
    before, patched, *answer, after = temperatures(host)
    assert (before, patched, after) == (None, 0.4, 0.4)
    assert answer
    assert set(answer) == {0.0}


def test_no_temperature_leaves_the_options_and_zero_is_greedy() -> None:
    options = Options(temperature=0.9, greedy=True)
    assert at_temperature(options, 0.0).greedy
    warm = at_temperature(options, 0.5)
    assert (warm.greedy, warm.temperature) == (False, 0.5)

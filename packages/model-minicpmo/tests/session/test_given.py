"""What comes in items and not as it is: words, pictures and recordings, down to the units; over stages on paper."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from duplex_core.commands import ConversationItemCreate, InputAudioBufferCommit, ResponseCreate
from duplex_core.events import ResponseCreated, ResponseDone
from duplex_core.items import InputAudio, InputImage, InputText, MessageItem, Role
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.payloads import Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import float32
from model_minicpmo.testing.paper import PaperHost

(SPEC,) = duplex_register_models()
QUIET = silence(1000.0, 16_000)
SPOKEN = burst(2500.0, 16_000)


class Talk:
    """One conversation over stages on paper."""

    def __init__(self, **options: Any) -> None:
        self.host = PaperHost()
        config = msgspec.structs.replace(
            SPEC.session_config(MiniCPMOSettings()), turn_detection=None, options={"pictures_per_unit": 1, **options}
        )
        self.driver = ConversationDriver(SPEC, config=config, host=self.host)
        self.answered = 0

    def ask(self, *content: Any) -> list[Unit]:
        """Create an item, ask for an answer, and wait for its end; the units until then."""
        before = len(self.units())
        if content:
            self.driver.send(ConversationItemCreate(item=MessageItem(role=Role.USER, content=content)))
        self.driver.send(ResponseCreate())
        self.answered += 1
        self.driver.wait_for(ResponseDone, count=self.answered)
        return self.units()[before:]

    def units(self) -> list[Unit]:
        return [payload for _, payload in self.host.paper.given if isinstance(payload, Unit)]


def picture(content: bytes) -> InputImage:
    return InputImage(image_url="data:image/png;base64," + base64.b64encode(content).decode())


def orders(units: list[Unit]) -> list[tuple[bool, bool]]:
    return [(unit.orders.forced, unit.orders.asked) for unit in units]


def sound(units: list[Unit]) -> bytes:
    return b"".join(bytes(unit.samples.data) for unit in units)


LISTENED, ASKED, GOES_ON = (True, False), (False, True), (False, False)


def test_a_picture_is_seen_with_the_words_beside_it_in_the_unit_that_answers_and_once() -> None:
    talk = Talk()
    talk.driver.stream(QUIET)
    units = talk.ask(InputText(text="What is this?"), picture(b"one"))
    assert (units[0].pictures, units[0].orders.text, units[0].orders.asked) == ((b"one",), "What is this?", True)
    assert not any(unit.pictures or unit.orders.text for unit in (*units[1:], *talk.ask()))


def test_more_pictures_than_a_unit_has_are_all_seen() -> None:
    talk = Talk(pictures_per_unit=2)
    units = talk.ask(*(picture(name) for name in (b"a", b"b", b"c", b"d", b"e")), InputText(text="And?"))
    assert [unit.pictures for unit in units[:3]] == [(b"a", b"b"), (b"c", b"d"), (b"e",)]
    assert orders(units)[:4] == [LISTENED, LISTENED, ASKED, GOES_ON]
    assert [unit.orders.text for unit in units[:3]] == ["", "", "And?"]
    assert len(talk.driver.all_of(ResponseCreated)) == 1


def test_a_session_that_looks_at_no_pictures_is_shown_none() -> None:
    units = Talk(pictures_per_unit=0).ask(picture(b"one"), InputText(text="What is this?"))
    assert not any(unit.pictures for unit in units)
    assert units[0].orders.text == "What is this?"


def test_a_recording_is_heard_second_by_second_and_its_end_is_answered() -> None:
    talk = Talk()
    talk.driver.stream(QUIET[:16_000])
    units = talk.ask(InputAudio(audio=SPOKEN))
    assert orders(units)[:5] == [GOES_ON, LISTENED, LISTENED, ASKED, GOES_ON]
    assert sound(units[:1]) == float32(QUIET), "the microphone's last half second comes first"
    assert sound(units[1:4]) == float32(SPOKEN + bytes(16_000))
    again = talk.ask()
    assert not any(sound(again)), "it is not heard twice"


def test_what_was_heard_as_it_came_is_not_heard_again_as_an_item() -> None:
    talk = Talk()
    talk.driver.stream(SPOKEN)
    talk.driver.send(InputAudioBufferCommit(response_create=True))
    talk.driver.wait_for(ResponseDone)
    talk.answered = len(talk.driver.all_of(ResponseDone))
    heard = sound(talk.units())
    assert heard.startswith(float32(SPOKEN))
    talk.ask(InputText(text="Go on."))
    assert not any(sound(talk.units())[len(float32(SPOKEN)) :])

"""What is heard: when the model begins, what may change until then, what can be withdrawn, and how much may wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duplex_core import model as m
from duplex_core.commands import (
    ConversationItemCreate,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputCancel,
    ResponseCreate,
    SessionUpdate,
    VideoFrame,
)
from duplex_core.errors import ErrorCode
from duplex_core.events import ErrorEvent, InputCleared, ResponseDone, ResponseStatus
from duplex_core.fence import Fence
from duplex_core.items import InputAudio, InputText, MessageItem, Role
from duplex_core.patch import SessionPatch
from duplex_core.spec import Checkpoint, SessionContext
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.payloads import Open, Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.session import MOST_GIVEN, MOST_WAITING, MiniCPMOSession
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import float32
from model_minicpmo.testing.paper import PaperHost

(SPEC,) = duplex_register_models()
RATE_HZ = 16_000
QUIET = silence(1000.0, RATE_HZ)
LOUD = burst(1000.0, RATE_HZ)
CONFIG = msgspec.structs.replace(SPEC.session_config(MiniCPMOSettings()), turn_detection=None)


class Talk:
    def __init__(self, *, ms_per_piece: float = 10.0) -> None:
        self.host = PaperHost()
        self.driver = ConversationDriver(SPEC, config=CONFIG, host=self.host, ms_per_piece=ms_per_piece)

    def update(self, **patch: Any) -> None:
        self.driver.send(SessionUpdate(session=SessionPatch(**patch)))

    def write(self, *content: Any) -> None:
        self.driver.send(ConversationItemCreate(item=MessageItem(role=Role.USER, content=content)))

    def given(self, kind: type[Any]) -> list[Any]:
        return [payload for _, payload in self.host.paper.given if isinstance(payload, kind)]

    def heard(self) -> bytes:
        return b"".join(bytes(unit.samples.data) for unit in self.given(Unit))

    def refusals(self) -> list[tuple[ErrorCode, str | None]]:
        return [(each.error.code, each.error.param) for each in self.driver.all_of(ErrorEvent)]


# -- the beginning -----------------------------------------------------------------------------------------------------


def test_the_prompt_and_the_options_may_change_until_the_first_sound() -> None:
    talk = Talk()
    talk.update(temperature=0.5)
    talk.update(options={"top_k": 3}, instructions="Sing.")
    talk.write(InputText(text="Hello."))
    talk.update(options={"top_k": 4}, instructions="Dance.")
    assert not talk.given(Open), "nothing is sent before it is needed"
    talk.driver.stream(QUIET[:3200])
    (opened,) = talk.given(Open)
    assert (opened.options.top_k, opened.prompt) == (4, "Dance.")
    talk.update(options={"top_k": 5})
    assert talk.refusals() == [(ErrorCode.UNSUPPORTED_PARAMETER, "session.options")]
    assert "sound has come" in talk.driver.all_of(ErrorEvent)[0].error.message
    assert len(talk.given(Open)) == 1


def test_an_answer_to_a_written_message_begins_it_too() -> None:
    talk = Talk()
    talk.update(options={"top_k": 3})
    talk.write(InputText(text="Hello."))
    talk.update(options={"top_k": 4})
    talk.driver.send(ResponseCreate())
    talk.driver.wait_for(ResponseDone)
    assert [each.options.top_k for each in talk.given(Open)] == [4]
    assert isinstance(talk.host.paper.given[0][1], Open), "the opening comes before the first unit"
    talk.update(options={"top_k": 5})
    assert "a response was created" in talk.driver.all_of(ErrorEvent)[0].error.message


# -- withdrawn ---------------------------------------------------------------------------------------------------------


def test_input_cancel_is_refused_by_name_for_what_was_heard_cannot_be_forgotten() -> None:
    assert not SPEC.capabilities(MiniCPMOSettings()).input_cancel
    talk = Talk()
    talk.driver.stream(QUIET)
    talk.driver.send(InputCancel())
    assert talk.refusals() == [(ErrorCode.UNSUPPORTED_EVENT, None)]


def test_what_is_cleared_and_was_not_given_to_a_stage_is_not_heard() -> None:
    talk = Talk()
    talk.driver.stream(QUIET)
    talk.driver.send(InputAudioBufferAppend(audio=LOUD[:16_000], video_frames=(VideoFrame(data=b"jpeg"),)))
    talk.driver.send(InputAudioBufferClear())
    talk.driver.wait_for(InputCleared)
    talk.driver.stream(QUIET * 2)
    assert not any(talk.heard())
    assert not any(unit.pictures for unit in talk.given(Unit))


def test_seconds_that_wait_are_withdrawn_and_a_question_is_not() -> None:
    talk = Talk(ms_per_piece=400.0)
    talk.driver.send(*[InputAudioBufferAppend(audio=LOUD)] * 5)
    talk.driver.send(InputAudioBufferClear())
    talk.driver.stream(QUIET)
    assert talk.heard().startswith(float32(LOUD)), "the second that a stage had been given is heard"
    assert not any(talk.heard()[len(float32(LOUD)) :])
    talk.write(InputText(text="And?"))
    talk.driver.send(ResponseCreate(), InputAudioBufferClear())
    assert talk.driver.wait_for(ResponseDone).response.status is ResponseStatus.COMPLETED
    assert [unit.orders.text for unit in talk.given(Unit) if unit.orders.text] == ["And?"]


# -- too much ----------------------------------------------------------------------------------------------------------


def test_sound_that_comes_faster_than_it_is_decided_is_bounded_and_the_client_is_told_once() -> None:
    talk = Talk(ms_per_piece=400.0)
    for _ in range(300):
        talk.driver.send(InputAudioBufferAppend(audio=LOUD))
    assert talk.refusals() == [(ErrorCode.RESOURCE_EXHAUSTED, "audio")]
    assert talk.driver.all_of(ErrorEvent)[0].error.retryable
    talk.driver.settle(limit_ms=200_000.0)
    loud = [unit for unit in talk.given(Unit) if any(bytes(unit.samples.data))]
    assert len(loud) == MOST_WAITING + 1
    talk.driver.stream(LOUD)
    talk.driver.settle()
    assert len(talk.refusals()) == 1
    assert any(bytes(talk.given(Unit)[-4].samples.data)), "it hears again"


def test_a_recording_beyond_all_measure_fails_its_response_and_nothing_of_it_is_heard() -> None:
    config = CONFIG
    context = SessionContext(
        session_id="s", config=config, deploy=MiniCPMOSettings(), checkpoint=Checkpoint(name="minicpmo")
    )
    session = MiniCPMOSession(context)
    fence = Fence(session_id="s")
    session.handle(m.Configured(config=config, fence=fence), 0.0)
    asked = fence.next_turn()
    item = MessageItem(id="i", role=Role.USER, content=(InputAudio(audio=bytes(len(QUIET) * (MOST_GIVEN + 1))),))
    respond = m.Respond(response_id="r", fence=asked, config=config, history=(item,), cause=m.ResponseCause.CLIENT)
    (failed,) = session.handle(respond, 0.0)
    assert isinstance(failed, m.Failed)
    assert (failed.fence, failed.error.code) == (asked, ErrorCode.INVALID_VALUE)


@pytest.mark.parametrize("chunk_ms", [20.0, 1000.0])
def test_sound_as_fast_as_it_sounds_is_never_too_much(chunk_ms: float) -> None:
    talk = Talk(ms_per_piece=300.0)
    talk.driver.stream(QUIET * 90, chunk_ms=chunk_ms)
    assert not talk.refusals()
    assert len(talk.given(Unit)) >= 89

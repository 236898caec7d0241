"""`session.update`: wholly or not at all, and what a change means in the midst of things."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import Modality, ServerVad, TurnDetection
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import (
    ErrorEvent,
    InputCommitted,
    InputTimeoutTriggered,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.events.session import TOLD_CHARS
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.machine.io import Detect, ResetDetector
from duplex_core.machine.sounding import IDLE_TIMER
from duplex_core.machine.table import Hearing
from duplex_core.patch import AudioPatch, InputPatch, SessionPatch
from tests.support.machines import FRAME_MS, Bench, kinds, same_audio, told

PAUSE = "." * 16


def detection(value: TurnDetection | None) -> c.SessionUpdate:
    return c.SessionUpdate(session=SessionPatch(audio=AudioPatch(input=InputPatch(turn_detection=value))))


def test_an_update_is_told_to_both() -> None:
    bench = Bench()
    step = bench.do(c.SessionUpdate(session=SessionPatch(instructions="Sing.")))
    assert kinds(step.events) == ["SessionUpdated"]
    assert bench.only(SessionUpdated).session.instructions == "Sing."
    (configured,) = told(step.effects, m.Configured)
    assert configured.config == bench.machine.config
    bench.append(100)
    assert len(bench.told(m.Configured)) == 1, "not twice"


def test_nothing_of_a_refused_patch_is_applied() -> None:
    bench = Bench()
    command = c.SessionUpdate(session=SessionPatch(instructions="Sing.", temperature=0.3))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, command, "session.temperature")
    assert bench.machine.config.instructions == ""
    assert not bench.told(m.Configured)


def test_the_models_own_options_are_checked_and_completed() -> None:
    def check(options: dict[str, Any]) -> dict[str, Any]:
        if "bad" in options:
            raise refuse(ErrorCode.INVALID_VALUE, "bad is no option", param="session.options.bad")
        if options.get("default") is True:
            raise refuse(ErrorCode.INVALID_VALUE, "default is a number", param="session.options.default")
        return {"default": 1, **options}

    bench = Bench(check_options=check)
    bad = c.SessionUpdate(session=SessionPatch(instructions="Sing.", options={"bad": 1}))
    bench.refused_with(ErrorCode.INVALID_VALUE, bad, "session.options.bad")
    bench.do(c.SessionUpdate(session=SessionPatch(options={"mine": 2})))
    assert bench.machine.config.options == {"default": 1, "mine": 2}
    # It equals what is there, and is not the same.
    same = c.SessionUpdate(session=SessionPatch(options={"mine": 2, "default": True}))
    bench.refused_with(ErrorCode.INVALID_VALUE, same, "session.options.default")


def test_a_file_in_an_option_is_not_told_back_and_the_model_has_it() -> None:
    bench = Bench()
    voice, told_whole = "A" * (TOLD_CHARS + 1), "B" * TOLD_CHARS
    options = {"voice": voice, "text": told_whole, "nested": {"list": [voice, 1]}}
    step = bench.do(c.SessionUpdate(session=SessionPatch(options=options)))
    marker = "(4097 characters)"
    shown = {"voice": marker, "text": told_whole, "nested": {"list": [marker, 1]}}
    assert bench.only(SessionUpdated).session.options == shown
    assert bench.machine.attach(2).options == shown
    (configured,) = told(step.effects, m.Configured)
    assert configured.config.options == bench.machine.config.options == options


def test_what_is_fixed_after_the_start() -> None:
    bench = Bench(capabilities={"fixed_after_start": ("instructions",)})
    bench.do(c.SessionUpdate(session=SessionPatch(instructions="Hum.")))
    bench.do(c.SessionUpdate(session=SessionPatch(instructions="Sing.")))
    bench.append(100)
    again = c.SessionUpdate(session=SessionPatch(instructions="Dance.", output_modalities=[Modality.TEXT]))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, again, "session.instructions")
    bench.do(c.SessionUpdate(session=SessionPatch(instructions="Sing.", output_modalities=[Modality.TEXT])))
    assert bench.machine.config.modality is Modality.TEXT


def test_the_start_is_the_first_audio_too() -> None:
    bench = Bench(capabilities={"fixed_after_start": ("instructions",)})
    bench.append(100)
    command = c.SessionUpdate(session=SessionPatch(instructions="Dance."))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, command, "session.instructions")


def test_the_start_is_the_first_response_and_no_message_and_the_refusal_says_which() -> None:
    bench = Bench(capabilities={"fixed_after_start": ("instructions",)})
    bench.do(c.ConversationItemCreate(item=MessageItem(role=Role.USER, content=(InputText(text="Hello."),))))
    bench.do(c.SessionUpdate(session=SessionPatch(instructions="Dance.")))
    bench.do(c.ResponseCreate())
    command = c.SessionUpdate(session=SessionPatch(instructions="Sing."))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, command, "session.instructions")
    assert "a response was created" in bench.of(ErrorEvent)[-1].error.message


def test_a_refused_command_does_not_start_the_model() -> None:
    bench = Bench(capabilities={"fixed_after_start": ("instructions",)})
    bench.refused(c.InputAudioBufferAppend(audio=b""))
    bench.do(c.SessionUpdate(session=SessionPatch(instructions="Dance.")))
    assert bench.machine.config.instructions == "Dance."


def test_turn_detection_off_in_mid_speech() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("." * 10 + "s" * 10)
    step = bench.do(detection(None))
    assert kinds(step.events) == ["SpeechStopped", "SessionUpdated"], "what was begun ends, also for the client"
    assert bench.only(SpeechStopped).audio_end_ms == 20 * FRAME_MS
    assert [event.item_id for event in told(step.effects, m.SpeechDropped)] == [bench.only(SpeechStarted).item_id]
    assert bench.is_in(Hearing.QUIET)
    assert not bench.timers
    bench.judge("s" * 10)
    before = len(bench.effects)
    bench.append(320)
    assert not [effect for effect in bench.effects[before:] if isinstance(effect, Detect)]
    bench.commit()
    committed = bench.told(m.InputCommitted)[-1]
    assert same_audio(committed.pcm, 0, 20 * FRAME_MS + 320), "what was said is there to be committed by hand"


def test_turn_detection_on() -> None:
    bench = Bench()
    bench.append(640)
    step = bench.do(detection(ServerVad()))
    (reset,) = (effect for effect in step.effects if isinstance(effect, ResetDetector))
    assert reset.start_ms == 640
    bench.speech("s" * 10 + PAUSE)
    assert bench.only(SpeechStarted).audio_start_ms == 340
    bench.only(InputCommitted)


def test_settings_change_in_mid_speech() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 10)
    step = bench.do(detection(ServerVad(silence_duration_ms=1000)))
    assert not [effect for effect in step.effects if isinstance(effect, ResetDetector)], "the speech goes on"
    bench.speech("." * 31)
    assert not bench.of(InputCommitted)
    bench.speech(".")
    assert bench.of(InputCommitted)


def test_a_waiting_commit_is_carried_out_under_the_old_rules() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    bench.judge("s" * 30)
    step = bench.do(detection(None))
    assert kinds(step.events)[:2] == ["SpeechStopped", "InputCommitted"]
    assert kinds(step.events)[-1] == "SessionUpdated"


def quiet_after_an_answer(idle_timeout_ms: int | None = 5000) -> Bench:
    bench = Bench(vad=ServerVad(idle_timeout_ms=idle_timeout_ms))
    bench.ask()
    bench.speak("Yes.", ms=1000)
    bench.end()
    bench.wait(1000)
    return bench


@pytest.mark.parametrize("off", [None, ServerVad()])
def test_the_idle_timeout_can_be_turned_off(off: ServerVad | None) -> None:
    bench = quiet_after_an_answer()
    assert bench.timers == {IDLE_TIMER: 6000.0}
    bench.do(detection(off))
    assert not bench.timers
    bench.wait(60_000)
    assert not bench.of(InputTimeoutTriggered)


def test_the_idle_timeout_counts_from_the_last_sound_whenever_it_is_set() -> None:
    bench = quiet_after_an_answer(None)
    bench.wait(3000)
    bench.do(detection(ServerVad(idle_timeout_ms=5000)))
    assert bench.timers == {IDLE_TIMER: 6000.0}
    bench.do(detection(ServerVad(idle_timeout_ms=2000)))
    assert bench.timers == {IDLE_TIMER: 4000.0}, "at once, since it is over"
    bench.wait(0)
    assert bench.of(InputTimeoutTriggered)


def test_the_idle_timeout_does_not_begin_while_somebody_speaks() -> None:
    bench = quiet_after_an_answer()
    bench.speech("s" * 10)
    bench.do(detection(ServerVad(idle_timeout_ms=2000)))
    assert IDLE_TIMER not in bench.timers
    bench.speech(PAUSE)
    bench.do(detection(ServerVad(idle_timeout_ms=3000)))
    assert not bench.timers, "an answer is being made"


def test_the_idle_timeout_counts_from_a_cancelled_answer_too() -> None:
    bench = Bench(vad=ServerVad(idle_timeout_ms=5000))
    bench.ask()
    bench.wait(700)
    bench.do(c.ResponseCancel())
    assert bench.timers == {IDLE_TIMER: 5700.0}


def test_the_idle_timeout_of_a_fresh_session_waits_for_an_answer() -> None:
    bench = Bench(vad=ServerVad())
    bench.do(detection(ServerVad(idle_timeout_ms=5000)))
    assert not bench.timers


def test_speech_after_detection_was_off_for_a_while_begins_behind_what_was_told_before() -> None:
    bench = Bench(vad=ServerVad(), capabilities={"turn_policy": TurnPolicy.MODEL})
    bench.speech("s" * 20)
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=None)))
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=ServerVad())))
    bench.speech("s" * 4)
    stopped = bench.only(SpeechStopped)
    assert bench.of(SpeechStarted)[1].audio_start_ms >= stopped.audio_end_ms

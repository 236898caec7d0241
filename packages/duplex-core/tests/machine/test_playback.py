"""Playback truth: acknowledgements, both policies, truncation, and what of an answer is history."""

from __future__ import annotations

import msgspec
import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import Modality
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    ItemTruncated,
    OutputAudioDelta,
    OutputBufferCleared,
    PlaybackAcknowledged,
    ResponseDone,
    ResponseStatus,
)
from duplex_core.items import ItemStatus, item_text
from duplex_core.ledger import CommitPolicy, PlaybackLedger, TextMark
from duplex_core.machine.sounding import PLAYBACK_TIMER
from duplex_core.machine.table import Answer, Sound
from duplex_core.patch import PlaybackPatch, ResponseParams, SessionPatch
from tests.support.machines import Bench, kinds, said, told

TEXT = "One two three four."
MARKED = ((7, 400.0), (19, 1000.0))


def ledger(generated: float, sent: float, played: float, committed: float) -> PlaybackLedger:
    return PlaybackLedger(generated_ms=generated, sent_ms=sent, played_ms=played, committed_ms=committed)


def answered(policy: CommitPolicy = CommitPolicy.COMMIT_ALL_ON_DONE, *, made: bool = True) -> Bench:
    """An answer of one second, at this moment sent as a whole."""
    bench = Bench(commit_policy=policy)
    bench.ask()
    bench.speak(TEXT, ms=1000, marks=MARKED)
    if made:
        bench.end()
    return bench


def answer(bench: Bench) -> str:
    """The answer's words, as a model would be told them."""
    return " ".join(item_text(item) for item in bench.history[1:])


def item_id(bench: Bench) -> str:
    """The answer's item."""
    return bench.machine._core.history.last_id or ""


def ack(bench: Bench, played_ms: float, **fields: object) -> list[PlaybackAcknowledged]:
    command = c.PlaybackAck(played_ms=played_ms, **fields)  # type: ignore[arg-type]
    return [event for event in bench.do(command).events if isinstance(event, PlaybackAcknowledged)]


def truncate(bench: Bench, audio_end_ms: int, *, item: str | None = None, content_index: int = 0) -> c.Command:
    return c.ConversationItemTruncate(
        item_id=item or item_id(bench), content_index=content_index, audio_end_ms=audio_end_ms
    )


# -- the sound ---------------------------------------------------------------------------------------------------------


def test_it_sounds_until_all_was_heard() -> None:
    bench = answered()
    assert bench.is_in(Sound.SOUNDING)
    assert bench.timers == {PLAYBACK_TIMER: 1000.0}
    bench.wait(999)
    assert bench.is_in(Sound.SOUNDING)
    bench.wait(1)
    assert bench.is_in(Sound.SILENT)
    assert not bench.timers
    assert answer(bench) == TEXT


def test_an_answer_made_no_faster_than_it_sounds_sets_no_timer_meanwhile() -> None:
    bench = Bench()
    bench.ask()
    for _ in range(20):
        bench.speak("word ", ms=80)
        bench.wait(100)
    assert not bench.timers
    assert bench.is_in(Sound.SOUNDING)
    bench.end()
    assert bench.is_in(Sound.SILENT)
    assert not bench.timers


def test_each_answer_settles_when_its_own_sound_ends() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    bench.ask()
    bench.speak("Five six.", ms=60_000)
    bench.wait(1000)
    assert len(bench.machine._core.playback.tracks) == 1


def test_every_delta_carries_the_ledger_and_its_marks() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two ", ms=400, marks=((7, 400.0),))
    bench.speak("three four.")
    bench.speak(marks=((13, 700.0),))
    bench.speak(ms=600, marks=((19, 1000.0),))
    first, second = bench.of(OutputAudioDelta)
    assert first.metadata.playback == ledger(400, 400, 0, 0)
    assert first.metadata.audio_text_marks == [TextMark(chars=7, ms=400.0)]
    assert second.metadata.playback == ledger(1000, 1000, 0, 0)
    assert second.metadata.audio_text_marks == [TextMark(chars=13, ms=700.0), TextMark(chars=19, ms=1000.0)]
    assert (second.metadata.audio_duration_ms, second.sample_rate_hz, second.format) == (600.0, 24000, "audio/pcm")


# -- acknowledgements --------------------------------------------------------------------------------------------------


def test_an_acknowledgement_is_told_with_the_ledger() -> None:
    bench = answered()
    (told_back,) = ack(bench, 300.0)
    assert told_back.playback == ledger(1000, 1000, 300, 300)
    assert told_back.item_id == item_id(bench)
    (told_back,) = ack(bench, 800.0, committed_ms=600.0)
    assert told_back.playback == ledger(1000, 1000, 800, 600)
    (told_back,) = ack(bench, 100.0)
    assert told_back.playback == ledger(1000, 1000, 800, 800)


def test_an_acknowledgement_is_believed_more_than_the_clock() -> None:
    bench = answered(made=False)
    ack(bench, 300.0)
    bench.wait(700)
    bench.do(c.BargeIn())
    assert bench.only(ItemTruncated).audio_end_ms == 300
    assert answer(bench) == ""


def test_it_sounds_as_long_as_the_acknowledgements_say() -> None:
    bench = answered()
    bench.wait(900)
    ack(bench, 200.0)
    bench.wait(799)
    assert bench.is_in(Sound.SOUNDING)
    bench.wait(1)
    assert bench.is_in(Sound.SILENT)


@pytest.mark.parametrize("names", [{"response_id": "resp_x"}, {"item_id": "item_x"}])
def test_an_acknowledgement_of_what_never_was_is_ignored(names: dict[str, str]) -> None:
    bench = answered()
    step = bench.do(c.PlaybackAck(played_ms=300.0, **names))  # type: ignore[arg-type]
    assert not step.events


def test_an_acknowledgement_of_a_superseded_answer_is_ignored() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    response = bench.only(ResponseDone).response.id
    ack(bench, 500.0)
    bench.do(c.BargeIn())
    bench.ask()
    kept = answer(bench)
    assert ack(bench, 1000.0, response_id=response) == []
    assert answer(bench) == kept


def test_an_interruption_supersedes_what_was_over_before_it() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    response = bench.only(ResponseDone).response.id
    ack(bench, 450.0)
    bench.wait(5000)
    bench.ask()
    bench.do(c.ResponseCancel())
    assert ack(bench, 1000.0, response_id=response) == []
    assert answer(bench).startswith("One two Well?")


def test_without_a_name_it_is_about_the_newest_sound() -> None:
    bench = answered()
    first = item_id(bench)
    bench.wait(1000)
    bench.ask()
    assert [event.item_id for event in ack(bench, 900.0)] == [first], "the second has not sounded yet"
    bench.speak("Five.", ms=500)
    assert [event.item_id for event in ack(bench, 100.0)] != [first]


@pytest.mark.parametrize(
    ("field", "value"),
    [("played_ms", -1.0), ("played_ms", float("nan")), ("played_ms", float("inf")), ("committed_ms", -0.5)],
)
def test_a_time_that_cannot_be_is_refused(field: str, value: float) -> None:
    bench = answered()
    command = msgspec.structs.replace(c.PlaybackAck(played_ms=0.0), **{field: value})
    bench.refused_with(ErrorCode.INVALID_VALUE, command, field)


def test_more_than_was_sent_cannot_be_heard() -> None:
    bench = answered(made=False)
    assert ack(bench, 5000.0)[0].playback == ledger(1000, 1000, 1000, 1000)


# -- the policies ------------------------------------------------------------------------------------------------------


def test_commit_all_keeps_a_finished_answer_unheard_as_it_may_be() -> None:
    bench = answered()
    assert answer(bench) == TEXT
    bench.wait(5000)
    assert answer(bench) == TEXT


def test_ack_only_keeps_what_was_acknowledged() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    assert answer(bench) == ""
    ack(bench, 450.0)
    assert answer(bench) == "One two"
    bench.wait(5000)
    assert answer(bench) == "One two", "the clock says nothing here"
    ack(bench, 1000.0)
    assert answer(bench) == TEXT, "late, but nothing came between"


def test_ack_only_keeps_what_the_client_committed() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    ack(bench, 1000.0, committed_ms=450.0)
    assert answer(bench) == "One two"
    bench.wait(5000)
    assert answer(bench) == "One two"


def test_ack_only_interrupted_keeps_what_was_acknowledged() -> None:
    bench = answered(CommitPolicy.ACK_ONLY, made=False)
    bench.wait(900)
    ack(bench, 450.0)
    bench.do(c.ResponseCancel())
    assert answer(bench) == "One two"
    assert bench.only(ItemTruncated).audio_end_ms == 450


def test_the_next_question_is_asked_with_what_was_heard() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    ack(bench, 450.0)
    bench.ask("And then?")
    respond = bench.told(m.Respond)[-1]
    assert [item_text(item) for item in respond.history] == ["Well?", "One two", "And then?"]


def test_the_policy_can_change_in_the_midst() -> None:
    bench = answered(CommitPolicy.ACK_ONLY)
    ack(bench, 450.0)
    patch = SessionPatch(playback=PlaybackPatch(commit_policy=CommitPolicy.COMMIT_ALL_ON_DONE))
    bench.do(c.SessionUpdate(session=patch))
    bench.wait(5000)
    assert answer(bench) == TEXT


# -- an acknowledgement that ends the sound ----------------------------------------------------------------------------


def test_no_more_will_be_played_of_a_finished_answer() -> None:
    bench = answered()
    bench.wait(200)
    step = bench.do(c.PlaybackAck(played_ms=450.0, truncate=True))
    assert kinds(step.events) == ["PlaybackAcknowledged", "ItemTruncated"]
    assert answer(bench) == "One two"
    assert bench.is_in(Sound.SILENT)
    assert not bench.timers
    assert bench.fence.epoch == 0
    assert ack(bench, 1000.0) == []
    (changed,) = told(step.effects, m.HistoryChanged)
    assert item_text(changed.history[-1]) == "One two"


def test_no_more_will_be_played_of_an_answer_that_is_being_made() -> None:
    bench = answered(made=False)
    bench.do(c.PlaybackAck(played_ms=450.0, truncate=True))
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert answer(bench) == "One two"
    assert bench.fence.epoch == 1


def test_the_client_knows_better_than_the_clock_after_the_end() -> None:
    bench = answered()
    bench.wait(5000)
    bench.do(c.PlaybackAck(played_ms=450.0, truncate=True))
    assert answer(bench) == "One two"
    assert ack(bench, 1000.0) == [], "it is done with"


# -- truncation --------------------------------------------------------------------------------------------------------


def test_truncation_while_it_is_made() -> None:
    bench = answered(made=False)
    bench.do(truncate(bench, 450))
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert (bench.only(ItemTruncated).audio_end_ms, answer(bench)) == (450, "One two")
    assert bench.fence.epoch == 1
    assert bench.only(OutputBufferCleared).audio_end_ms == 450


def test_truncation_before_its_first_sound() -> None:
    bench = Bench()
    bench.ask()
    bench.speak(TEXT)
    bench.do(truncate(bench, 0))
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert (bench.only(ItemTruncated).audio_end_ms, answer(bench)) == (0, "")
    assert bench.is_in(Answer.NONE)


def test_truncation_while_it_sounds() -> None:
    bench = answered()
    bench.do(truncate(bench, 450))
    assert len(bench.of(ResponseDone)) == 1
    assert (bench.only(ItemTruncated).audio_end_ms, answer(bench)) == (450, "One two")
    assert bench.is_in(Sound.SILENT)


@pytest.mark.parametrize("policy", CommitPolicy)
def test_truncation_after_it_was_heard(policy: CommitPolicy) -> None:
    bench = answered(policy)
    ack(bench, 1000.0)
    bench.wait(5000)
    step = bench.do(truncate(bench, 450))
    assert kinds(step.events) == ["ItemTruncated"]
    assert answer(bench) == "One two"
    assert bench.fence.epoch == 0
    (changed,) = told(step.effects, m.HistoryChanged)
    assert item_text(changed.history[-1]) == "One two"
    assert bench.machine._core.history.get(item_id(bench)).item.status is ItemStatus.INCOMPLETE


@pytest.mark.parametrize("policy", CommitPolicy)
def test_nothing_restores_what_was_cut(policy: CommitPolicy) -> None:
    bench = answered(policy)
    ack(bench, 1000.0)
    bench.wait(5000)
    bench.do(truncate(bench, 450))
    response = bench.only(ResponseDone).response.id
    ack(bench, 1000.0, response_id=response)
    assert answer(bench) == "One two"
    bench.do(truncate(bench, 900))
    assert answer(bench) == "One two"
    assert bench.of(ItemTruncated)[-1].audio_end_ms == 450, "where the item does end"
    bench.do(truncate(bench, 100))
    assert answer(bench) == ""


def test_truncation_beyond_the_sound_is_refused() -> None:
    bench = answered()
    bench.refused_with(ErrorCode.INVALID_VALUE, truncate(bench, 1002), "audio_end_ms")
    bench.do(truncate(bench, 1000))
    assert answer(bench) == TEXT


def test_truncation_of_what_is_no_spoken_answer_is_refused() -> None:
    bench = answered()
    user_id = bench.history[0].id
    bench.refused_with(ErrorCode.INVALID_VALUE, truncate(bench, 0, item=user_id), "item_id")
    bench.refused_with(ErrorCode.ITEM_NOT_FOUND, truncate(bench, 0, item="item_x"), "item_id")
    bench.refused_with(ErrorCode.INVALID_VALUE, truncate(bench, 0, content_index=1), "content_index")
    bench.do(c.SessionUpdate(session=SessionPatch(output_modalities=[Modality.TEXT])))
    bench.ask()
    bench.speak("Written.")
    bench.end()
    bench.refused_with(ErrorCode.INVALID_VALUE, truncate(bench, 0), "item_id")


def test_a_deleted_answer_may_sound_on_and_be_acknowledged() -> None:
    bench = answered()
    gone = item_id(bench)
    bench.do(c.ConversationItemDelete(item_id=gone))
    assert len(ack(bench, 300.0)) == 1
    bench.do(c.BargeIn())
    assert not bench.of(ItemTruncated)
    assert answer(bench) == ""


def test_an_answer_outside_the_conversation_sounds_and_leaves_no_history() -> None:
    bench = Bench()
    bench.do(c.ResponseCreate(response=ResponseParams(conversation="none")))
    bench.speak(TEXT, ms=1000)
    bench.end()
    assert bench.is_in(Sound.SOUNDING)
    assert len(ack(bench, 300.0)) == 1
    bench.do(c.BargeIn())
    assert bench.history == ()
    assert bench.only(OutputBufferCleared).audio_end_ms == 300


def test_a_model_that_speaks_no_sound_is_read() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("Only text.")
    bench.end()
    assert answer(bench) == "Only text."
    assert bench.history[-1] == bench.only(ResponseDone).response.output[0]


def test_unheard_text_is_not_told_while_the_answer_is_being_made() -> None:
    bench = Bench()
    bench.ask()
    bench.speak(TEXT)
    step = bench.do(c.ConversationItemCreate(item=said("Wait.")))
    (changed,) = told(step.effects, m.HistoryChanged)
    assert [item_text(item) for item in changed.history] == ["Well?", "Wait."]
    bench.speak(ms=1000, marks=MARKED)
    bench.wait(450)
    step = bench.do(c.ConversationItemCreate(item=said("Stop.")))
    (changed,) = told(step.effects, m.HistoryChanged)
    assert [item_text(item) for item in changed.history] == ["Well?", "One two", "Wait.", "Stop."]

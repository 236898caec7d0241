"""What the user was understood to say: before the commit, after it, and whatever becomes of the answer."""

from __future__ import annotations

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import ServerVad, Transcription
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    InputCommitted,
    ItemAdded,
    SpeechStarted,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptUsage,
)
from duplex_core.items import InputAudio, InputText, MessageItem, Role, item_text
from tests.support.machines import Bench, kinds

PAUSE = "." * 16
DEAF = error(ErrorCode.ENGINE_ERROR, "the recogniser broke")


def listening(*, transcription: bool = True) -> Bench:
    """A session in which the user is speaking."""
    bench = Bench(
        vad=ServerVad(),
        transcription=Transcription() if transcription else None,
        capabilities={"input_transcription": True},
    )
    bench.speech("s" * 20)
    return bench


def hear(bench: Bench, text: str, *, final: bool = False, item_id: str | None = None) -> list[str]:
    """The model understood this; the events that follow."""
    item_id = item_id or bench.of(SpeechStarted)[-1].item_id
    return kinds(bench.do(m.UserTranscript(item_id=item_id, text=text, final=final)).events)


def deltas(bench: Bench) -> str:
    return "".join(event.delta for event in bench.of(TranscriptionDelta))


def test_partial_then_final() -> None:
    bench = listening()
    assert hear(bench, "turn") == []
    assert hear(bench, "turn on") == ["TranscriptionDelta"]
    bench.speech(PAUSE)
    assert hear(bench, "turn on the light") == ["TranscriptionDelta"]
    assert item_text(bench.history[0]) == "turn on the light", "known so far"
    assert hear(bench, "Turn on the light.", final=True) == ["TranscriptionCompleted"], "it contradicts what was told"
    assert deltas(bench) == "turn on"
    completed = bench.only(TranscriptionCompleted)
    assert completed.transcript == item_text(bench.history[0]) == "Turn on the light."
    assert completed.item_id == bench.only(InputCommitted).item_id
    assert completed.usage == TranscriptUsage(seconds=0.8), "20 frames of speech and the tail"


def test_final_comes_once() -> None:
    bench = listening()
    bench.speech(PAUSE)
    assert hear(bench, "One.", final=True) == ["TranscriptionDelta", "TranscriptionCompleted"]
    assert hear(bench, "Two.", final=True) == []
    assert hear(bench, "Three.") == []
    assert item_text(bench.history[0]) == "One."


def test_final_before_the_commit_is_told_at_the_commit() -> None:
    bench = listening()
    assert hear(bench, "Hello.", final=True) == ["TranscriptionDelta"]
    before = len(bench.events)
    bench.speech(PAUSE)
    assert kinds(bench.events[before:]) == [
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "ItemCreated",
        "ItemDone",
        "TranscriptionCompleted",
        "ResponseCreated",
    ]
    assert item_text(bench.only(ItemAdded).item) == "Hello."
    assert item_text(bench.told(m.Respond)[0].history[0]) == "Hello."


def test_it_survives_a_cancelled_answer() -> None:
    bench = listening()
    bench.speech(PAUSE)
    bench.do(c.ResponseCancel())
    hear(bench, "Hello.", final=True)
    assert bench.only(TranscriptionCompleted).transcript == "Hello."
    assert item_text(bench.history[0]) == "Hello."


def test_it_failed_after_the_commit() -> None:
    bench = listening()
    bench.speech(PAUSE)
    item_id = bench.only(InputCommitted).item_id
    assert kinds(bench.do(m.TranscriptFailed(item_id=item_id, error=DEAF)).events) == ["TranscriptionFailed"]
    assert hear(bench, "Too late.", final=True) == []
    assert bench.do(m.TranscriptFailed(item_id=item_id, error=DEAF)).events == ()


def test_it_failed_before_the_commit() -> None:
    bench = listening()
    item_id = bench.only(SpeechStarted).item_id
    assert bench.do(m.TranscriptFailed(item_id=item_id, error=DEAF)).events == ()
    bench.speech(PAUSE)
    assert bench.only(TranscriptionFailed).error == DEAF
    assert not bench.of(TranscriptionCompleted)
    item = bench.history[0]
    assert isinstance(item, MessageItem)
    assert isinstance(item.content[0], InputAudio)
    assert item.content[0].transcript is None


def test_without_transcription_the_history_knows_and_the_client_does_not() -> None:
    bench = listening(transcription=False)
    hear(bench, "Hel")
    hear(bench, "Hello")
    bench.speech(PAUSE)
    assert hear(bench, "Hello.", final=True) == []
    assert item_text(bench.history[0]) == "Hello."
    bench.do(m.TranscriptFailed(item_id=bench.only(InputCommitted).item_id, error=DEAF))
    assert not bench.of(TranscriptionFailed)


def test_what_was_said_in_dropped_speech_is_forgotten() -> None:
    bench = listening()
    item_id = bench.only(SpeechStarted).item_id
    hear(bench, "Hello", item_id=item_id)
    bench.do(c.InputAudioBufferClear())
    assert hear(bench, "Hello there", item_id=item_id, final=True) == []
    assert bench.do(m.TranscriptFailed(item_id=item_id, error=DEAF)).events == ()


def test_a_deleted_item_is_not_transcribed() -> None:
    bench = listening()
    bench.speech(PAUSE)
    item_id = bench.only(InputCommitted).item_id
    bench.do(c.ConversationItemDelete(item_id=item_id))
    assert hear(bench, "Hello.", item_id=item_id, final=True) == []


def test_an_id_that_nobody_knows_is_ignored() -> None:
    bench = listening()
    assert hear(bench, "Hello.", item_id="item_x", final=True) == []
    assert bench.do(m.TranscriptFailed(item_id="item_x", error=DEAF)).events == ()


def test_written_text_is_not_transcribed() -> None:
    bench = listening()
    bench.do(c.ConversationItemCreate(item=MessageItem(id="w", role=Role.USER, content=(InputText(text="Hi"),))))
    assert hear(bench, "Hello.", item_id="w", final=True) == []
    assert item_text(bench.history[0]) == "Hi"


def test_speech_that_the_client_put_in_is_transcribed_where_it_stands() -> None:
    bench = listening()
    parts = (InputText(text="Look:"), InputAudio(audio=b"\1\0"))
    bench.do(c.ConversationItemCreate(item=MessageItem(id="a", role=Role.USER, content=parts)))
    assert hear(bench, "a cat", item_id="a", final=True) == ["TranscriptionDelta", "TranscriptionCompleted"]
    assert bench.only(TranscriptionCompleted).content_index == 1
    assert item_text(bench.history[0]) == "Look: a cat"


def test_two_utterances_are_not_mixed() -> None:
    bench = listening()
    bench.speech(PAUSE + "s" * 20 + PAUSE)
    first, second = (event.item_id for event in bench.of(InputCommitted))
    hear(bench, "Second.", item_id=second, final=True)
    hear(bench, "First.", item_id=first, final=True)
    assert [item_text(item) for item in bench.history if item.id in (first, second)] == ["First.", "Second."]

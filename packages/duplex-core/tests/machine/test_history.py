"""The history: items in order, and what of them a model is told."""

from __future__ import annotations

import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    ItemStatus,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    item_text,
)
from duplex_core.ledger import TextMark
from duplex_core.machine.heard import Speech
from duplex_core.machine.history import ROOT, Entry, History, truncate, visible


def user(text: str, item_id: str) -> Entry:
    return Entry(item=MessageItem(id=item_id, role=Role.USER, content=(InputText(text=text),)))


def answer(text: str, item_id: str, *, ms: float = 1000.0, marks: tuple[tuple[int, float], ...] = ()) -> Entry:
    item = MessageItem(
        id=item_id, role=Role.ASSISTANT, content=(OutputAudio(transcript=text),), status=ItemStatus.COMPLETED
    )
    speech = Speech(marks=[TextMark(chars=chars, ms=at) for chars, at in marks], audio_ms=ms, complete=True)
    return Entry(item=item, speech=speech, made_ms=ms)


def call(call_id: str, status: ItemStatus = ItemStatus.COMPLETED) -> Entry:
    return Entry(item=FunctionCallItem(id=f"item_{call_id}", call_id=call_id, name="f", arguments="{}", status=status))


def output(call_id: str) -> Entry:
    return Entry(item=FunctionCallOutputItem(id=f"item_{call_id}_out", call_id=call_id, output="42"))


def of(*entries: Entry) -> History:
    history = History()
    for entry in entries:
        history.insert(entry)
    return history


def ids(items: tuple[Item, ...] | History) -> list[str | None]:
    return [item.id for item in items]


def test_items_stand_where_they_were_put() -> None:
    history = of(user("a", "1"), user("b", "2"))
    assert history.insert(user("c", "3"), history.place("1")) == "1"
    assert history.insert(user("d", "4"), history.place(ROOT)) is None
    assert history.insert(user("e", "5"), history.place(None)) == "2"
    assert ids(history) == ["4", "1", "3", "2", "5"]
    assert history.last_id == "5"
    history.delete(history.get("3"))
    assert ids(history) == ["4", "1", "2", "5"]
    assert len(history) == 4


def test_an_unknown_item_is_named_in_the_refusal() -> None:
    history = of(user("a", "1"))
    with pytest.raises(DuplexError, match="no item 'x'") as refused:
        history.place("x")
    assert (refused.value.info.code, refused.value.info.param) == (ErrorCode.ITEM_NOT_FOUND, "previous_item_id")


def test_a_model_is_told_an_unsettled_answer_only_as_far_as_it_was_heard() -> None:
    entry = answer("One two three four.", "a", marks=((7, 400.0), (19, 1000.0)))
    entry.settled = False
    history = of(user("Count.", "u"), entry)
    assert [item_text(item) for item in history.for_model({"a": 500.0})] == ["Count.", "One two"]
    assert [item_text(item) for item in history.for_model({"a": None})] == ["Count.", "One two three four."]
    assert ids(history.for_model({"a": 100.0})) == ["u"], "of which nothing was heard is left out"
    assert ids(history.for_model({})) == ["u"], "of which nothing is known, nothing was heard"


def test_a_settled_answer_is_told_as_it_was_kept() -> None:
    entry = answer("One two three four.", "a", marks=((7, 400.0), (19, 1000.0)))
    history = of(entry)
    assert [item_text(item) for item in history.for_model({"a": 1.0})] == ["One two three four."]
    entry.kept_ms = 400.0
    assert [item_text(item) for item in history.for_model({})] == ["One two"]


def test_items_without_content_are_left_out() -> None:
    empty = Entry(item=MessageItem(id="e", role=Role.USER, content=(InputAudio(audio=b""),)))
    unspoken = Entry(item=MessageItem(id="n", role=Role.ASSISTANT, content=()))
    blank = Entry(item=MessageItem(id="b", role=Role.ASSISTANT, content=(OutputText(text="  "),)))
    picture = Entry(item=MessageItem(id="p", role=Role.USER, content=(InputImage(image_url="data:x"),)))
    heard = Entry(item=MessageItem(id="h", role=Role.USER, content=(InputAudio(audio=b"\0\0"),)))
    assert ids(of(empty, unspoken, blank, picture, heard).for_model({})) == ["p", "h"]


@pytest.mark.parametrize("status", [ItemStatus.IN_PROGRESS, ItemStatus.INCOMPLETE])
def test_a_call_that_is_not_whole_is_told_to_nobody(status: ItemStatus) -> None:
    history = of(call("whole"), output("whole"), call("cut", status), output("cut"), output("gone"))
    assert ids(history.for_model({})) == ["item_whole", "item_whole_out"]


def test_calls_are_known_by_their_id() -> None:
    history = of(call("c1"), call("c2"), output("c2"))
    found = history.call("c1")
    assert found is not None
    assert found.id == "item_c1"
    assert history.call("c3") is None
    assert (history.answered("c1"), history.answered("c2")) == (False, True)


def test_truncation_removes_what_was_not_heard_and_restores_nothing() -> None:
    entry = answer("One two three four.", "a", marks=((3, 200.0), (7, 400.0), (19, 1000.0)))
    truncate(entry, 500.0)
    assert item_text(entry.item) == "One two"
    assert (entry.item.status, entry.kept_ms, entry.made_ms) == (ItemStatus.INCOMPLETE, 500.0, 1000.0)
    truncate(entry, 1000.0)
    assert (item_text(entry.item), entry.kept_ms) == ("One two", 500.0)
    truncate(entry, 250.0)
    assert (item_text(entry.item), entry.kept_ms) == ("One", 250.0)
    assert [item_text(item) for item in of(entry).for_model({})] == ["One"]


def test_truncation_at_the_end_leaves_the_answer_whole() -> None:
    entry = answer("One two.", "a")
    truncate(entry, 1000.0)
    assert (item_text(entry.item), entry.item.status) == ("One two.", ItemStatus.COMPLETED)


def test_a_transcript_is_written_into_the_audio_alone() -> None:
    parts = (InputText(text="see"), InputAudio(audio=b"\1\0"))
    history = of(Entry(item=MessageItem(id="u", role=Role.USER, content=parts)), call("c"))
    history.transcribe("u", "hear")
    history.transcribe("item_c", "nothing happens")
    history.transcribe("gone", "nothing happens")
    assert item_text(history.get("u").item) == "see hear"


def test_events_show_no_audio_unless_it_was_asked_for() -> None:
    heard = MessageItem(id="u", role=Role.USER, content=(InputAudio(audio=b"\1\0", transcript="hi"),))
    shown = visible(heard)
    assert shown == MessageItem(id="u", role=Role.USER, content=(InputAudio(transcript="hi"),))
    assert visible(heard, audio=True) is heard
    assert visible(shown) is shown

"""The client's edits: create, retrieve and delete items."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import ServerVad
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    ErrorEvent,
    InputCommitted,
    ItemAdded,
    ItemCreated,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    SpeechStarted,
)
from duplex_core.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    ItemStatus,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    item_text,
)
from duplex_core.machine import history
from duplex_core.machine.table import Hearing
from duplex_core.patch import ResponseParams
from tests.support.machines import Bench, kinds, said, told

PAUSE = "." * 16


def put(bench: Bench, text: str, *, item_id: str | None = None, after: str | None = None) -> str:
    bench.do(c.ConversationItemCreate(item=said(text, item_id=item_id), previous_item_id=after))
    return bench.of(ItemAdded)[-1].item.id or ""


def texts(bench: Bench) -> list[str]:
    return [item_text(item) for item in bench.history]


def test_a_new_item_is_told_to_both() -> None:
    bench = Bench()
    first = put(bench, "one")
    step = bench.do(c.ConversationItemCreate(item=said("two")))
    assert kinds(step.events) == ["ItemAdded", "ItemCreated", "ItemDone"]
    added, created, done = bench.of(ItemAdded)[-1], bench.of(ItemCreated)[-1], bench.of(ItemDone)[-1]
    assert added.previous_item_id == created.previous_item_id == done.previous_item_id == first
    assert added.item == created.item == done.item
    assert (added.item.status, added.item.object) == (ItemStatus.COMPLETED, "realtime.item")
    assert bench.of(ItemAdded)[0].previous_item_id is None
    (changed,) = told(step.effects, m.HistoryChanged)
    assert [item_text(item) for item in changed.history] == ["one", "two"]


def test_items_go_where_they_are_put() -> None:
    bench = Bench()
    first = put(bench, "b")
    put(bench, "a", after="root")
    assert bench.of(ItemAdded)[-1].previous_item_id is None
    put(bench, "c", after=first)
    assert bench.of(ItemAdded)[-1].previous_item_id == first
    put(bench, "d", item_id="mine")
    assert texts(bench) == ["a", "b", "c", "d"]
    assert bench.history[-1].id == "mine"


def test_a_place_that_is_not_there() -> None:
    bench = Bench()
    command = c.ConversationItemCreate(item=said("x"), previous_item_id="item_x")
    bench.refused_with(ErrorCode.ITEM_NOT_FOUND, command, "previous_item_id")


def test_an_id_is_used_once() -> None:
    bench = Bench()
    put(bench, "one", item_id="mine")
    bench.refused_with(ErrorCode.ITEM_EXISTS, c.ConversationItemCreate(item=said("two", item_id="mine")), "item.id")
    bench.refused_with(ErrorCode.ITEM_EXISTS, c.ConversationItemCreate(item=said("two", item_id="root")), "item.id")


def test_the_id_of_what_is_being_said_is_taken() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.speech("s" * 10)
    item_id = bench.only(SpeechStarted).item_id
    bench.refused_with(ErrorCode.ITEM_EXISTS, c.ConversationItemCreate(item=said("x", item_id=item_id)), "item.id")
    bench.speech(PAUSE)
    assert bench.only(InputCommitted).item_id == item_id


def test_an_id_that_the_machine_would_have_allotted_is_passed_over() -> None:
    bench = Bench()
    for number in range(1, 30):
        bench.do(c.ConversationItemCreate(item=said("x", item_id=f"item_1_{number}")))
    bench.ask()
    bench.speak("Yes.", ms=10)
    bench.end()
    names = [item.id for item in bench.history]
    assert len(names) == len(set(names)) == 31


@pytest.mark.parametrize(
    ("role", "part", "param", "code"),
    [
        (Role.USER, OutputText(text="x"), "item.content[0].type", ErrorCode.INVALID_VALUE),
        (Role.ASSISTANT, InputText(text="x"), "item.content[0].type", ErrorCode.INVALID_VALUE),
        (Role.SYSTEM, InputAudio(audio=b"\1\0"), "item.content[0].type", ErrorCode.INVALID_VALUE),
        (
            Role.USER,
            InputImage(image_url="data:image/png;base64,AA=="),
            "item.content[0]",
            ErrorCode.UNSUPPORTED_PARAMETER,
        ),
        (Role.USER, InputAudio(), "item.content[0].audio", ErrorCode.EMPTY_AUDIO),
    ],
)
def test_what_a_message_cannot_hold(role: Role, part: ContentPart, param: str, code: ErrorCode) -> None:
    bench = Bench()
    item = MessageItem(role=role, content=(part,))
    bench.refused_with(code, c.ConversationItemCreate(item=item), param)


def test_a_message_needs_content() -> None:
    bench = Bench()
    item = MessageItem(role=Role.USER, content=())
    bench.refused_with(ErrorCode.INVALID_VALUE, c.ConversationItemCreate(item=item), "item.content")


@pytest.mark.parametrize(
    ("cannot", "role", "param"),
    [("text_input", Role.USER, "item.content[0]"), ("instructions", Role.SYSTEM, "item.role")],
)
def test_what_the_served_model_does_not_read(cannot: str, role: Role, param: str) -> None:
    bench = Bench(capabilities={cannot: False})
    item = MessageItem(role=role, content=(InputText(text="x"),))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, c.ConversationItemCreate(item=item), param)


def test_a_model_that_sees_gets_the_picture() -> None:
    bench = Bench(capabilities={"image_input": True})
    item = MessageItem(role=Role.USER, content=(InputImage(image_url="data:image/png;base64,AA=="),))
    bench.do(c.ConversationItemCreate(item=item))
    assert len(bench.history) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/cat.png", "this server fetches nothing"),
        ("data:text/plain;base64,AA==", "with a picture in base64"),
        ("data:image/png,AA", "with a picture in base64"),
        ("data:image/png;base64,AA", "is not base64"),
        ("data:image/png;base64,A%", "is not base64"),
        ("data:image/png;base64,", "has nothing in it"),
    ],
)
def test_a_picture_that_cannot_be_got_at_is_refused(url: str, message: str) -> None:
    bench = Bench(capabilities={"image_input": True})
    item = MessageItem(role=Role.USER, content=(InputText(text="This:"), InputImage(image_url=url)))
    bench.refused_with(ErrorCode.INVALID_VALUE, c.ConversationItemCreate(item=item), "item.content[1].image_url")
    assert message in bench.of(ErrorEvent)[-1].error.message
    assert not list(bench.history)


def test_an_earlier_conversation_can_be_put_in() -> None:
    bench = Bench()
    bench.do(c.ConversationItemCreate(item=MessageItem(role=Role.ASSISTANT, content=(OutputText(text="Hi."),))))
    bench.do(c.ConversationItemCreate(item=MessageItem(role=Role.ASSISTANT, content=(OutputAudio(transcript="Ho."),))))
    assert texts(bench) == ["Hi.", "Ho."]


def test_retrieve_gives_the_audio() -> None:
    bench = Bench()
    bench.append(100)
    bench.commit()
    bench.do(c.ConversationItemRetrieve(item_id=bench.history[0].id or ""))
    item = bench.only(ItemRetrieved).item
    assert isinstance(item, MessageItem)
    assert isinstance(item.content[0], InputAudio)
    assert len(item.content[0].audio or b"") == 3200
    bench.refused_with(ErrorCode.ITEM_NOT_FOUND, c.ConversationItemRetrieve(item_id="item_x"), "item_id")


def test_delete() -> None:
    bench = Bench()
    put(bench, "one", item_id="mine")
    put(bench, "two")
    step = bench.do(c.ConversationItemDelete(item_id="mine"))
    assert kinds(step.events) == ["ItemDeleted"]
    assert bench.only(ItemDeleted).item_id == "mine"
    assert texts(bench) == ["two"]
    (changed,) = told(step.effects, m.HistoryChanged)
    assert len(changed.history) == 1
    bench.refused_with(ErrorCode.ITEM_NOT_FOUND, c.ConversationItemDelete(item_id="mine"), "item_id")


def test_an_item_that_is_being_made_cannot_be_deleted() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One", ms=100)
    making = bench.of(ItemAdded)[-1].item.id or ""
    bench.refused_with(ErrorCode.ACTIVE_RESPONSE, c.ConversationItemDelete(item_id=making), "item_id")
    bench.end()
    bench.do(c.ConversationItemDelete(item_id=making))
    assert texts(bench) == ["Well?"]


def test_edits_while_the_user_speaks_and_the_model_answers() -> None:
    bench = Bench(vad=ServerVad(interrupt_response=False))
    bench.ask()
    bench.speak("One", ms=5000)
    bench.speech("s" * 10)
    put(bench, "meanwhile")
    assert bench.is_in(Hearing.SPEAKING)
    bench.speech(PAUSE)
    bench.end()
    assert kinds(bench.told(m.Respond)[-1].history) == ["MessageItem"] * 4


def calls_made(step: Callable[[], object]) -> int:
    """How many function calls it takes: a measure of work that no busy machine changes."""
    profile = cProfile.Profile()
    profile.runcall(step)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_response_made_from_many_items_costs_in_proportion_to_them() -> None:
    def asked(count: int) -> int:
        bench = Bench()
        put(bench, "before")
        messages = [said(str(index)) for index in range(count)]
        call = FunctionCallItem(name="f", arguments="{}", call_id="c")
        outputs = [FunctionCallOutputItem(call_id="c", output=str(index)) for index in range(count)]
        command = c.ResponseCreate(response=ResponseParams(conversation="none", input=(*messages, call, *outputs)))
        return calls_made(lambda: bench.do(command))

    assert asked(800) < 2.5 * asked(400)


def test_an_item_costs_no_more_to_find_among_many() -> None:
    def asked(count: int) -> int:
        bench = Bench()
        first = put(bench, "first")
        for index in range(count):
            put(bench, str(index))
        return calls_made(lambda: bench.do(c.ConversationItemRetrieve(item_id=first)))

    assert asked(500) == asked(5)


def test_a_conversation_has_room_for_so_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_ITEMS", 2)
    bench = Bench()
    put(bench, "one")
    put(bench, "two", item_id="two")
    bench.append(100)
    for command in (
        c.ConversationItemCreate(item=said("three")),
        c.InputAudioBufferCommit(),
        c.ResponseCreate(),
    ):
        bench.refused_with(ErrorCode.RESOURCE_EXHAUSTED, command)
    bench.do(c.ConversationItemDelete(item_id="two"))
    bench.do(c.InputAudioBufferCommit())
    assert len(bench.history) == 2


def test_the_sound_of_the_oldest_items_makes_room_and_words_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_BYTES", 1000)
    bench = Bench()
    for name in ("first", "second", "third"):
        part = InputAudio(audio=bytes(398), transcript="hi")
        item = MessageItem(id=name, role=Role.USER, content=(part,))
        bench.do(c.ConversationItemCreate(item=item))
    kept = [item.content[0] for item in bench.history if isinstance(item, MessageItem)]
    assert [(len(part.audio or b""), part.transcript) for part in kept if isinstance(part, InputAudio)] == [
        (0, "hi"),
        (398, "hi"),
        (398, "hi"),
    ]
    bench.refused_with(ErrorCode.RESOURCE_EXHAUSTED, c.ConversationItemCreate(item=said("x" * 1001)))
    put(bench, "y" * 990)
    assert texts(bench)[-1] == "y" * 990
    bench.refused_with(ErrorCode.RESOURCE_EXHAUSTED, c.ConversationItemCreate(item=said("x" * 10)))
    bench.do(c.ConversationItemDelete(item_id=bench.history[-1].id or ""))
    put(bench, "x" * 10)

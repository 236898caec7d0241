"""What fits into the engine's context, and what becomes of what does not: sessions under each window, and chats.

The engine is scripted: it keeps the books of a context with an end, as the vLLM runtime does, and says what a test wants.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_core.torch_tensors import of_torch
from duplex_core.workers import Append, Emit, Segment, SegmentEnd
from model_minicpmo.gpu.thinker import CLOSING, Thinker
from model_minicpmo.payloads import (
    ChatSensed,
    Decided,
    Opened,
    Options,
    Orders,
    Picture,
    Sensed,
    SensedMessage,
    SensedPart,
    Written,
)
from model_minicpmo.rules.window import Span, Window, WindowPolicy, fits, move
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

pytestmark = pytest.mark.engines

LIMIT = 1024
HIDDEN = 4
ROWS = of_torch(torch.zeros(10, HIDDEN))
VIEW = of_torch(torch.zeros(64, HIDDEN))
SLICED = Picture(whole=VIEW, slices=(VIEW,) * 9, columns=3)
"""Ten views: 660 positions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), dataclasses.replace(TINY))


class Books:
    """An engine with a context of `limit` positions that says `says` at every append."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        thinker = Thinker(checkpoint=str(folder), engine={"max_model_len": limit})
        self.program = thinker.open("s")
        self.layout = self.program._layout
        self.limit = limit
        self.context = 0
        self.pending = 0
        self.says: tuple[int, ...] = ()
        self.moves = 0

    def run(self, payload: Any) -> list[Any]:
        emitted: list[Any] = []
        steps = self.program.run(payload)
        answer: Segment | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return emitted
            answer = None
            if isinstance(step, Emit):
                emitted.append(step.payload)
            else:
                answer = self._append(step)

    def _append(self, step: Append) -> Segment:
        start = 0 if step.fresh else self.context
        pending = 0 if step.fresh or step.drop_last else self.pending
        fed = pending + len(step.ids)
        most = step.sampling.max_tokens
        if start + fed + most > self.limit:
            raise DuplexError(error(ErrorCode.CONTEXT_FULL, f"{start} + {fed} + {most} > {self.limit}"))
        assert fed
        self.moves += step.fresh and step.kept is not None
        chosen = self.says[:most] if step.sampling.stop_token_ids else (0,)
        self.context, self.pending = start + fed + len(chosen) - 1, 1
        stopped = chosen[-1] in step.sampling.stop_token_ids
        rows = fed + len(chosen) - 1
        return Segment(
            ids=chosen,
            end=SegmentEnd.STOP if stopped else SegmentEnd.LENGTH,
            fed=rows,
            context=self.context,
            hidden=of_torch(torch.zeros(rows, HIDDEN)) if step.hidden else None,
            told=chosen if step.sampling.decider is not None else (),
        )

    def open(self, **options: Any) -> None:
        tokens = self.layout.tokens
        self.says = (tokens.tts_bos, *[self.layout.encode("a")[0]] * 18, tokens.chunk_eos)
        self.run(Opened(prompt="Be there.", options=Options(**options)))

    def unit(self, number: int, *pictures: Picture, **orders: Any) -> Decided:
        decided, _ = self.run(Sensed(orders=Orders(number=number, **orders), audio=ROWS, pictures=pictures))
        assert isinstance(decided, Decided)
        return decided


WINDOWS = [
    {"window": "context", "context_units": 600, "previous_tokens": 4000},
    {"window": "context"},
    {"window": "basic", "high_tokens": 4000, "low_tokens": 3500},
    {"window": "basic", "high_tokens": 500, "low_tokens": 400},
]


@pytest.mark.parametrize("options", WINDOWS, ids=["context-600", "context", "basic-4000", "basic"])
@pytest.mark.parametrize("seen", [(), (SLICED,), (Picture(whole=VIEW),) * 4], ids=["blind", "slices", "four"])
def test_a_session_never_outgrows_the_engine(folder: Path, options: dict[str, Any], seen: tuple[Picture, ...]) -> None:
    """Every unit is as long as a unit can be: twenty tokens are chosen in each."""
    books = Books(folder)
    books.open(**options)
    decided = [
        books.unit(number, *(seen if number % 3 else ()), forced=number % 7 == 0, ends_turn=number % 7 == 0)
        for number in range(150)
    ]
    assert max(each.context for each in decided) <= LIMIT
    assert decided[-1].dropped_units > 20
    if not seen and options["window"] == "basic":
        assert books.moves < 50, "many units go at once"


def test_without_a_window_a_full_context_ends_the_session(folder: Path) -> None:
    books = Books(folder)
    books.open(window="off")
    while books.context + 31 + CLOSING + 3 < LIMIT:
        books.unit(0)
    with pytest.raises(DuplexError) as full:
        books.unit(0)
    assert full.value.info.code is ErrorCode.CONTEXT_FULL


@pytest.mark.parametrize("window", ["off", "basic", "context"])
def test_what_can_never_fit_is_refused_and_nothing_of_it_is_fed(folder: Path, window: str) -> None:
    books = Books(folder)
    books.open(window=window)
    before = books.unit(0).context
    for pictures, text in (((), "a " * LIMIT), ((SLICED, SLICED), "")):
        with pytest.raises(DuplexError) as refusal:
            books.unit(1, *pictures, text=text, asked=True, waited_for=True)
        assert refusal.value.info.code is ErrorCode.INVALID_VALUE
        assert not refusal.value.info.retryable
        assert books.context == before
    assert books.unit(1).context > before


def test_a_prompt_that_leaves_no_room_for_a_second_is_refused_and_one_that_leaves_just_that_is_served(
    folder: Path,
) -> None:
    fixed = Books(folder)
    fixed.open()
    for spare in (-1, 0):
        books = Books(folder, fixed.context + 11 + 20 + CLOSING + spare)
        if spare < 0:
            with pytest.raises(DuplexError) as refusal:
                books.open()
            assert refusal.value.info.code is ErrorCode.CONTEXT_FULL
            assert not books.context
        else:
            books.open()
            assert [books.unit(number).dropped_units for number in range(4)] == [0, 1, 2, 3]


def test_of_a_camera_s_pictures_those_that_fit_are_seen(folder: Path) -> None:
    books = Books(folder)
    books.open()
    one, two = (books.unit(number, *pictures) for number, pictures in enumerate([(), (SLICED, SLICED, SLICED)]))
    assert 660 < two.context - one.context < 760
    (fault,) = two.faults
    assert fault.code is ErrorCode.INVALID_VALUE
    assert "2 of 3 pictures left out" in fault.message


def test_the_newest_unit_goes_as_well_where_the_next_one_leaves_it_no_room(folder: Path) -> None:
    for window in ("basic", "context"):
        books = Books(folder)
        books.open(window=window)
        contexts = [books.unit(number, SLICED).context for number in range(4)]
        assert max(contexts) < LIMIT
        assert books.unit(4).dropped_units >= 3


# -- the rule ----------------------------------------------------------------------------------------------------------


def window(policy: WindowPolicy, **more: Any) -> Window:
    numbers = {"high_tokens": 160, "low_tokens": 110, "context_units": 4, "previous_tokens": 6}
    where = {"limit": 200, "room": 40, "fixed": 20, "header": 3}
    return Window(policy=policy, **{**numbers, **where, **more})


def units(count: int, length: int = 20) -> list[Span]:
    return [
        Span(number=number, start=20 + number * length, length=length, words=(number, number))
        for number in range(count)
    ]


def test_basic_keeps_to_the_engine_where_its_own_bound_is_beyond_it() -> None:
    usual = move(units(8), 180, window(WindowPolicy.BASIC, limit=10_000))
    assert usual is not None
    assert usual.drop == 4
    assert move(units(7), 160, window(WindowPolicy.BASIC, limit=10_000)) is None
    bounded = move(units(7), 160, window(WindowPolicy.BASIC, high_tokens=4000, low_tokens=3500, room=60))
    assert bounded is not None
    assert bounded.drop == 2  # 122 is seven eighths of 140


def test_context_drops_more_than_its_number_of_units_where_they_are_long() -> None:
    step = move(units(4, 40), 180, window(WindowPolicy.CONTEXT))
    assert step is not None
    assert (step.drop, step.previous) == (1, (0, 0))
    assert move(units(4), 100, window(WindowPolicy.CONTEXT)) is None


def test_words_that_are_remembered_give_way_too() -> None:
    step = move((), 60, window(WindowPolicy.CONTEXT, previous=tuple(range(37)), previous_tokens=500, room=150))
    assert step is not None
    assert (step.drop, step.previous) == (0, tuple(range(24, 37)))


def test_what_fits_into_an_empty_context_fits() -> None:
    assert fits(window(WindowPolicy.OFF, room=180))
    assert not fits(window(WindowPolicy.OFF, room=181))


# -- chats -------------------------------------------------------------------------------------------------------------


def chat(books: Books, words: int, **more: Any) -> list[Any]:
    message = SensedMessage(role="user", parts=(SensedPart(text="a " * words),))
    options = {"options": Options(greedy=True), "max_tokens": 64, "spoken": False, **more}
    return books.run(ChatSensed(messages=(message,), **options))


def test_a_chat_s_answer_that_reaches_the_end_of_the_context_ends_there_and_is_kept(folder: Path) -> None:
    books = Books(folder)
    books.says = (books.layout.encode("a")[0],) * 64
    whole = chat(books, 10)[-1]
    assert (whole.output_tokens, whole.cut) == (64, True)
    short = books
    for left in (1, 8, 13):
        short = Books(folder, whole.input_tokens + left)
        short.says = books.says
        *written, last = chat(short, 10)
        assert isinstance(last, Written)
        assert (last.output_tokens, last.cut, last.done) == (left, True, True)
        assert "".join(each.text for each in (*written, last)) == books.layout.decode(books.says[:left])
    *_, last, forward = chat(short, 10, spoken=True)
    assert last.cut
    assert forward.payload.ids == books.says[: len(forward.payload.ids)], "what was written is spoken"
    assert len(forward.payload.ids) >= 12


def test_a_prompt_that_leaves_no_room_is_refused_and_one_that_leaves_a_little_is_answered(folder: Path) -> None:
    books = Books(folder)
    books.says = (books.layout.encode("a")[0],) * 7 + (books.layout.tokens.message_end,)
    tokens = chat(books, 10)[-1].input_tokens
    with pytest.raises(DuplexError) as refusal:
        chat(books, LIMIT)
    assert refusal.value.info.code is ErrorCode.CONTEXT_FULL
    exact = Books(folder, tokens + 8)
    exact.says = books.says
    *_, last = chat(exact, 10)
    assert (last.output_tokens, last.cut) == (8, False)
    full = Books(folder, tokens)
    with pytest.raises(DuplexError):
        chat(full, 10)

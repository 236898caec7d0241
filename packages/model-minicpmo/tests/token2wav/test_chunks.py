"""When codes become a chunk, and how long a unit's sound is."""

from __future__ import annotations

import pytest

from model_minicpmo.gpu.token2wav.chunks import SILENT_CODE, Due, WaitingCodes, chat_chunks, silence_before

SILENCE = (SILENT_CODE,) * 3


def test_a_turn_of_full_units() -> None:
    waiting, said = WaitingCodes(), []
    for unit in range(3):
        codes = range(100 * unit, 100 * unit + 25)
        due, waiting = waiting.add(codes, closes_turn=unit == 2)
        said.append(due)
    assert said[0] == [Due(codes=(*SILENCE, *range(25)), last=False)]
    assert said[1] == [Due(codes=(22, 23, 24, *range(100, 125)), last=False)]
    assert said[2] == [
        Due(codes=(122, 123, 124, *range(200, 225)), last=False),
        Due(codes=(222, 223, 224), last=True),
    ]
    assert waiting == WaitingCodes()


@pytest.mark.parametrize(("codes", "due"), [(4, []), (5, [8])])
def test_fewer_codes_wait_until_eight_are_there(codes: int, due: list[int]) -> None:
    found, waiting = WaitingCodes().add(range(codes), closes_turn=False)
    assert [len(chunk.codes) for chunk in found] == due
    assert len(waiting.codes) == (3 if due else 7)
    assert waiting.begun == bool(due)


def test_later_chunks_wait_for_as_many_as_they_are_told_to() -> None:
    first, waiting = WaitingCodes(fewest_later=28).add(range(6), closes_turn=False)
    assert [len(chunk.codes) for chunk in first] == [9]
    none, waiting = waiting.add(range(24), closes_turn=False)
    assert none == []
    due, waiting = waiting.add([7], closes_turn=False)
    assert [len(chunk.codes) for chunk in due] == [28]
    again, _ = waiting.add([], closes_turn=True)
    assert again == [Due(codes=(22, 23, 7), last=True)]


def test_more_than_a_chunk_is_cut() -> None:
    due, waiting = WaitingCodes().add(range(30), closes_turn=False)
    assert [len(chunk.codes) for chunk in due] == [28, 8]
    assert waiting.codes == (27, 28, 29)


def test_every_code_is_said_once_and_in_order() -> None:
    waiting, heard = WaitingCodes(), list[int]()
    for unit, count in enumerate((25, 0, 3, 25, 1, 25, 12)):
        due, waiting = waiting.add(range(1000 * unit, 1000 * unit + count), closes_turn=unit == 6)
        for chunk in due:
            heard += chunk.codes if chunk.last else chunk.codes[:-3]
    expected = [1000 * unit + code for unit, count in enumerate((25, 0, 3, 25, 1, 25, 12)) for code in range(count)]
    assert heard == [*SILENCE, *expected]


@pytest.mark.parametrize(
    ("count", "lengths"),
    [(1, [1]), (28, [28]), (29, [28, 4]), (52, [28, 27]), (53, [28, 28]), (54, [28, 28, 4])],
)
def test_an_answer_in_chat_is_cut_without_silence_before_it(count: int, lengths: list[int]) -> None:
    due = chat_chunks(range(count))
    assert [len(chunk.codes) for chunk in due] == lengths
    assert [chunk.last for chunk in due] == [False] * (len(due) - 1) + [True]
    heard = [code for chunk in due for code in (chunk.codes if chunk.last else chunk.codes[:-3])]
    assert heard == list(range(count))


def test_nothing_to_say_in_chat_is_no_chunk() -> None:
    assert chat_chunks([]) == []


@pytest.mark.parametrize(
    ("samples", "closes", "silence"),
    [(5760, False, 18_240), (24_000, False, 0), (30_000, False, 0), (9600, True, 0), (0, False, 0)],
)
def test_a_unit_within_a_turn_lasts_a_second(samples: int, closes: bool, silence: int) -> None:
    assert silence_before(samples, closes_turn=closes) == silence


def test_fewer_than_what_is_looked_at_can_be_no_chunk() -> None:
    with pytest.raises(ValueError, match="above 3"):
        WaitingCodes(fewest=3)

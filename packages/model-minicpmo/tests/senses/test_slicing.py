"""Views and slots of a picture, from its size alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_minicpmo.config import PreprocessorConfig
from model_minicpmo.slicing import Views, chat_layout, duplex_layout, plan_views
from model_minicpmo.tokens import NAMES, SpecialTokens

SETTINGS = PreprocessorConfig()
TOKENS = SpecialTokens(**{field: number for number, field in enumerate(NAMES)}, bad=())
SIDES = st.integers(1, 5000)


def test_a_small_picture_is_shown_once_and_a_large_one_in_slices_too() -> None:
    assert plan_views((320, 240), settings=SETTINGS, max_slices=1) == Views(overview=(518, 392))
    assert plan_views((320, 240), settings=SETTINGS) == Views(overview=(518, 392))
    assert plan_views((900, 700), settings=SETTINGS, max_slices=1) == Views(overview=(504, 392))
    views = plan_views((900, 700), settings=SETTINGS, max_slices=4)
    assert (views.grid, views.enlarged, views.slices) == ((2, 2), (1008, 784), 4)
    assert views.boxes == [(0, 0, 504, 392), (504, 0, 1008, 392), (0, 392, 504, 784), (504, 392, 1008, 784)]


def test_a_checkpoint_that_does_not_slice_shows_every_picture_once() -> None:
    assert plan_views((3000, 2000), settings=PreprocessorConfig(slice_mode=False)).slices == 0


@given(width=SIDES, height=SIDES, most=st.integers(1, 9))
def test_views_are_whole_patches_of_about_the_resolution(width: int, height: int, most: int) -> None:
    if max(width, height) > 100 * min(width, height):
        return
    views = plan_views((width, height), settings=SETTINGS, max_slices=most)
    assert views.slices <= most
    assert views.slices != 1
    for side in (*views.overview, *(views.enlarged if views.slices else ())):
        assert side > 0
        assert side % 14 == 0
    for left, upper, right, lower in views.boxes:
        assert (right - left) % 14 == (lower - upper) % 14 == 0
    if views.slices:
        assert views.boxes[-1][2:] == views.enlarged
    assert (views.slices == 0) == (most == 1 or width * height <= 448 * 448)


@pytest.mark.parametrize("size", [(0, 5), (5000, 3), (1, 101)])
def test_a_picture_without_area_or_of_extreme_shape_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{size[0]} by {size[1]} pixels cannot be shown"):
        plan_views(size, settings=SETTINGS)


def test_less_than_one_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="max_slices is 0"):
        plan_views((100, 100), settings=SETTINGS, max_slices=0)


def test_a_unit_s_pictures_stand_one_behind_another() -> None:
    once, sliced = Views(overview=(448, 448)), Views(overview=(448, 448), grid=(2, 1), enlarged=(896, 448))
    unknown, start, end = TOKENS.unknown, TOKENS.image_start, TOKENS.image_end
    piece, close = TOKENS.slice_start, TOKENS.slice_end
    assert duplex_layout([], tokens=TOKENS, embeddings=2) == ()
    assert duplex_layout([sliced, once], tokens=TOKENS, embeddings=2) == (
        *(start, unknown, unknown, end, piece, unknown, unknown, close, piece, unknown, unknown, close),
        *(start, unknown, unknown, end),
    )


def test_a_picture_of_a_chat_has_its_number_and_a_line_a_row() -> None:
    sliced = Views(overview=(448, 448), grid=(2, 2), enlarged=(896, 896))
    row = (TOKENS.slice_start, TOKENS.unknown, TOKENS.slice_end) * 2
    picture = (TOKENS.image_start, TOKENS.unknown, TOKENS.image_end)
    numbered = chat_layout(sliced, tokens=TOKENS, embeddings=1, number=(901,), line_break=(902,))
    assert numbered == (TOKENS.image_id_start, 901, TOKENS.image_id_end, *picture, *row, 902, *row)
    assert chat_layout(sliced, tokens=TOKENS, embeddings=1, number=(), line_break=(902,)) == (*picture, *row, 902, *row)

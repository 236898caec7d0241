"""Into which views a picture is cut, and how many slots of the prompt they fill: arithmetic on sizes alone.

Owns: the sizes of the overview and of the slices of a picture, and the ids that stand around their embeddings.
Called by: the session, which must know a unit's length before it submits it, and the vision front end, which cuts accordingly.
Never: touches a pixel, or imports a tensor library.

Sizes are in pixels, (width, height); a grid is (columns, rows). The arithmetic is that of the published image processor, so that
the same picture becomes the same views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model_minicpmo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_minicpmo.config import PreprocessorConfig
    from model_minicpmo.tokens import SpecialTokens

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """How one picture is shown to the model: an overview, and slices of an enlarged copy when the picture is large.

    Attributes:
        overview: What the whole picture is resized to.
        grid: Columns and rows of slices; (0, 0) when the overview is all.
        enlarged: What the picture is resized to before it is cut into the grid; (0, 0) without slices.
    """

    overview: Size
    grid: tuple[int, int] = (0, 0)
    enlarged: Size = (0, 0)

    @property
    def slices(self) -> int:
        """How many slices there are."""
        return self.grid[0] * self.grid[1]

    @property
    def boxes(self) -> list[tuple[int, int, int, int]]:
        """Where the slices lie in the enlarged picture, row by row: left, upper, right, lower."""
        columns, rows = self.grid
        if not self.slices:
            return []
        width, height = self.enlarged[0] // columns, self.enlarged[1] // rows
        return [
            (column * width, row * height, (column + 1) * width, (row + 1) * height)
            for row in range(rows)
            for column in range(columns)
        ]


def plan_views(size: Size, *, settings: PreprocessorConfig, max_slices: int | None = None) -> Views:
    """Choose the views of a picture.

    Args:
        size: The picture's size.
        settings: The checkpoint's: the resolution that a view aims at, and the patch that its sides must be multiples of.
        max_slices: The most slices wanted; the checkpoint's own number by default. 1 asks for the overview alone.

    Raises:
        InputError: The picture has no area, or is more than a hundred times longer than wide.
        ValueError: Less than one slice is asked for.
    """
    most = settings.max_slice_nums if max_slices is None else max_slices
    width, height = size
    if min(size) < 1 or max(size) > 100 * min(size):
        raise InputError(
            f"a picture of {width} by {height} pixels cannot be shown: its sides must be within a factor of 100"
        )
    if most < 1:
        raise ValueError(f"max_slices is {most}; it must be at least 1, which shows a picture without slices")
    scale, patch = settings.scale_resolution, settings.patch_size
    grid = _best_grid(size, scale=scale, most=most) if settings.slice_mode else None
    if grid is None:
        return Views(overview=_fitted(size, scale=scale, patch=patch, enlarge=True))
    cell = (_multiple(width, grid[0]) / grid[0], _multiple(height, grid[1]) / grid[1])
    fitted = _fitted(cell, scale=scale, patch=patch, enlarge=True)
    return Views(
        overview=_fitted(size, scale=scale, patch=patch, enlarge=False),
        grid=grid,
        enlarged=(fitted[0] * grid[0], fitted[1] * grid[1]),
    )


def duplex_layout(views: Sequence[Views], *, tokens: SpecialTokens, embeddings: int) -> tuple[int, ...]:
    """Lay out the pictures of one unit: a group each, one after another; a slot for an embedding is `tokens.unknown`.

    Args:
        views: The unit's pictures.
        tokens: The checkpoint's special tokens.
        embeddings: How many embeddings a view has.

    Returns:
        The ids, in the order in which `gpu.vision` gives the embeddings.
    """
    slots = (tokens.unknown,) * embeddings
    ids: list[int] = []
    for picture in views:
        ids += (tokens.image_start, *slots, tokens.image_end)
        ids += (tokens.slice_start, *slots, tokens.slice_end) * picture.slices
    return tuple(ids)


def chat_layout(
    views: Views, *, tokens: SpecialTokens, embeddings: int, number: Sequence[int], line_break: Sequence[int]
) -> tuple[int, ...]:
    """Lay out one picture of a chat: its number, the overview, then the slices, a line a row of the grid.

    Args:
        views: The picture.
        tokens: The checkpoint's special tokens.
        embeddings: How many embeddings a view has.
        number: The ids of the picture's number, counted from 0, as text; empty where the checkpoint uses none (`use_image_id`).
        line_break: The ids of a line break.
    """
    slots = (tokens.unknown,) * embeddings
    ids: list[int] = []
    if number:
        ids += (tokens.image_id_start, *number, tokens.image_id_end)
    ids += (tokens.image_start, *slots, tokens.image_end)
    columns, rows = views.grid
    for row in range(rows):
        if row:
            ids += line_break
        ids += (tokens.slice_start, *slots, tokens.slice_end) * columns
    return tuple(ids)


def _best_grid(size: Size, *, scale: int, most: int) -> tuple[int, int] | None:
    """Choose the grid whose shape is nearest to the picture's, of about as many cells as the picture has areas of scale²."""
    width, height = size
    wanted = min(math.ceil(width * height / (scale * scale)), most)
    if wanted <= 1:
        return None
    grids = [
        (columns, count // columns)
        for count in (wanted - 1, wanted, wanted + 1)
        if 1 < count <= most
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    shape = math.log(width / height)
    return min(grids, key=lambda grid: abs(shape - math.log(grid[0] / grid[1])))


def _fitted(size: tuple[float, float], *, scale: int, patch: int, enlarge: bool) -> Size:
    """Fit a size to an area of scale², its shape kept, its sides multiples of the patch; a smaller one only when told to."""
    width, height = size
    if enlarge or width * height > scale * scale:
        shape = width / height
        height = int(scale / math.sqrt(shape))
        width = int(height * shape)
    return _multiple(width, patch), _multiple(height, patch)


def _multiple(length: float, unit: int) -> int:
    """Round to a multiple of `unit`, to an even one when between two; never to nothing."""
    return max(round(length / unit) * unit, unit)

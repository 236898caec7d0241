"""Cuts a picture into its views and turns them into strips of patches, as the vision encoder takes them.

Owns: decoding, resizing and normalising. Called by: the vision front end.
Never: decides into which views a picture is cut; that is `model_minicpmo.slicing`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from model_minicpmo.config import PreprocessorConfig
from model_minicpmo.errors import InputError
from model_minicpmo.slicing import plan_views

MOST_PIXELS = 4096 * 4096
"""A larger picture is refused before it is decoded. One of this size costs a third of a second of one core, half a second at
worst (a progressive JPEG of noise), and the units of all sessions wait for it. The model sees an eighth of it at most, ten views
of 448² pixels, so that nothing is lost by sending a larger one smaller."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strip:
    """One view of a picture.

    Attributes:
        pixels: Its patches side by side, row by row, normalised, float32 [3, patch, patch · patches].
        rows: Rows of patches.
        columns: Columns of patches.
    """

    pixels: Tensor
    rows: int
    columns: int


def picture_size(encoded: bytes) -> tuple[int, int]:
    """Give a picture's width and height in pixels from its header alone; nothing is decoded.

    Raises:
        InputError: The bytes are no picture, or have too many pixels.
    """
    with _decoding(encoded) as picture:
        return picture.size


def decode_picture(encoded: bytes) -> Image.Image:
    """Decode a picture, PNG or JPEG, to RGB; transparency is dropped.

    Other formats are refused: they may start other programs.

    Raises:
        InputError: The bytes are no picture, are cut short, or have too many pixels.
    """
    with _decoding(encoded) as picture:
        return picture.convert("RGB")


@contextlib.contextmanager
def _decoding(encoded: bytes) -> Iterator[Image.Image]:
    """Open a picture for reading. Whatever Pillow raises on these bytes until this ends is the bytes' fault.

    Its decoders let all kinds through: AssertionError, IndexError, struct.error, zlib.error, MemoryError.
    """
    try:
        picture = Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG"))
        if picture.width * picture.height > MOST_PIXELS:
            raise InputError(
                f"a picture of {picture.width} by {picture.height} pixels is too large; {MOST_PIXELS} are the most: send it "
                "smaller"
            )
        yield picture
    except InputError:
        raise
    except UnidentifiedImageError as error:
        raise InputError(
            f"these {len(encoded)} bytes cannot be decoded as a picture: they are no PNG or JPEG"
        ) from error
    except Exception as error:
        why = str(error) or type(error).__name__
        raise InputError(f"these {len(encoded)} bytes cannot be decoded as a picture: {why}") from error


def cut(picture: Image.Image, *, settings: PreprocessorConfig, max_slices: int | None = None) -> list[Strip]:
    """Cut a picture into its views: the overview, then the slices row by row.

    Args:
        picture: The picture, RGB.
        settings: The checkpoint's.
        max_slices: The most slices wanted; the checkpoint's own number by default.

    Raises:
        ValueError: The picture cannot be shown, or `max_slices` is less than 1.
    """
    views = plan_views(picture.size, settings=settings, max_slices=max_slices)
    strips = [_strip(picture.resize(views.overview, Image.Resampling.BICUBIC), settings)]
    if views.slices:
        enlarged = picture.resize(views.enlarged, Image.Resampling.BICUBIC)
        strips += [_strip(enlarged.crop(box), settings) for box in views.boxes]
    return strips


def _strip(view: Image.Image, settings: PreprocessorConfig) -> Strip:
    """Normalise a view whose sides are multiples of the patch, and lay its patches side by side."""
    patch = settings.patch_size
    columns, rows = view.width // patch, view.height // patch
    colours = np.asarray(view, dtype=np.float32) / 255
    normal = (colours - np.asarray(settings.norm_mean, np.float32)) / np.asarray(settings.norm_std, np.float32)
    patches = normal.reshape(rows, patch, columns, patch, 3).transpose(4, 1, 0, 2, 3)
    return Strip(pixels=torch.from_numpy(patches.reshape(3, patch, -1).copy()), rows=rows, columns=columns)

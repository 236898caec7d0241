"""The vision front end on a tiny checkpoint of our own: against transformers' encoder, and view beside view."""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

from model_minicpmo.config import PreprocessorConfig
from model_minicpmo.errors import InputError
from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.pictures import Strip, cut, decode_picture, picture_size
from model_minicpmo.gpu.siglip import position_waves
from model_minicpmo.gpu.vision import VisionFrontEnd
from model_minicpmo.slicing import plan_views
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

pytestmark = pytest.mark.engines

SETTINGS = PreprocessorConfig()
HIDDEN = 5e-5


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def front_end(tmp_path_factory: pytest.TempPathFactory) -> VisionFrontEnd:
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, seed=6)
    return VisionFrontEnd.load(open_checkpoint(folder), dtype=torch.float32, device="cpu")


def painting(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with smooth parts and edges."""
    coarse = np.random.default_rng(seed).integers(0, 256, size=(7, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def whole(strip: Strip) -> Tensor:
    """Put a strip's patches together again: [3, height, width]."""
    patches = strip.pixels.unflatten(2, (strip.rows, strip.columns, 14))
    return patches.permute(0, 2, 1, 3, 4).reshape(3, strip.rows * 14, strip.columns * 14)


@pytest.mark.parametrize("size", [(640, 480), (448, 448), (300, 900), (1280, 400)])
def test_a_view_is_encoded_as_the_library_encodes_the_whole_picture(
    size: tuple[int, int], front_end: VisionFrontEnd
) -> None:
    config = Idefics2VisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=980, patch_size=14
    )
    public = Idefics2VisionTransformer(config).eval()
    public.load_state_dict(front_end.encoder.state_dict(), strict=True)
    for strip in front_end.cut(painting(*size), max_slices=1):
        there = torch.ones(1, strip.rows, strip.columns, dtype=torch.bool)
        expected = public(pixel_values=whole(strip)[None], patch_attention_mask=there).last_hidden_state
        ours = front_end.encoder(strip.pixels[None], [(strip.rows, strip.columns)])
        assert float((ours - expected).abs().max()) <= HIDDEN


def test_a_patch_takes_the_position_in_which_it_begins(front_end: VisionFrontEnd) -> None:
    embeddings = front_end.encoder.embeddings
    for count in range(1, 330):
        cells = embeddings.cells(count)
        exact = torch.tensor([70 * place // count for place in range(count)])
        on_the_edge = torch.tensor([70 * place % count == 0 for place in range(count)])
        assert cells.shape == (count,)
        assert torch.equal(cells[~on_the_edge], exact[~on_the_edge])
        assert bool(((cells == exact) | (cells == (exact - 1).clamp(min=0))).all())


def test_the_resampler_is_attention_written_out(front_end: VisionFrontEnd) -> None:
    resampler = front_end.resampler
    patches = torch.randn(1, 6 * 9, 32, generator=torch.Generator().manual_seed(1))
    values = torch.layer_norm(
        patches[0] @ resampler.kv_proj.weight.T, (128,), resampler.ln_kv.weight, resampler.ln_kv.bias, 1e-6
    )
    waves = torch.zeros(6, 9, 128)
    for row in range(6):
        for column in range(9):
            for half, place in ((0, column), (64, row)):
                for wave in range(32):
                    angle = torch.tensor(place / 10_000 ** (wave / 32), dtype=torch.float64)
                    waves[row, column, half + wave] = angle.sin()
                    waves[row, column, half + 32 + wave] = angle.cos()
    assert float((position_waves(6, 9, like=values) - waves.flatten(0, 1)).abs().max()) <= 1e-6
    queries = torch.layer_norm(resampler.query, (128,), resampler.ln_q.weight, resampler.ln_q.bias, 1e-6)
    into, bias = resampler.attn.in_proj_weight.chunk(3), resampler.attn.in_proj_bias.chunk(3)
    scores = (queries @ into[0].T + bias[0]) @ ((values + waves.flatten(0, 1)) @ into[1].T + bias[1]).T / 128**0.5
    mixed = scores.softmax(dim=1) @ (values @ into[2].T + bias[2])
    joined = mixed @ resampler.attn.out_proj.weight.T + resampler.attn.out_proj.bias
    expected = torch.layer_norm(joined, (128,), resampler.ln_post.weight, resampler.ln_post.bias, 1e-6) @ resampler.proj
    assert float((resampler(patches, [(6, 9)])[0] - expected).abs().max()) <= HIDDEN


def test_views_of_many_pictures_encoded_together_are_what_each_is_alone(front_end: VisionFrontEnd) -> None:
    sizes = [(640, 480), (300, 900), (900, 700), (64, 64)]
    strips = [strip for seed, size in enumerate(sizes) for strip in front_end.cut(painting(*size, seed), max_slices=4)]
    assert len({(strip.rows, strip.columns) for strip in strips}) > 3
    together = front_end.encode(strips)
    alone = torch.cat([front_end.encode([strip]) for strip in strips])
    assert together.shape == (len(strips), 64, 128)
    assert float((together - alone).abs().max()) <= 1e-5
    few = VisionFrontEnd(encoder=front_end.encoder, resampler=front_end.resampler, settings=SETTINGS, most_views=3)
    assert float((few.encode(strips) - alone).abs().max()) <= 1e-5


def test_no_picture_gives_no_embeddings(front_end: VisionFrontEnd) -> None:
    assert front_end.encode([]).shape == (0, 64, 128)


def test_grids_and_sizes_are_those_of_the_library_s_processor() -> None:
    public = MiniCPMV4_6ImageProcessorPil()
    generator = np.random.default_rng(4)
    sliced = 0
    for _ in range(400):
        width, height = (int(side) for side in generator.integers(20, 3000, size=2))
        most = int(generator.integers(1, 10))
        views = plan_views((width, height), settings=SETTINGS, max_slices=most)
        grid = public.get_sliced_grid((height, width), most, 448)
        # The library's later model merges four patches a side, which it multiplies into the patch.
        overview = public.find_best_resize((height, width), 448, 3.5, allow_upscale=grid is None)
        assert views.overview == overview[::-1]
        assert views.grid == (tuple(grid[::-1]) if grid else (0, 0))
        if grid:
            enlarged = public.get_refine_size((height, width), grid, 448, 3.5, allow_upscale=True)
            assert views.enlarged == enlarged[::-1]
            sliced += 1
    assert 100 < sliced < 400


def test_slices_are_the_parts_of_the_enlarged_picture_row_by_row() -> None:
    picture = painting(900, 700)
    views = plan_views(picture.size, settings=SETTINGS, max_slices=4)
    assert views.grid == (2, 2)
    strips = cut(picture, settings=SETTINGS, max_slices=4)
    enlarged = np.asarray(picture.resize(views.enlarged, Image.Resampling.BICUBIC), np.float32) / 255 * 2 - 1
    rows = [torch.cat([whole(strip) for strip in strips[begin : begin + 2]], dim=2) for begin in (1, 3)]
    together = torch.cat(rows, dim=1).permute(1, 2, 0).numpy()
    assert np.abs(together - enlarged).max() < 1e-6


def encoded(picture: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_pictures_come_in_the_usual_forms(form: str) -> None:
    picture = painting(96, 64)
    decoded = decode_picture(encoded(picture, form))
    assert (decoded.mode, decoded.size) == ("RGB", (96, 64))
    assert np.abs(np.asarray(decoded, np.int16) - np.asarray(picture, np.int16)).mean() < 10


def test_a_picture_of_other_colours_becomes_rgb() -> None:
    for mode in ("L", "P", "RGBA", "CMYK"):
        form = "JPEG" if mode == "CMYK" else "PNG"
        assert decode_picture(encoded(painting(32, 32).convert(mode), form)).mode == "RGB"


@pytest.mark.parametrize("form", ["TIFF", "PPM", "DDS", "AVIF"])
def test_forms_whose_decoders_raise_anything_on_broken_files_are_not_tried(form: str) -> None:
    with pytest.raises(ValueError, match="they are no PNG or JPEG"):
        decode_picture(encoded(painting(96, 64), form))


def test_a_file_that_is_broken_anywhere_is_refused_with_a_sentence_or_shown() -> None:
    rolls = np.random.default_rng(3)
    files = [encoded(painting(40, 30), form) for form in ("PNG", "JPEG")]
    refused = 0
    for turn in range(600):
        broken = bytearray(files[turn % 2])
        for place in rolls.integers(0, min(len(broken), rolls.choice([30, 200, len(broken)])), size=turn % 5 + 1):
            broken[place] = rolls.integers(256)
        try:
            decode_picture(bytes(broken))
        except ValueError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("spoilt", [b"", b"no picture", "cut"])
def test_what_is_no_picture_is_refused(spoilt: bytes | str) -> None:
    given = encoded(painting(320, 240), "PNG")[:-2000] if isinstance(spoilt, str) else spoilt
    with pytest.raises(ValueError, match=f"these {len(given)} bytes cannot be decoded as a picture"):
        decode_picture(given)


def test_a_picture_too_large_is_refused_before_it_is_decoded() -> None:
    large = encoded(Image.new("1", (8192, 2049)), "PNG")
    for read in (decode_picture, picture_size):
        with pytest.raises(ValueError, match="8192 by 2049 pixels is too large"):
            read(large)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_with(more: bytes, *, colours: int = 2) -> bytes:
    """A PNG of 8 by 8 pixels, of palette (3) or true colours (2), with another chunk behind the pixels."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, colours, 0, 0, 0)
    rows = zlib.compress(bytes(8 * (1 + 8 * (3 if colours == 2 else 1))))
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", rows), more, chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_whatever_pillow_raises_on_a_picture_is_told_as_the_picture_s_fault() -> None:
    """An empty profile behind the pixels is an IndexError to it, a palette's transparency of one byte an AssertionError."""
    broken = [png_with(chunk(b"iCCP", b"")), png_with(chunk(b"tRNS", b"\0"), colours=3)]
    for picture in broken:
        with pytest.raises(InputError, match=f"these {len(picture)} bytes cannot be decoded as a picture: "):
            decode_picture(picture)
    kinds = (
        b"gAMA",
        b"tRNS",
        b"cHRM",
        b"sRGB",
        b"pHYs",
        b"iCCP",
        b"zTXt",
        b"iTXt",
        b"tEXt",
        b"eXIf",
        b"acTL",
        b"fcTL",
        b"PLTE",
    )
    refused = 0
    for kind in kinds:
        for content in (b"", b"\0", b"\0" * 5, b"\xff" * 40):
            for colours in (2, 3):
                try:
                    decode_picture(png_with(chunk(kind, content), colours=colours))
                except InputError:
                    refused += 1
    assert refused > 10

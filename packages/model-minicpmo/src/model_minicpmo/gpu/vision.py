"""The vision front end: pictures in, embeddings for the language model out, 64 for each view.

Owns: the way from pictures to embeddings. Called by: the worker of the front-end stage, and for pictures of a chat.
Never: keeps anything of a picture, so that sessions share nothing but weights and any pictures can be encoded together.

The ids that stand around the embeddings are laid out by `model_minicpmo.slicing`, from the pictures' sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from model_minicpmo.config import PreprocessorConfig
from model_minicpmo.gpu.checkpoint import Checkpoint
from model_minicpmo.gpu.pictures import Strip, cut
from model_minicpmo.gpu.siglip import Resampler, VisionEncoder


class VisionFrontEnd:
    """Encodes pictures of any number of sessions with one set of weights.

    Args:
        encoder: The SigLIP encoder.
        resampler: What turns a view's patches into a fixed number of embeddings.
        settings: How pictures are cut.
        most_views: How many views are encoded in one go; more are encoded one batch after another.
    """

    def __init__(
        self, *, encoder: VisionEncoder, resampler: Resampler, settings: PreprocessorConfig, most_views: int = 16
    ) -> None:
        self.encoder = encoder
        self.resampler = resampler
        self.settings = settings
        self.most_views = most_views

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device | str) -> VisionFrontEnd:
        """Load the encoder (`vpm.`) and the resampler (`resampler.`) from a checkpoint.

        Raises:
            CheckpointError: A tensor is missing, unexpected, or of another shape than the configuration's.
        """
        config = checkpoint.config
        with torch.device("meta"):
            encoder = VisionEncoder(config.vision_config)
            resampler = Resampler(
                queries=config.query_num, size=config.hidden_size, patches_size=config.vision_config.hidden_size
            )
        return cls(
            encoder=checkpoint.load(encoder, "vpm.", dtype=dtype, device=device),
            resampler=checkpoint.load(resampler, "resampler.", dtype=dtype, device=device),
            settings=checkpoint.preprocessor,
        )

    def cut(self, picture: Image.Image, *, max_slices: int | None = None) -> list[Strip]:
        """Cut a picture into its views: the overview, then the slices row by row; see `pictures.cut`."""
        return cut(picture, settings=self.settings, max_slices=max_slices)

    @torch.inference_mode()
    def encode(self, strips: Sequence[Strip]) -> Tensor:
        """Encode views, of one picture or of many.

        Args:
            strips: The views, of any shapes.

        Returns:
            In the order of the views, [views, 64 for the published sizes, hidden size].
        """
        if not strips:
            return self.resampler.query.new_zeros((0, *self.resampler.query.shape))
        batches = [strips[begin : begin + self.most_views] for begin in range(0, len(strips), self.most_views)]
        return torch.cat([self._encode_batch(batch) for batch in batches])

    def _encode_batch(self, strips: Sequence[Strip]) -> Tensor:
        grids = [(strip.rows, strip.columns) for strip in strips]
        longest = max(strip.pixels.shape[2] for strip in strips)
        weights = self.resampler.query
        pixels = torch.stack(
            [torch.nn.functional.pad(strip.pixels, (0, longest - strip.pixels.shape[2])) for strip in strips]
        ).to(device=weights.device, dtype=weights.dtype)
        embeds: Tensor = self.resampler(self.encoder(pixels, grids), grids)
        return embeds

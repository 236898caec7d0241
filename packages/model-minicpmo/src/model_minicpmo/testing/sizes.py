"""How large a made checkpoint is: tiny ones, which a CPU runs in milliseconds, and one as large as the published.

Owns: the sets of sizes. Called by: whoever makes a checkpoint. Never: reads a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySizes:
    """Where ids lie: 256 bytes and the merges first, then the added tokens in their published order.

    Attributes:
        unknown: The id of `<unk>`, among the first ids.
        added: The id of the first added token. Ids that no merge takes are filled with tokens that no text becomes.
    """

    unknown: int
    added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSizes:
    """The language model; `hidden` must be a multiple of 128."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """The Whisper or the SigLIP encoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerSizes:
    """The talker; the last code ends speech."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    codes: int
    text_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token2WavSizes:
    """The flow (`hidden`, `intermediate` and `heads` of its encoder, `depth` of its estimator) and the vocoder."""

    hidden: int
    intermediate: int
    heads: int
    blocks: int
    up_blocks: int
    depth: int
    vocoder: int
    pitch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A whole checkpoint."""

    vocabulary: VocabularySizes
    llm: LlmSizes
    audio: EncoderSizes
    vision: EncoderSizes
    talker: TalkerSizes
    token2wav: Token2WavSizes


TINY = Sizes(
    vocabulary=VocabularySizes(unknown=256, added=300),
    llm=LlmSizes(hidden=128, intermediate=192, layers=2, heads=4, kv_heads=2, head=32),
    audio=EncoderSizes(hidden=32, intermediate=128, layers=2, heads=2),
    vision=EncoderSizes(hidden=32, intermediate=64, layers=2, heads=2),
    talker=TalkerSizes(hidden=32, intermediate=64, layers=2, heads=4, codes=6562, text_tokens=416),
    token2wav=Token2WavSizes(hidden=32, intermediate=64, heads=2, blocks=2, up_blocks=1, depth=2, vocoder=32, pitch=16),
)
"""About two million weights."""

TALKING = replace(
    TINY,
    vocabulary=VocabularySizes(unknown=256, added=400),
    talker=replace(TINY.talker, text_tokens=512),
)
"""A tiny checkpoint with room in its vocabulary for words that it says."""

PUBLISHED = Sizes(
    vocabulary=VocabularySizes(unknown=128_244, added=151_643),
    llm=LlmSizes(hidden=4096, intermediate=12_288, layers=36, heads=32, kv_heads=8, head=128),
    audio=EncoderSizes(hidden=1024, intermediate=4096, layers=24, heads=16),
    vision=EncoderSizes(hidden=1152, intermediate=4304, layers=27, heads=16),
    talker=TalkerSizes(hidden=768, intermediate=3072, layers=20, heads=12, codes=6562, text_tokens=152_064),
    token2wav=Token2WavSizes(
        hidden=512, intermediate=2048, heads=8, blocks=6, up_blocks=4, depth=16, vocoder=512, pitch=512
    ),
)
"""As large as `openbmb/MiniCPM-o-4_5`: about nine billion weights."""

"""The tokenizer's files of a made checkpoint: bytes, a few merges, and the published added tokens in their published order.

Owns: those files. Called by: what makes a checkpoint.
Never: gives a token another place relative to the others than the published tokenizer does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from model_minicpmo.testing.sizes import VocabularySizes

MERGES = (
    "h e, Ġ t, Ġ a, i n, r e, o n, Ġt he, e r, Ġ s, a t, o u, Ġ w, e n, i t, e s, Ġ y, Ġy ou, l l, o r, in g, s t, Ġ m, i s, "
    "Ġ b, a n, Ġa n, Ġan d, e d, Ġ i, Ġ c, s y, sy st, e m, syst em, u s, us er, a s, as s, is t, ass ist, an t, assist ant, h i"
)
"""The merges, in order; each makes one token."""

ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> "
    "<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <image> </image> <ref> </ref> <box> </box> <quad> </quad> <point> </point> <slice> </slice> <image_id> "
    "</image_id> <unit> </unit> <answer> </answer> <focus> </focus> <line> </line> <perception> </perception> <source_image> "
    "</source_image> <image_save_to> </image_save_to> <|audio_start|> <|audio|> <|audio_end|> <|spk_bos|> <|spk|> <|spk_eos|> "
    "<|tts_bos|> <|tts_eos|> <|listen|> <|speak|> <|interrupt|> <|vad_start|> <|vad_end|> <|emotion_start|> <|emotion_end|> "
    "<|speed_start|> <|speed_end|> <|pitch_start|> <|pitch_end|> <|turn_bos|> <|turn_eos|> <|chunk_eos|> <|chunk_bos|> "
    "<|chunk_tts_bos|> <|chunk_tts_eos|> <|tts_pad|>"
)
TIMBRES = tuple(f"<|timbre_{number}|>" for number in range(7, 32))

NOT_SPECIAL = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
)
"""Added tokens that are shown when text is decoded."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if use_tts_template is defined and use_tts_template %}<|tts_bos|>{% endif %}{% endif %}"
)


def added_tokens(sizes: VocabularySizes) -> dict[str, int]:
    """Give the ids of the added tokens, `<unk>` not among them."""
    return {name: sizes.added + place for place, name in enumerate((*ADDED.split(), *TIMBRES))}


def write_tokenizer(folder: Path, sizes: VocabularySizes, *, words: Sequence[str] = ()) -> None:
    """Write `vocab.json`, `merges.txt`, `added_tokens.json`, `special_tokens_map.json` and `tokenizer_config.json`.

    Args:
        folder: Where.
        sizes: Where ids lie.
        words: See `vocabulary`.
    """
    added = added_tokens(sizes)
    merges = [merge.strip() for merge in MERGES.split(",")]
    shown = frozenset(NOT_SPECIAL.split())
    special = ["<unk>", *(name for name in added if name not in shown)]
    roles = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "additional_special_tokens": special,
    }
    _write(folder / "vocab.json", vocabulary(sizes, words))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    _write(folder / "added_tokens.json", added)
    _write(folder / "special_tokens_map.json", roles)
    decoder = {
        str(number): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": name not in shown,
        }
        for name, number in [("<unk>", sizes.unknown), *added.items()]
    }
    _write(
        folder / "tokenizer_config.json",
        roles
        | {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": decoder,
            "bad_token_ids": [7, 8, *range(128, 256)],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": 131_072,
            "split_special_tokens": False,
            "tokenizer_class": "MiniCPMOTokenizerFast",
        },
    )


def vocabulary(sizes: VocabularySizes, words: Sequence[str] = ()) -> dict[str, int]:
    """Number the bytes, the merges and the words, then fill up to the added tokens; `<unk>` keeps its own place.

    Args:
        sizes: Where ids lie.
        words: More tokens, as a vocabulary writes them. They become text, but no text becomes them; one that is there stays.

    Raises:
        ValueError: The merges and words do not fit.
    """
    merged = [merge.replace(" ", "").strip() for merge in MERGES.split(",")]
    free = (number for number in range(256, sizes.added) if number != sizes.unknown)
    ids = {character: number for number, character in enumerate(_byte_characters())}
    for token in (*merged, *words):
        if token not in ids:
            number = next(free, None)
            if number is None:
                raise ValueError(
                    f"{len(merged)} merges and {len(words)} words do not fit between 256 and {sizes.added}: "
                    f"the first added token has to come later"
                )
            ids[token] = number
    ids |= {f"Ġunused{number}": number for number in free}
    return ids | {"<unk>": sizes.unknown}


def _byte_characters() -> list[str]:
    """Give the character that stands for each byte in the vocabulary: itself where it shows, else one from 256 on."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")

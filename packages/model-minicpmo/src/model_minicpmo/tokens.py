"""The tokens that this model's rules speak of, looked up by name in the tokenizer's files of a checkpoint.

Owns: which names there are and where a name's id is looked for.
Called by: the plugin, the rules and every stage that handles ids.
Never: holds an id as a number, or imports a tensor or tokenizer library.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import msgspec

from model_minicpmo.config import read_json
from model_minicpmo.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = {
    "unknown": "<unk>",
    "end_of_text": "<|endoftext|>",
    "message_start": "<|im_start|>",
    "message_end": "<|im_end|>",
    "think_start": "<think>",
    "think_end": "</think>",
    "unit_start": "<unit>",
    "unit_end": "</unit>",
    "image_start": "<image>",
    "image_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "image_id_start": "<image_id>",
    "image_id_end": "</image_id>",
    "audio_start": "<|audio_start|>",
    "audio_end": "<|audio_end|>",
    "listen": "<|listen|>",
    "speak": "<|speak|>",
    "tts_bos": "<|tts_bos|>",
    "tts_eos": "<|tts_eos|>",
    "tts_pad": "<|tts_pad|>",
    "turn_bos": "<|turn_bos|>",
    "turn_eos": "<|turn_eos|>",
    "chunk_bos": "<|chunk_bos|>",
    "chunk_eos": "<|chunk_eos|>",
    "chunk_tts_bos": "<|chunk_tts_bos|>",
    "chunk_tts_eos": "<|chunk_tts_eos|>",
}
"""The tokenizer's name for each field of `SpecialTokens` that is an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The ids of one checkpoint's special tokens; `NAMES` tells which token a field stands for.

    Attributes:
        bad: Ids that are never to be chosen while speaking: `bad_token_ids` of `tokenizer_config.json`, none when it has none.
    """

    unknown: int
    end_of_text: int
    message_start: int
    message_end: int
    think_start: int
    think_end: int
    unit_start: int
    unit_end: int
    image_start: int
    image_end: int
    slice_start: int
    slice_end: int
    image_id_start: int
    image_id_end: int
    audio_start: int
    audio_end: int
    listen: int
    speak: int
    tts_bos: int
    tts_eos: int
    tts_pad: int
    turn_bos: int
    turn_eos: int
    chunk_bos: int
    chunk_eos: int
    chunk_tts_bos: int
    chunk_tts_eos: int
    bad: tuple[int, ...] = ()

    def named(self) -> dict[str, int]:
        """Give every id by the tokenizer's own name, such as `{"<|listen|>": …}`."""
        return {NAMES[field.name]: getattr(self, field.name) for field in fields(self) if field.name in NAMES}


class _Content(msgspec.Struct, frozen=True):
    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    added_tokens_decoder: dict[str, _Content] = {}
    bad_token_ids: tuple[int, ...] = ()


class _Added(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Vocabulary(msgspec.Struct, frozen=True):
    vocab: dict[str, int] = {}


class _Tokenizer(msgspec.Struct, frozen=True):
    added_tokens: tuple[_Added, ...] = ()
    model: _Vocabulary = _Vocabulary()


def _sources(folder: Path, config: _TokenizerConfig) -> Iterator[tuple[Path, dict[str, int]]]:
    """Give what each file says about ids, the small files first; a file that is not there is passed over."""
    try:
        decoder = {token.content: int(number) for number, token in config.added_tokens_decoder.items()}
    except ValueError as error:
        raise CheckpointError(folder / "tokenizer_config.json", f"added_tokens_decoder: {error}") from error
    yield folder / "tokenizer_config.json", decoder
    for name in ("added_tokens.json", "vocab.json"):
        if (folder / name).is_file():
            yield folder / name, read_json(folder / name, dict[str, int])
    if (folder / "tokenizer.json").is_file():
        tokenizer = read_json(folder / "tokenizer.json", _Tokenizer)
        added = {token.content: token.id for token in tokenizer.added_tokens}
        yield folder / "tokenizer.json", tokenizer.model.vocab | added


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Look up every special token of the checkpoint in `folder` by its name.

    Reads `tokenizer_config.json`, then `added_tokens.json`, `vocab.json` and `tokenizer.json` as far as names are still missing.

    Raises:
        CheckpointError: `tokenizer_config.json` is missing or broken, two files disagree, or a name is in none of them.
    """
    config = read_json(folder / "tokenizer_config.json", _TokenizerConfig)
    found: dict[str, int] = {}
    told_by: dict[str, Path] = {}
    for path, ids in _sources(folder, config):
        for name in NAMES.values():
            if name in ids and found.setdefault(name, ids[name]) != ids[name]:
                raise CheckpointError(path, f"{name} is {ids[name]}, but {found[name]} in {told_by[name].name}")
            if name in ids:
                told_by.setdefault(name, path)
        if len(found) == len(NAMES):
            break
    missing = [name for name in NAMES.values() if name not in found]
    if missing:
        raise CheckpointError(
            folder, f"its tokenizer's files know no {', '.join(missing)}: not a tokenizer of MiniCPM-o 4.5"
        )
    return SpecialTokens(**{field: found[name] for field, name in NAMES.items()}, bad=config.bad_token_ids)

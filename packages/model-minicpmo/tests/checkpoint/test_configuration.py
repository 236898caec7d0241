"""The small files of a checkpoint: sizes with their checks, and tokens by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from model_minicpmo.config import read_config, read_preprocessor
from model_minicpmo.errors import CheckpointError
from model_minicpmo.testing.sizes import PUBLISHED, TINY
from model_minicpmo.testing.tokenizer import added_tokens, write_tokenizer
from model_minicpmo.tokens import NAMES, read_special_tokens

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "model_type": "minicpmo",
    "version": 4.5,
    "vocab_size": 405,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "audio_config": {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128},
    "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "tts_config": {
        "llm_dim": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_audio_tokens": 257,
        "num_text_tokens": 416,
        "audio_bos_token_id": 344,
        "text_eos_token_id": 349,
    },
}


def write(folder: Path, name: str, value: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_the_recorded_configuration_is_read_as_it_stands(goldens: Path) -> None:
    config = read_config(goldens / "checkpoint")
    assert (config.hidden_size, config.head_size, config.vocab_size, config.weights_dtype) == (128, 32, 405, "float32")
    assert (config.audio_config.d_model, config.audio_config.max_source_positions, config.audio_pool_step) == (
        32,
        1500,
        5,
    )
    assert (config.vision_config.image_size, config.vision_config.layer_norm_eps, config.query_num) == (980, 1e-6, 64)
    assert (config.tts_config.num_audio_tokens, config.tts_config.interleaved) == (257, False)
    settings = read_preprocessor(goldens / "checkpoint")
    assert (settings.max_slice_nums, settings.scale_resolution, settings.patch_size) == (9, 448, 14)


def test_what_a_configuration_leaves_out_has_its_published_value(tmp_path: Path) -> None:
    write(tmp_path, "config.json", CONFIG)
    config = read_config(tmp_path)
    assert config.head_size == 32
    assert config.weights_dtype == "bfloat16"
    assert config.audio_config.num_mel_bins == 80


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'"),
        ({"hidden_size": "large"}, r"\$\.hidden_size"),
        ({"audio_config": {"d_model": 32}}, r"encoder_layers.*\$\.audio_config"),
        ({"vision_config": CONFIG["vision_config"] | {"num_attention_heads": 5}}, "vision_config.hidden_size is 32"),
        ({"tts_config": CONFIG["tts_config"] | {"llm_dim": 64}}, "tts_config.llm_dim is 64, but hidden_size is 128"),
        ({"num_hidden_layers": 0}, r"\$\.num_hidden_layers"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_by_name(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "config.json", CONFIG | change)
    with pytest.raises(CheckpointError, match=told) as refused:
        read_config(tmp_path)
    assert refused.value.path == path


def test_a_missing_and_a_broken_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: .*truncated"):
        read_config(tmp_path)


def test_the_recorded_tokens_have_the_ids_that_the_recording_gives_them(goldens: Path) -> None:
    tokens = read_special_tokens(goldens / "checkpoint")
    told = json.loads((goldens / "checkpoint" / "id_map.json").read_text(encoding="utf-8"))["tiny_to_real"]
    recorded = {entry["token"]: int(number) for number, entry in told.items()}
    assert tokens.named() == {name: recorded[name] for name in NAMES.values()}
    assert tokens.bad == (7, 8, *range(128, 256), 259, 270, 288)


@pytest.mark.parametrize("sizes", [TINY.vocabulary, PUBLISHED.vocabulary], ids=["tiny", "published"])
def test_tokens_are_found_wherever_they_lie(sizes: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, sizes)
    tokens = read_special_tokens(tmp_path)
    ids = added_tokens(sizes)
    assert tokens.unknown == sizes.unknown
    assert (tokens.listen, tokens.turn_eos) == (ids["<|listen|>"], ids["<|turn_eos|>"])


def test_the_published_ids_come_out_of_the_published_order() -> None:
    ids = added_tokens(PUBLISHED.vocabulary)
    expected = {
        "<image>": 151_669,
        "<unit>": 151_683,
        "<|listen|>": 151_705,
        "<|turn_bos|>": 151_716,
        "<|tts_pad|>": 151_722,
    }
    assert {name: ids[name] for name in expected} == expected
    assert (ids["<|im_end|>"], ids["<focus>"], ids["</perception>"]) == (151_645, 151_687, 151_692)


def only_tokenizer_json(folder: Path) -> None:
    """Leave nothing but the form in which other tools save a tokenizer."""
    ids = added_tokens(TINY.vocabulary) | {"<unk>": TINY.vocabulary.unknown}
    for name in ("added_tokens.json", "vocab.json", "merges.txt"):
        (folder / name).unlink()
    write(folder, "tokenizer_config.json", {})
    added = [{"id": number, "content": name, "special": True} for name, number in ids.items()]
    write(folder, "tokenizer.json", {"added_tokens": added, "model": {"type": "BPE", "vocab": {"a": 97}}})


def test_the_file_that_other_tools_save_serves_alone(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, TINY.vocabulary)
    before = read_special_tokens(tmp_path).named()
    only_tokenizer_json(tmp_path)
    after = read_special_tokens(tmp_path)
    assert after.named() == before
    assert after.bad == ()


def test_a_token_that_no_file_knows_is_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, TINY.vocabulary)
    for name in ("added_tokens.json", "tokenizer_config.json"):
        path = tmp_path / name
        path.write_text(path.read_text(encoding="utf-8").replace("<|listen|>", "<|listens|>"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"know no <\|listen\|>:"):
        read_special_tokens(tmp_path)


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, TINY.vocabulary)
    decoder = {"340": {"content": "<unit>"}}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": decoder})
    write(tmp_path, "added_tokens.json", added_tokens(TINY.vocabulary) | {"<unit>": 339})
    with pytest.raises(CheckpointError, match=r"added_tokens\.json: <unit> is 339, but 340 in tokenizer_config\.json"):
        read_special_tokens(tmp_path)

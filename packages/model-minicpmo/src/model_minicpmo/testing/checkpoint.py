"""Writes a checkpoint of random weights in the published layout.

Owns: `config.json` and the other small files but the tokenizer's, the values of the weights, and their distribution over files.
Called by: `model_minicpmo.testing`.
Never: depends on the order in which tensors are made: each has its own seed, so that more shards or layers change none of the
others.

Not written: the two ONNX files of `assets/token2wav`, which read a reference voice (`tiny_speech` has stand-ins), and a voice of
the checkpoint's own. `talking` puts everything together.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from model_minicpmo.gpu.checkpoint import INDEX_FILE, SINGLE_FILE
from model_minicpmo.testing import tensors
from model_minicpmo.testing.behaviour import Behaviour, Wiring
from model_minicpmo.testing.tokenizer import added_tokens, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from model_minicpmo.testing.sizes import Sizes

UNUSED = "tts.model.embed_tokens.weight"
"""A tensor that the published checkpoint has and nothing reads."""


def write_checkpoint(
    folder: Path,
    sizes: Sizes,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    device: torch.device | str = "cpu",
    behaviour: Behaviour | None = None,
) -> Path:
    """Write a whole checkpoint.

    Args:
        folder: Where; it is made if it is not there.
        sizes: How large, such as `TINY` or `PUBLISHED`.
        seed: Another seed gives other weights.
        dtype: The type of the weights in the safetensors files; those of token2wav are always float32.
        shards: In how many files the weights are, with an index if there is more than one.
        device: Where random numbers are drawn; the same device gives the same weights.
        behaviour: What is wired into the weights; nothing by default.

    Returns:
        The folder.

    Raises:
        ValueError: The sizes have no room for the behaviour.
    """
    wiring = None if behaviour is None else Wiring(behaviour, sizes)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(sizes, dtype))
    _write_json(folder / "preprocessor_config.json", _preprocessor())
    ids = added_tokens(sizes.vocabulary)
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write_json(folder / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1], "do_sample": True})
    write_tokenizer(folder, sizes.vocabulary, words=() if behaviour is None else behaviour.words)

    def make(name: str, shape: tuple[int, ...]) -> Tensor:
        drawn = make_tensor(name, shape, seed=seed, device=device)
        made = drawn if wiring is None else wiring.wire(name, drawn)
        return made.to(torch.float16 if name == UNUSED else dtype).cpu()

    _write_weights(folder, sizes, make, shards=shards)
    assets = folder / "assets" / "token2wav"
    assets.mkdir(parents=True, exist_ok=True)
    (assets / "flow.yaml").write_text(_flow_description(sizes), encoding="utf-8")
    for name, listed in (("flow.pt", tensors.flow_tensors(sizes)), ("hift.pt", tensors.vocoder_tensors(sizes))):
        weights = {key: make_tensor(key, shape, seed=seed, device=device).cpu() for key, shape in listed}
        torch.save(weights, assets / name)
    return folder


def make_tensor(name: str, shape: tuple[int, ...], *, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw one tensor, float32, of a spread that keeps a network of its kind alive."""
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    drawn = torch.randn(shape, generator=generator, device=device)
    last = name.rpartition(".")[2]
    if name == UNUSED:
        return torch.zeros(shape, device=device)
    if last == "original0":
        return 1.0 + 0.1 * drawn  # the length of a row that is stored as length and direction
    if len(shape) == 1:
        return 0.05 * drawn if last.endswith("bias") else 1.0 + 0.1 * drawn
    if "emb" in name.split(".")[-2] or last in {"query", "pos_bias_u", "pos_bias_v"}:
        return 0.5 * drawn
    return drawn / float(torch.Size(shape[1:]).numel()) ** 0.5


def _write_weights(folder: Path, sizes: Sizes, make: Callable[[str, tuple[int, ...]], Tensor], *, shards: int) -> None:
    listed = sorted(tensors.model_tensors(sizes))
    parts = [listed[part::shards] for part in range(shards)]
    names = (
        [SINGLE_FILE]
        if shards == 1
        else [f"model-{part:05}-of-{shards:05}.safetensors" for part in range(1, shards + 1)]
    )
    for file, part in zip(names, parts, strict=True):
        weights = {name: make(name, shape) for name, shape in part}
        save_file(weights, folder / file, metadata={"format": "pt"})
    if shards > 1:
        weight_map = {name: file for file, part in zip(names, parts, strict=True) for name, _ in part}
        _write_json(folder / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})


def _config(sizes: Sizes, dtype: torch.dtype) -> dict[str, object]:
    ids = added_tokens(sizes.vocabulary)
    return {
        "model_type": "minicpmo",
        "architectures": ["MiniCPMO"],
        "version": "4.5",
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": sizes.vocabulary.added + tensors.ADDED_TOKENS,
        "hidden_size": sizes.llm.hidden,
        "intermediate_size": sizes.llm.intermediate,
        "num_hidden_layers": sizes.llm.layers,
        "num_attention_heads": sizes.llm.heads,
        "num_key_value_heads": sizes.llm.kv_heads,
        "head_dim": sizes.llm.head,
        "hidden_act": "silu",
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "query_num": tensors.QUERIES,
        "audio_pool_step": 5,
        "audio_chunk_length": 1.0,
        "image_size": 448,
        "patch_size": tensors.PATCH,
        "slice_config": {
            "max_slice_nums": 1,
            "patch_size": tensors.PATCH,
            "scale_resolution": 448,
            "model_type": "minicpmv",
        },
        "audio_config": _audio_config(sizes),
        "vision_config": _vision_config(sizes),
        "tts_config": _tts_config(sizes, ids),
    }


def _audio_config(sizes: Sizes) -> dict[str, object]:
    return {
        "model_type": "whisper",
        "d_model": sizes.audio.hidden,
        "encoder_layers": sizes.audio.layers,
        "encoder_attention_heads": sizes.audio.heads,
        "encoder_ffn_dim": sizes.audio.intermediate,
        "num_mel_bins": tensors.MEL_BINS,
        "max_source_positions": tensors.AUDIO_POSITIONS,
        "activation_function": "gelu",
    }


def _vision_config(sizes: Sizes) -> dict[str, object]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": sizes.vision.hidden,
        "intermediate_size": sizes.vision.intermediate,
        "num_attention_heads": sizes.vision.heads,
        "num_hidden_layers": sizes.vision.layers,
        "image_size": tensors.IMAGE_SIDE,
        "patch_size": tensors.PATCH,
    }


def _tts_config(sizes: Sizes, ids: dict[str, int]) -> dict[str, object]:
    talker = sizes.talker
    return {
        "model_type": "minicpmtts",
        "llm_dim": sizes.llm.hidden,
        "llm_intermediate_size": talker.hidden,
        "hidden_size": talker.hidden,
        "intermediate_size": talker.intermediate,
        "num_attention_heads": talker.heads,
        "num_key_value_heads": talker.heads,
        "num_hidden_layers": talker.layers,
        "num_audio_tokens": talker.codes,
        "num_text_tokens": talker.text_tokens,
        "audio_bos_token_id": ids["<focus>"],
        "text_eos_token_id": ids["</perception>"],
        "num_vq": 1,
        "max_position_embeddings": 4096,
        "normalize_projected_hidden": True,
        "condition_type": "hidden_text_merge",
        "projector_type": "mlp",
        "interleaved": False,
    }


def _preprocessor() -> dict[str, object]:
    return {
        "image_processor_type": "MiniCPMVImageProcessor",
        "feature_extractor_type": "MiniCPMAAudioProcessor",
        "processor_class": "MiniCPMOProcessor",
        "max_slice_nums": 9,
        "scale_resolution": 448,
        "patch_size": tensors.PATCH,
        "image_feature_size": tensors.QUERIES,
        "use_image_id": True,
        "slice_mode": True,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "audio_pool_step": 5,
        "version": 4.5,
    }


def _flow_description(sizes: Sizes) -> str:
    """Give `flow.yaml`: tags name the classes of the published code; only sizes are read of it here."""
    flow = sizes.token2wav
    encoder = {
        "input_size": flow.hidden,
        "output_size": flow.hidden,
        "input_layer": "linear",
        "pre_lookahead_len": 3,
        "num_blocks": flow.blocks,
        "num_up_blocks": flow.up_blocks,
        "up_stride": 2,
        "up_scale_factor": 2,
        "attention_heads": flow.heads,
        "pos_enc_layer_type": "rel_pos_espnet",
        "selfattention_layer_type": "rel_selfattn",
        "key_bias": "true",
        "linear_units": flow.intermediate,
        "dropout_rate": 0.1,
        "positional_dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "normalize_before": "true",
    }
    estimator = {
        "in_channels": 4 * tensors.MEL_BINS,
        "out_channels": tensors.MEL_BINS,
        "mlp_ratio": 4.0,
        "depth": flow.depth,
        "num_heads": flow.heads,
        "head_dim": flow.hidden // flow.heads,
        "hidden_size": flow.hidden,
    }
    whole = {
        "input_size": flow.hidden,
        "output_size": tensors.MEL_BINS,
        "spk_embed_dim": tensors.SPEAKER,
        "output_type": "mel",
        "vocab_size": sizes.talker.codes - 1,
    }
    lines = ["flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec"]
    lines += [f"    {key}: {value}" for key, value in whole.items()]
    lines += ["    encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2"]
    lines += [f"        {key}: {value}" for key, value in encoder.items()]
    lines += ["    decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM", "        inference_cfg_rate: 0.7"]
    lines += ["        estimator: !new:cosyvoice2.flow.decoder_dit.DiT"]
    lines += [f"            {key}: {value}" for key, value in estimator.items()]
    return "\n".join([*lines, ""])


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")

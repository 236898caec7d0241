"""The language model of a checkpoint, as vLLM is told of it: a Qwen3 of its own, in place of the whole checkpoint.

Owns the configuration that vLLM reads and under which name the class for it goes. Called by: the thinker's program, when its
settings are asked for. Never: reads a tensor, or imports vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_minicpmo.config import read_config
from model_minicpmo.errors import CheckpointError

ARCHITECTURE = "model_minicpmo.gpu.qwen3:LanguageModel"
"""Import path of the class; importing it imports vLLM."""
ARCHITECTURE_NAME = "MiniCPMOForCausalLM"
PREFIX = "llm."
"""What the names of the language model's tensors begin with."""
_ITS_OWN = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "tie_word_embeddings",
    "attention_bias",
    "attention_dropout",
    "torch_dtype",
    "dtype",
)
"""Fields of the checkpoint's `config.json` that are the language model's; all of them stand at its top level."""


def write_description(checkpoint: Path, folder: Path) -> None:
    """Write the `config.json` that vLLM reads into `folder`.

    No token ends a sequence by itself: the program says with each append what does.

    Raises:
        CheckpointError: the checkpoint's own is missing or broken.
    """
    read_config(checkpoint)  # says by name what does not fit
    path = checkpoint / "config.json"
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if whole.get("quantization_config") is not None:
        raise CheckpointError(path, "has a quantization_config; only checkpoints with plain weights can be served")
    own = {name: whole[name] for name in _ITS_OWN if name in whole}
    described = {**own, "model_type": "qwen3", "architectures": [ARCHITECTURE_NAME]}
    (folder / "config.json").write_text(json.dumps(described, indent=1), encoding="utf-8")

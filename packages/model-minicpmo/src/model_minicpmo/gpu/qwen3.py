"""The language model as vLLM runs it: its own Qwen3, with embeddings among the tokens, and weights out of the whole checkpoint.

Owns which tensors are its. Imported by vLLM in the engine's process, by the path that :mod:`model_minicpmo.gpu.language` gives.
Never: imported where vLLM has not been, since that takes many seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from duplex_core.vllm_embeddings import embedding_model
from model_minicpmo.gpu.language import PREFIX


class _FromWhole(Qwen3ForCausalLM):
    """Qwen3, loaded from a checkpoint that holds encoders and a talker beside it."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take the language model's tensors; the names of those that were loaded."""
        own = ((name.removeprefix(PREFIX), weight) for name, weight in weights if name.startswith(PREFIX))
        loaded: set[str] = super().load_weights(own)
        return loaded


LanguageModel = embedding_model(_FromWhole)
"""The class that vLLM makes."""

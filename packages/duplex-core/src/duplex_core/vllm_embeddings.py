"""Makes a vLLM language model take embeddings among its tokens, session by session.

vLLM's resumable requests carry token ids and multimodal items only; embeddings reach one as an item of vLLM's own
pass-through modality, which only a model class with multimodal support accepts. :func:`embedding_model` makes such a class
from any language model class. Called by the parts of a model package that run in an engine's process::

    from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

    Thinker = embedding_model(Qwen3ForCausalLM)

``EngineSettings.architecture`` names the result, and ``EngineSettings.embeddings`` is true. Imports torch and vllm, and is
therefore imported by nothing in this package. Must never look at what the embeddings are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

MODALITY = "audio"
"""The modality that such a class declares and allows no item of: embeddings come in beside it. vLLM wants one by name."""


class _Info(BaseProcessingInfo):
    """What vLLM asks before it makes a processor: one modality, whose items come ready-made."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {MODALITY: seq_len}


class _Dummies(BaseDummyInputsBuilder[_Info]):
    """vLLM's profiling inputs: none, since nothing is encoded."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], *_: Any, **__: Any) -> Mapping[str, Any]:
        return {}


class _Processor(BaseMultiModalProcessor[_Info]):
    """Never asked to process anything: prompts come with their items made."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Mapping[str, Any]:
        return {}

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Sequence[Any]:
        return []


def embedding_model(base: type) -> type:
    """A subclass of a vLLM language model class whose prompts may carry embeddings in the place of tokens.

    ``base`` has ``embed_input_ids(input_ids)``, as vLLM's language models do. The subclass has its name, weights and
    configuration; a prompt without embeddings is computed as by ``base``.
    """

    class EmbeddingModel(base, SupportsMultiModal):
        """A language model that takes embeddings among its tokens."""

        @classmethod
        def get_placeholder_str(cls, modality: str, i: int) -> str | None:
            """No text stands for an embedding."""
            return None

        def get_language_model(self) -> Any:
            """All of it is the language model."""
            return self

        def embed_multimodal(self, **_: object) -> Any:
            """Nothing is encoded: embeddings pass through."""
            return []

        def embed_input_ids(
            self,
            input_ids: torch.Tensor,
            multimodal_embeddings: Any = None,
            *,
            is_multimodal: torch.Tensor | None = None,
        ) -> torch.Tensor:
            """``[n, hidden]`` for ``input_ids`` ``[n]``, with the given embeddings where ``is_multimodal``."""
            embedded = super().embed_input_ids(input_ids)
            if multimodal_embeddings is None or len(multimodal_embeddings) == 0:
                return embedded
            given = torch.cat(list(multimodal_embeddings)).to(embedded)
            return embedded.index_put((is_multimodal,), given)

    EmbeddingModel.__name__ = EmbeddingModel.__qualname__ = base.__name__
    made: type = MULTIMODAL_REGISTRY.register_processor(_Processor, info=_Info, dummy_inputs=_Dummies)(EmbeddingModel)
    return made

"""The class of the tiny checkpoints in :mod:`tests.support.vllm_pipeline`. Imports vllm; called by it in its processes."""

from __future__ import annotations

from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from duplex_core.vllm_embeddings import embedding_model

TinyModel = embedding_model(Qwen3ForCausalLM)

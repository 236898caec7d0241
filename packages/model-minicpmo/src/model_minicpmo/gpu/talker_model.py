"""The talker's arithmetic: what a unit's text and hidden states become, and what audio codes the backbone expects after them.

Owns: the model and its sizes, read from `tts_config`. Called by: `talker.py`, which holds the slots and samples.
Never: samples, holds a session's state, or opens a file.

A condition row is `emb_text(id) + L2(projector(hidden))`, the hidden state being the language model's last layer at that id; the
rows of a unit are followed by the marks at which audio begins (MODELS.md, section 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.slot_llama import LlamaSizes, SlotCache, SlotLlama
from model_minicpmo.gpu.tables import table
from model_minicpmo.gpu.weights import below, fill, fold_weight_norm

if TYPE_CHECKING:
    from model_minicpmo.config import TtsConfig
    from model_minicpmo.gpu.checkpoint import Checkpoint

PREFIX = "tts."


# Fields of `tts_config` of which one value alone is known here.
_KNOWN = {"num_vq": 1, "hidden_act": "silu", "condition_type": "hidden_text_merge", "projector_type": "mlp"}
# Tensors under the prefix that nothing here needs: the backbone's own token embedding (every row comes as an embedding), and
# the projector of a speaker's hidden state, which version 4.5 does not call.
_UNUSED = ("model.embed_tokens.", "projector_spk.")


class _Projector(nn.Module):
    """Linear, ReLU, linear: from the language model's width to the talker's."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width_in, width_out)
        self.linear2 = nn.Linear(width_out, width_out)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear2(functional.relu(self.linear1(rows)))


class TalkerModel(nn.Module):
    """Embeddings, projector, backbone and head, under the checkpoint's names (without `tts.`)."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self.config = config
        self.sizes = LlamaSizes(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads or config.num_attention_heads,
            layers=config.num_hidden_layers,
            norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
        )
        self.emb_text = table(config.num_text_tokens, config.hidden_size)
        self.emb_code = nn.ModuleList([table(config.num_audio_tokens, config.hidden_size)])
        self.projector_semantic = _Projector(config.llm_dim, config.hidden_size)
        self.model = SlotLlama(self.sizes)
        self.head_code = nn.ModuleList([nn.Linear(config.hidden_size, config.num_audio_tokens, bias=False)])

    @property
    def end_code(self) -> int:
        """The code that ends a unit's codes: the last one."""
        return self.config.num_audio_tokens - 1

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.emb_text.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.emb_text.weight.dtype

    def new_cache(self, *, slots: int, positions: int) -> SlotCache:
        """Give an empty cache for this model."""
        return SlotCache(self.sizes, slots=slots, positions=positions, device=self.device, dtype=self.dtype)

    def condition(self, ids: Tensor, hidden: Tensor, *, text_ends: bool) -> Tensor:
        """Give the rows after which a unit's audio codes follow.

        Args:
            ids: [n] the text ids that are spoken; may be empty.
            hidden: [n, llm_dim] the language model's last layer at these ids.
            text_ends: whether the mark for the end of the text stands before the one for the audio. So it is in chat; the
                units of a duplex session have the second alone.

        Returns:
            [n + 1 or n + 2, hidden].

        Raises:
            ValueError: ids and hidden states are not equally many, or not as wide as the model.
        """
        wanted = (ids.shape[0], self.config.llm_dim)
        if hidden.shape != wanted:
            message = f"{ids.shape[0]} text ids want hidden states {list(wanted)}, not {list(hidden.shape)}"
            raise ValueError(message)
        projected = self.projector_semantic(hidden.to(device=self.device, dtype=self.dtype))
        if self.config.normalize_projected_hidden:
            projected = functional.normalize(projected, dim=-1)
        marks = (
            [self.config.text_eos_token_id, self.config.audio_bos_token_id]
            if text_ends
            else [self.config.audio_bos_token_id]
        )
        spoken = self.emb_text(ids.to(self.device)) + projected
        return torch.cat([spoken, self.emb_text(torch.tensor(marks, device=self.device))])

    def code_rows(self, codes: list[int]) -> Tensor:
        """Give the embeddings [len(codes), hidden] of audio codes."""
        return self.emb_code[0](torch.tensor(codes, device=self.device))

    def code_logits(self, hidden: Tensor) -> Tensor:
        """Give the raw logits [..., codes] of backbone states [..., hidden]."""
        return self.head_code[0](hidden)


def load_talker_model(
    checkpoint: Checkpoint, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> TalkerModel:
    """Read the talker of a checkpoint.

    Args:
        checkpoint: an opened one.
        device: where the model is to run.
        dtype: what it is to compute in.

    Raises:
        CheckpointError: `tts_config` asks for a talker for which nothing is written here, or the tensors do not fit it.
    """
    config = checkpoint.config.tts_config
    for name, known in _KNOWN.items():
        if getattr(config, name) != known:
            problem = (
                f"tts_config.{name} is {getattr(config, name)!r}; only {known!r} is supported, as MiniCPM-o 4.5 has it"
            )
            raise CheckpointError(checkpoint.folder / "config.json", problem)
    with torch.device("meta"):
        model = TalkerModel(config)
    stored = below(dict(checkpoint.read(checkpoint.names(PREFIX))), PREFIX)
    tensors = fold_weight_norm(stored, path=checkpoint.told_by)
    fill(model, tensors, path=checkpoint.told_by, device=device, dtype=dtype, unused=_UNUSED)
    return model

"""Runs the thinker's program over transformers' Qwen3, step for step as the vLLM runtime does; the oracle of the thinker's tests.

Owns the arithmetic of appends: what is fed, what is dropped, what is moved in the cache. Used by tests of this package alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import Append, Emit, Segment, SegmentEnd
from model_minicpmo.gpu.decider import UnitDecider

FIELDS = (
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
    "tie_word_embeddings",
    "attention_bias",
)


def language_model(folder: Any) -> Qwen3ForCausalLM:
    """The language model of a checkpoint, in transformers' own class."""
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    model = Qwen3ForCausalLM(Qwen3Config(**{name: config[name] for name in FIELDS}, rope_theta=config["rope_theta"]))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name[4:]: value for name, value in weights.items() if name.startswith("llm.")})
    return model.float().eval()


class OverTransformers:
    """One session's program, driven over a language model.

    `appended` are the appends of the last request, `logits` those of its last segment, `first_logits` the first of its first.
    """

    def __init__(self, model: Qwen3ForCausalLM, program: Any) -> None:
        self.model = model
        self.program = program
        self.cache: Any = DynamicCache(config=model.config)
        self.before: Any = None
        self.last: int | None = None
        self.appended: list[Append] = []
        self.logits: list[torch.Tensor] = []
        self.first_logits: Any = None
        self.decider = UnitDecider()

    def run(self, payload: Any) -> list[Any]:
        """Work on one request; what it emitted."""
        emitted: list[Any] = []
        steps = self.program.run(payload)
        self.appended = []
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return emitted
            if isinstance(step, Emit):
                emitted.append(step.payload)
                answer = None
            else:
                answer = self.append(step)
                self.appended.append(step)
                if len(self.appended) == 1 and self.logits:
                    self.first_logits = self.logits[0]

    @torch.no_grad()
    def append(self, step: Append) -> Segment:
        """Feed one append and choose its tokens."""
        if step.fresh:
            self.before, self.cache, self.last = self.cache, DynamicCache(config=self.model.config), None
        if step.kept is not None:
            return self._moved(*step.kept, count=len(step.ids))
        embed = self.model.get_input_embeddings()
        rows = embed(torch.tensor(list(step.ids), dtype=torch.long)) if step.ids else torch.empty(0, 0)
        if step.embeds is not None:
            rows = rows.clone()
            rows[list(step.embed_at)] = as_torch(step.embeds).to(rows.dtype)
        if self.last is not None and not step.drop_last:
            rows = torch.cat([embed(torch.tensor([self.last])), rows])
        return self._chosen(step, rows)

    def _chosen(self, step: Append, rows: torch.Tensor) -> Segment:
        chosen: list[int] = []
        told: list[Any] = []
        hidden = []
        self.logits = []
        while True:
            out = self.model.model(inputs_embeds=rows[None], past_key_values=self.cache, use_cache=True)
            hidden.append(out.last_hidden_state[0])
            logits = self.model.lm_head(hidden[-1][-1]).float()
            self.logits.append(logits)
            if step.sampling.decider is None:
                token, tell = int(logits.argmax()), None
            else:
                token, tell = self.decider.decide(logits, chosen, told, step.sampling.decider)
            chosen.append(token)
            told.append(tell)
            stopped = token in step.sampling.stop_token_ids
            if stopped or len(chosen) == step.sampling.max_tokens:
                break
            rows = self.model.get_input_embeddings()(torch.tensor([token]))
        self.last = chosen[-1]
        values = torch.cat(hidden)
        return Segment(
            ids=tuple(chosen),
            end=SegmentEnd.STOP if stopped else SegmentEnd.LENGTH,
            fed=len(values),
            context=self.cache.get_seq_length(),
            hidden=of_torch(values) if step.hidden else None,
            told=tuple(told) if step.sampling.decider is not None else (),
        )

    def _moved(self, start: int, stop: int, *, count: int) -> Segment:
        """Take keys and values over from the cache before, the keys rotated from their old positions to the new ones."""
        assert stop - start == count
        at = self.cache.get_seq_length()
        rotary = self.model.model.rotary_emb
        position = torch.full((1, count), at - start)
        for index, layer in enumerate(self.before.layers):
            keys, values = layer.keys[:, :, start:stop], layer.values[:, :, start:stop]
            cos, sin = rotary(keys, position)
            half = keys.shape[-1] // 2
            turned = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
            self.cache.update(keys * cos[:, None] + turned * sin[:, None], values, index)
        self.last = 0
        return Segment(ids=(0,), end=SegmentEnd.LENGTH, fed=count, context=at + count)

"""A thinker and a talker on vLLM, tiny and random, and the same two computed by transformers.

Owns the programs (found by import path in worker processes, so this module imports neither torch nor vllm), the checkpoints that
they run on, and the reference that tests compare with. Called by the tests of the ``vllm`` runtime. Holds no expectations.

A request to either is a :class:`Work`: appends to run one after the other, each answered by a :class:`Gave`. What the thinker's
hidden states are is passed along the link as a :class:`Speak`, for which the talker is fed them as embeddings.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_core.stages import Forward, LinkKind
from duplex_core.tensors import Tensor
from duplex_core.workers import Append, Emit, EngineSettings, ProgramStep, Sampling, Segment

CONTEXT = 256
HIDDEN = 64
THINKER_TOKENS, TALKER_TOKENS = 320, 128
BOS = 7
SPOKEN = 5
"""Tokens that the talker makes of each :class:`Speak`."""


class Work(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Appends to run. With ``speak`` each one's hidden states go to the talker. With ``catch`` a full context is told of.

    With ``decline`` the request is refused after the appends, for what a client would have sent.
    """

    appends: tuple[Append, ...]
    speak: bool = False
    catch: bool = False
    decline: bool = False


class Speak(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hidden states ``[n, hidden]`` to speak of."""

    hidden: Tensor


class Gave(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an append gave."""

    segment: Segment


class Full(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An append did not fit; the program then begins anew with its own positions."""

    code: str


Payload = Work | Speak | Gave | Full


class Session:
    """Either one's side of a session."""

    def run(self, payload: Work | Speak) -> Generator[ProgramStep, Segment | None, None]:
        """Run the appends, or speak of hidden states."""
        if isinstance(payload, Speak):
            segment = yield spoken(payload.hidden)
            assert segment is not None
            yield Emit(payload=Gave(segment=segment))
            return
        for append in payload.appends:
            try:
                segment = yield append
            except DuplexError as exc:
                if not payload.catch:
                    raise
                yield Emit(payload=Full(code=exc.info.code.value))
                segment = yield msgspec.structs.replace(append, fresh=True)
            assert segment is not None
            yield Emit(payload=Gave(segment=segment))
            if payload.speak and segment.hidden is not None:
                yield Emit(payload=Forward(kind=LinkKind.HIDDEN_STATES, payload=Speak(hidden=segment.hidden)))
        if payload.decline:
            raise refuse(ErrorCode.INVALID_VALUE, "that is no word of ours", param="session.options.word")


def spoken(hidden: Tensor) -> Append:
    """What the talker is fed for hidden states: a token, then they themselves."""
    rows = hidden.shape[0]
    return Append(
        ids=(BOS, *[0] * rows),
        embeds=hidden,
        embed_at=range(1, rows + 1),
        sampling=Sampling(max_tokens=SPOKEN),
    )


class Program:
    """Either one."""

    def __init__(self, model: str, engine_args: Mapping[str, Any], decider: str, context: int) -> None:
        self._settings = EngineSettings(
            model=model,
            max_model_len=context,
            dtype="float32",
            architecture="tests.support.vllm_models:TinyModel",
            architecture_name="Qwen3ForCausalLM",
            embeddings=True,
            decider=decider,
            engine_args={"block_size": 32, **engine_args},
        )

    def settings(self) -> EngineSettings:
        """The tiny checkpoint's."""
        return self._settings

    def open(self, session_id: str) -> Session:
        """A session begins."""
        return Session()

    def close(self) -> None:
        """Nothing is held."""


def program(
    *, model: str, engine_args: Mapping[str, Any] | None = None, decider: str = "", context: int = CONTEXT
) -> Program:
    """The factory that stages name."""
    return Program(model, engine_args or {}, decider, context)


def make_checkpoint(folder: Path, tokens: int, seed: int) -> Path:
    """Write a random Qwen3 of two layers, in the real layout."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokens,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim > 1:
                values.mul_(4.0)  # as it is made, it says one token for ever
    model.save_pretrained(folder)
    return folder


class Reference:
    """A checkpoint computed by transformers: the same appends, kept as the embeddings of all positions so far."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._table = self._model.get_input_embeddings().weight.detach()
        self.reset()

    def reset(self) -> None:
        """Begin a new context."""
        self.context = self._torch.zeros((0, HIDDEN))
        self.pending: int | None = None

    def embedded(self, append: Append) -> Any:
        """The embeddings of an append's own positions."""
        rows = self._table[list(append.ids)].clone() if append.ids else self._torch.zeros((0, HIDDEN))
        if append.embeds is not None:
            given = self._torch.frombuffer(bytearray(append.embeds.data), dtype=self._torch.float32)
            rows[list(append.embed_at)] = given.reshape(append.embeds.shape)
        return rows

    def append(self, append: Append) -> tuple[list[int], Any]:
        """Feed an append and choose greedily: the tokens, and the hidden states of all positions computed."""
        ids, hidden = self.sample(append, lambda logits, _: int(logits.argmax()))
        return ids, hidden

    def sample(self, append: Append, choose: Any) -> tuple[list[int], Any]:
        """Feed an append; ``choose(logits, chosen)`` says each token."""
        if append.fresh:
            self.reset()
        kept = [] if self.pending is None or append.drop_last else [self.pending]
        fed = [self._table[kept], self.embedded(append)] if kept else [self.embedded(append)]
        start = len(self.context)
        context = self._torch.cat([self.context, *fed])
        ids: list[int] = []
        hidden = None
        while len(ids) < append.sampling.max_tokens:
            if ids:
                context = self._torch.cat([context, self._table[ids[-1:]]])
            with self._torch.no_grad():
                states = self._model.model(inputs_embeds=context[None]).last_hidden_state[0]
                logits = self._model.lm_head(states[-1])
            hidden = states[start:]
            ids.append(choose(logits, ids))
            if ids[-1] in append.sampling.stop_token_ids:
                break
        self.context, self.pending = context, ids[-1]
        return ids, hidden


class Windowed(Reference):
    """The same with keys and values that are kept when a window moves: transformers' cache, cut and rotated."""

    def reset(self) -> None:
        """Begin a new context; what there was can be kept from."""
        self._old = getattr(self, "_layers", [])
        self._layers: list[tuple[Any, Any]] = []
        self.context: Any = []
        self.pending = None

    def keep(self, start: int, stop: int) -> None:
        """Positions ``start`` to ``stop`` of the old context are the next ones of this."""
        from transformers.models.qwen3.modeling_qwen3 import rotate_half

        by = self._torch.tensor([[float(len(self.context) - start)]])
        cos, sin = self._model.model.rotary_emb(self._old[0][0], by)
        kept = [
            (keys[:, :, start:stop] * cos + rotate_half(keys[:, :, start:stop]) * sin, values[:, :, start:stop])
            for keys, values in self._old
        ]
        self._layers = self._joined(kept)
        self.context = [*self.context, *range(stop - start)]
        self.pending = None

    def sample(self, append: Append, choose: Any) -> tuple[list[int], Any]:
        """Feed an append, with a cache."""
        from transformers import DynamicCache

        if append.fresh:
            self.reset()
        kept = [] if self.pending is None or append.drop_last else [self.pending]
        rows = self._torch.cat([self._table[kept], self.embedded(append)])
        states: list[Any] = []
        ids: list[int] = []
        while True:
            cache = DynamicCache()
            for index, (keys, values) in enumerate(self._layers):
                cache.update(keys, values, index)
            start = len(self.context)
            places = self._torch.arange(start, start + len(rows))[None]
            with self._torch.no_grad():
                out = self._model.model(inputs_embeds=rows[None], past_key_values=cache, position_ids=places)
                logits = self._model.lm_head(out.last_hidden_state[0, -1])
            self._layers = [(layer.keys, layer.values) for layer in cache.layers]
            self.context = [*self.context, *range(len(rows))]
            states.append(out.last_hidden_state[0])
            ids.append(choose(logits, ids))
            if len(ids) == append.sampling.max_tokens:
                break
            rows = self._table[ids[-1:]]
        self.pending = ids[-1]
        return ids, self._torch.cat(states)

    def _joined(self, kept: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        if not self._layers:
            return kept
        both = zip(self._layers, kept, strict=True)
        return [tuple(self._torch.cat(pair, dim=2) for pair in zip(one, other, strict=True)) for one, other in both]


class Inverse:
    """Chooses by given uniforms from the softmax: the decider of these tests (:class:`~duplex_core.workers.TokenDecider`)."""

    def decide(
        self, logits: Any, chosen: Sequence[int], told: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[int, Any]:
        """The token at which the distribution passes the uniform, and its probability."""
        if options.get("break"):
            raise ValueError("told to break")
        assert len(told) == len(chosen)
        return inverse(logits, options["uniforms"][len(chosen)], options["temperature"])


def inverse(logits: Any, uniform: float, temperature: float) -> tuple[int, float]:
    """The token at which the distribution of ``logits`` passes ``uniform``, and its probability."""
    probabilities = (logits.double() / temperature).softmax(-1)
    token = int((probabilities.cumsum(-1) < uniform).sum().clamp(max=len(probabilities) - 1))
    return token, float(probabilities[token])


@functools.cache
def reference(folder: Path) -> Reference:
    """The checkpoint's reference, loaded once; reset it before use."""
    return Reference(folder)

"""The decider of the thinker's stage: chooses every token of a unit, inside the engine.

Owns: what a unit's tokens may be beside the decision rule: `<|listen|>` in an open turn, the last token of a full unit, the
limits of characters and of text tokens. Called by: the vLLM runtime's logits processor, for each token; made once in the
engine's process.
Never: keeps anything of a unit: what it has to know comes with each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from model_minicpmo.gpu.decision import DecisionRule, choose
from model_minicpmo.gpu.tokenizer import load_tokenizer
from model_minicpmo.payloads import Options
from model_minicpmo.rules.limit import ends_turn
from model_minicpmo.tokens import SpecialTokens, read_special_tokens


class UnitOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What the program says of a unit, as `Sampling.decider`.

    Attributes:
        checkpoint: the checkpoint's folder.
        options: how tokens are chosen.
        history: ids chosen in earlier units, as far back as the repetition penalty reaches, oldest first.
        uniforms: two numbers in [0, 1) for each token, in order.
        turn_open: whether a turn was open when the unit began.
        asked: an answer is waited for: the unit may not begin with listening.
        most_tokens: text tokens that the unit may have at most.
    """

    checkpoint: str
    options: Options
    history: tuple[int, ...]
    uniforms: tuple[float, ...]
    turn_open: bool
    asked: bool = False
    most_tokens: int | None = None


class UnitDecider:
    """See :class:`duplex_core.workers.TokenDecider`. What it tells of a token is the id before `<|listen|>` was replaced."""

    def decide(
        self, logits: Tensor, chosen: Sequence[int], told: Sequence[int], options: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Choose a unit's next token.

        Args:
            logits: raw, [vocabulary] float32.
            chosen: the unit's tokens so far.
            told: the ids that were decided for them.
            options: fields of `UnitOrders`.

        Returns:
            the token, and the id that was decided, which is what the repetition penalty remembers.
        """
        orders = msgspec.convert(options, UnitOrders)
        tokens = _tokens(orders.checkpoint)
        if len(chosen) >= orders.options.max_tokens - 1:
            return tokens.chunk_eos, tokens.chunk_eos
        history = (*orders.history, *told)[-orders.options.repetition_window :]
        left = iter(orders.uniforms[2 * len(chosen) :])
        decided = choose(logits, history, lambda: next(left), self._rule(orders, chosen, tokens))
        return self._allowed(decided, chosen, orders, tokens), decided

    @staticmethod
    def _rule(orders: UnitOrders, chosen: Sequence[int], tokens: SpecialTokens) -> DecisionRule:
        options = orders.options
        banned = (tokens.chunk_eos, tokens.tts_pad, *tokens.bad)
        if orders.asked and not chosen and not orders.turn_open:
            banned = (*banned, tokens.listen)
        return DecisionRule(
            listen=tokens.listen,
            chunk_end=tokens.chunk_eos,
            turn_end=tokens.turn_eos,
            banned=banned,
            repetition_penalty=options.repetition_penalty,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            length_penalty=options.length_penalty,
            listen_scale=options.listen_scale,
            greedy=options.greedy,
        )

    @staticmethod
    def _allowed(decided: int, chosen: Sequence[int], orders: UnitOrders, tokens: SpecialTokens) -> int:
        if chosen and decided != tokens.turn_eos and ends_turn(orders.most_tokens, _words(chosen, tokens)):
            return tokens.chunk_eos
        if decided == tokens.listen and _turn_open(chosen, tokens, before=orders.turn_open):
            return tokens.tts_bos
        limit = orders.options.char_limit
        if limit and chosen and decided not in (tokens.chunk_eos, tokens.listen):
            words = [token for token in (*chosen[1:], decided) if token != tokens.turn_eos]
            if (
                len(words) > 1
                and len(load_tokenizer(orders.checkpoint).decode(words, skip_special_tokens=True)) >= limit
            ):
                return tokens.chunk_eos
        return decided


def _words(chosen: Sequence[int], tokens: SpecialTokens) -> int:
    """How many of a unit's tokens so far are text: the first only says that there is some."""
    return sum(token not in (tokens.turn_eos, tokens.tts_bos) for token in chosen[1:])


def _turn_open(chosen: Sequence[int], tokens: SpecialTokens, *, before: bool) -> bool:
    return chosen[-1] != tokens.turn_eos if chosen else before


@cache
def _tokens(folder: str) -> SpecialTokens:
    return read_special_tokens(Path(folder))

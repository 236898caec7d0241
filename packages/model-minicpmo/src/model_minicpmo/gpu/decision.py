"""The decision rule: which token comes next in a unit, given the language model's logits.

Owns: the order of draws, bans and penalties. Called by: the decider inside the engine, for every token of every unit.
Never: draws a random number by itself (the uniforms are arguments) or remembers anything.

Source: the vendor's demo server as recorded in `goldens/minicpmo`. One draw is made from the raw distribution: when it is
`<|chunk_eos|>` the unit is over. Else the logits are penalised and filtered, and a second draw decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """The numbers of the rule, and the ids that it speaks of.

    Attributes:
        listen: the id that ends a unit in which nothing is said.
        chunk_end: the id that ends a unit in which something was said.
        turn_end: the id that ends a turn; its logit is divided by `length_penalty` when positive, multiplied when negative.
        banned: ids that are never chosen in the second draw, `chunk_end` among them.
        repetition_penalty: divides the logits of all ids of the history, whatever their sign.
        temperature: divides all logits; nothing is drawn from when `greedy`.
        top_k: how many ids are drawn from at most; 0 is all.
        top_p: the smallest set of the most probable ids with at least this probability is drawn from; 1 is all.
        length_penalty: above 1 makes turns longer.
        listen_scale: multiplies the probability of listening before the second draw; 1 leaves it.
        greedy: take the most probable id in both places.
    """

    listen: int
    chunk_end: int
    turn_end: int
    banned: tuple[int, ...]
    repetition_penalty: float = 1.05
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    length_penalty: float = 1.1
    listen_scale: float = 1.0
    greedy: bool = False


def penalised(logits: Tensor, history: Sequence[int], rule: DecisionRule) -> Tensor:
    """Ban and penalise: raw logits [vocabulary] float32 in, new ones of the same shape out."""
    changed = logits.clone()
    changed[list(rule.banned)] = -torch.inf
    seen = sorted(set(history))
    if seen:
        changed[seen] /= rule.repetition_penalty
    turn_end = changed[rule.turn_end]
    changed[rule.turn_end] = torch.where(turn_end > 0, turn_end / rule.length_penalty, turn_end * rule.length_penalty)
    if rule.listen_scale != 1.0:
        changed[rule.listen] += torch.log(torch.tensor(rule.listen_scale))
    return changed


def filtered(logits: Tensor, rule: DecisionRule) -> Tensor:
    """Keep what may be drawn: logits [vocabulary] after temperature, minus infinity outside top-k and top-p."""
    cooled = logits / rule.temperature
    if 0 < rule.top_k < cooled.shape[-1]:
        least = torch.topk(cooled, rule.top_k).values[-1]
        cooled = cooled.masked_fill(cooled < least, -torch.inf)
    if rule.top_p < 1.0:
        ordered, order = torch.sort(cooled, descending=True)
        before = torch.softmax(ordered, dim=-1).cumsum(dim=-1) - torch.softmax(ordered, dim=-1)
        outside = before > rule.top_p
        cooled = cooled.clone()
        cooled[order[outside]] = -torch.inf
    return cooled


def draw(logits: Tensor, uniform: float) -> int:
    """Draw an id: the first, in the order of ids, whose cumulative probability exceeds `uniform` of the whole, in float64."""
    cumulative = torch.softmax(logits, dim=-1).double().cumsum(dim=-1)
    at = int(torch.searchsorted(cumulative, cumulative[-1:] * uniform, right=True))
    return min(at, logits.shape[-1] - 1)


def choose(logits: Tensor, history: Sequence[int], uniform: Callable[[], float], rule: DecisionRule) -> int:
    """Choose the next id of a unit.

    Args:
        logits: raw, [vocabulary] float32.
        history: ids chosen before, as far back as the repetition penalty reaches.
        uniform: gives the next number in [0, 1); not called when greedy.
        rule: the numbers.
    """
    first = int(logits.argmax()) if rule.greedy else draw(logits, uniform())
    if first == rule.chunk_end:
        return first
    changed = penalised(logits, history, rule)
    if rule.greedy:
        return int(changed.argmax())
    return draw(filtered(changed, rule), uniform())

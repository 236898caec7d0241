"""The rule by which one audio code is chosen from the talker's logits: temperature, penalty, filters, ban, draw.

Owns: pure functions of tensors; the numbers that are drawn are arguments. Called by: the talker, for all its slots at once, and
tests. Never: draws a random number, holds a state, or runs a model.

The rule is the published model's (MODELS.md, section 2), and its order is part of it: temperature; penalty by how often a code
stands among the last ones; nucleus; best k; then the ban on the end code, which so does not widen the nucleus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NO_CODE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSampling:
    """How codes are sampled.

    Attributes:
        temperature: divides the logits; above 0.
        penalty: a code seen n times among the last `penalty_window` codes has its logit divided (above zero) or multiplied
            (below) by `penalty ** n`; 1 does nothing.
        penalty_window: how many of the unit's own last codes count.
        top_p: the smallest set of codes whose probabilities reach this is kept; 1 keeps all.
        top_k: at most so many are kept; 0 keeps all.
        keep_at_least: neither filter goes below so many.
        spare_first: the first code of a unit is drawn without penalty and filters. (No penalty could apply to it.)
    """

    temperature: float = 0.8
    penalty: float = 1.05
    penalty_window: int = 16
    top_p: float = 1.0
    top_k: int = 0
    keep_at_least: int = 3
    spare_first: bool = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            message = f"temperature is {self.temperature}; it has to be above 0"
            raise ValueError(message)
        if not self.penalty > 0:
            message = f"penalty is {self.penalty}; it has to be above 0 (1 switches it off)"
            raise ValueError(message)
        if not 0 < self.top_p <= 1:
            message = f"top_p is {self.top_p}; it has to be above 0 and at most 1 (1 switches it off)"
            raise ValueError(message)
        if min(self.top_k, self.penalty_window) < 0 or self.keep_at_least < 1:
            message = "top_k and penalty_window have to be 0 or more, keep_at_least 1 or more"
            raise ValueError(message)


DUPLEX_SAMPLING = CodeSampling()
CHAT_SAMPLING = CodeSampling(top_p=0.85, top_k=25)


def code_probabilities(
    logits: Tensor,
    histories: Sequence[Sequence[int]],
    settings: Sequence[CodeSampling],
    *,
    banned: Sequence[bool],
    end_code: int,
) -> Tensor:
    """Give the distribution from which each row's next code is drawn.

    Args:
        logits: [rows, codes], raw.
        histories: a row's codes of this unit so far, in order.
        settings: a row's rule.
        banned: whether the end code may not be drawn in this row.
        end_code: the id of the end code.

    Returns:
        [rows, codes], float32, each row summing to 1.
    """
    scores = logits.float() / _column([rule.temperature for rule in settings], logits)
    scores = _penalised(scores, histories, settings)
    filtered = [
        index
        for index, (rule, history) in enumerate(zip(settings, histories, strict=True))
        if (rule.top_p < 1 or rule.top_k) and (history or not rule.spare_first)
    ]
    for index in filtered:
        scores[index] = _filtered(scores[index], settings[index])
    ban = torch.tensor(list(banned), device=scores.device)
    scores[:, end_code] = scores[:, end_code].masked_fill(ban, -torch.inf)
    return scores.softmax(-1)


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw one id per row: the first whose cumulative probability, in id order, exceeds `u` times the total.

    Summed in float64, so that the same `u` gives the same id on any device.

    Args:
        probabilities: [rows, ids], not negative.
        uniforms: one number in [0, 1) per row.

    Returns:
        [rows], int64.
    """
    if any(not 0 <= uniform < 1 for uniform in uniforms):
        message = f"a uniform number outside [0, 1): {list(uniforms)}"
        raise ValueError(message)
    cumulative = probabilities.double().cumsum(-1)
    threshold = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    # Rounding may lift the threshold to the total: then it is the last id that has any probability.
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    return torch.minimum(drawn, last)


def most_probable(probabilities: Tensor) -> Tensor:
    """Give each row's most probable id, [rows], int64."""
    return probabilities.argmax(-1)


def _penalised(scores: Tensor, histories: Sequence[Sequence[int]], settings: Sequence[CodeSampling]) -> Tensor:
    rows: list[int] = []
    codes: list[int] = []
    for index, (rule, history) in enumerate(zip(settings, histories, strict=True)):
        recent = list(history)[-rule.penalty_window :] if rule.penalty_window else []
        rows.extend([index] * len(recent))
        codes.extend(recent)
    if not rows:
        return scores
    counts = torch.zeros_like(scores)
    places = (torch.tensor(rows, device=scores.device), torch.tensor(codes, device=scores.device))
    counts.index_put_(places, torch.ones(len(rows), device=scores.device), accumulate=True)
    factors = _column([rule.penalty for rule in settings], scores) ** counts
    return torch.where(scores < 0, scores * factors, scores / factors)


def _filtered(scores: Tensor, rule: CodeSampling) -> Tensor:
    """Nucleus, then best k, of one row [codes]; what falls out becomes minus infinity."""
    if rule.top_p < 1:
        ascending, order = scores.sort()
        fallen = ascending.softmax(-1).cumsum(-1) <= 1 - rule.top_p
        fallen[-rule.keep_at_least :] = False
        scores = scores.index_fill(0, order[fallen], -torch.inf)
    if rule.top_k:
        kept = min(max(rule.top_k, rule.keep_at_least), scores.shape[-1])
        scores = scores.masked_fill(scores < scores.topk(kept).values[-1], -torch.inf)
    return scores


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]

"""The rule of sampling, case by case, and against transformers' own processors."""

from __future__ import annotations

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from model_minicpmo.gpu.sampling import CHAT_SAMPLING, CodeSampling, code_probabilities, draw, most_probable

pytestmark = pytest.mark.engines

PLAIN = CodeSampling(temperature=1.0, penalty=1.0)


def _probabilities(
    logits: list[float], history: list[int], rule: CodeSampling, *, banned: bool = False
) -> torch.Tensor:
    rows = torch.tensor([logits])
    return code_probabilities(rows, [history], [rule], banned=[banned], end_code=len(logits) - 1)[0]


def test_without_anything_it_is_a_softmax() -> None:
    logits = [1.0, -2.0, 0.5, 3.0]
    torch.testing.assert_close(_probabilities(logits, [0], PLAIN), torch.tensor(logits).softmax(0))


def test_a_code_is_penalised_once_for_every_time_it_was_said() -> None:
    rule = CodeSampling(temperature=0.5, penalty=1.5)
    expected = torch.tensor([2.0 / 1.5, -4.0 * 1.5 * 1.5, 1.0, 6.0]).softmax(0)
    torch.testing.assert_close(_probabilities([1.0, -2.0, 0.5, 3.0], [1, 0, 1], rule), expected)


def test_what_was_said_before_the_window_is_forgotten() -> None:
    rule = CodeSampling(temperature=1.0, penalty=2.0, penalty_window=2)
    expected = torch.tensor([1.0, 1.0 / 2, 1.0 / 2]).softmax(0)
    torch.testing.assert_close(_probabilities([1.0, 1.0, 1.0], [0, 1, 2], rule), expected)


def test_the_end_is_banned_after_the_filters_and_so_widens_none() -> None:
    rule = CodeSampling(temperature=1.0, penalty=1.0, top_k=2, keep_at_least=1)
    found = _probabilities([1.0, 2.0, 0.0, 9.0], [0], rule, banned=True)
    assert found.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_the_first_code_is_spared_the_filters_unless_told_otherwise() -> None:
    logits = [0.0, 1.0, 2.0, 3.0]
    rule = CodeSampling(temperature=1.0, top_k=1, keep_at_least=1)
    assert _probabilities(logits, [], rule).count_nonzero() == 4
    strict = CodeSampling(temperature=1.0, top_k=1, keep_at_least=1, spare_first=False)
    assert _probabilities(logits, [], strict).tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("top_p", "top_k"), [(0.85, 25), (0.85, 0), (1.0, 25), (0.01, 1)])
def test_filters_are_those_of_transformers(top_p: float, top_k: int) -> None:
    torch.manual_seed(7)
    logits = 3 * torch.randn(20, 300)
    expected = logits
    if top_p < 1:
        expected = TopPLogitsWarper(top_p, min_tokens_to_keep=3)(None, expected)
    if top_k:
        expected = TopKLogitsWarper(top_k, min_tokens_to_keep=3)(None, expected)
    rule = CodeSampling(temperature=1.0, penalty=1.0, top_p=top_p, top_k=top_k)
    found = code_probabilities(logits, [[0]] * 20, [rule] * 20, banned=[False] * 20, end_code=299)
    torch.testing.assert_close(found, expected.softmax(-1))


def test_rows_keep_their_own_rules() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).repeat(3, 1)
    rules = [PLAIN, CHAT_SAMPLING, CodeSampling(temperature=2.0, penalty=3.0)]
    histories, banned = [[1], [2, 2], [4]], [True, False, False]
    together = code_probabilities(logits, histories, rules, banned=banned, end_code=4)
    for index, rule in enumerate(rules):
        alone = _probabilities(logits[index].tolist(), histories[index], rule, banned=banned[index])
        torch.testing.assert_close(together[index], alone)


def test_a_draw_takes_the_first_id_whose_sum_exceeds_it() -> None:
    rows = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(5, 1)
    assert draw(rows, [0.0, 0.2499, 0.25, 0.75, 0.9999]).tolist() == [0, 0, 2, 3, 3]


def test_a_draw_never_takes_what_has_no_probability() -> None:
    rows = torch.tensor([[0.0, 0.3, 0.7, 0.0]]) / 3  # their sum is not 1 either
    largest = torch.nextafter(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)).item()
    assert draw(rows, [0.0]).tolist() == [1]
    assert draw(rows, [largest]).tolist() == [2]


@pytest.mark.parametrize("uniform", [1.0, -0.1])
def test_a_number_outside_its_interval_is_refused(uniform: float) -> None:
    with pytest.raises(ValueError, match=r"outside \[0, 1\)"):
        draw(torch.ones(1, 3), [uniform])


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    uniforms = [(index + 0.5) / 1000 for index in range(1000)]
    drawn = draw(probabilities.expand(1000, 3), uniforms)
    assert drawn.bincount().tolist() == [100, 200, 700]


def test_most_probable() -> None:
    assert most_probable(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])).tolist() == [1, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"penalty": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}, {"keep_at_least": 0}],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CodeSampling(**wrong)  # type: ignore[arg-type]

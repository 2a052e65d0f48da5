"""Quantile Balancing: the report's example, the exact form, and what the histogram form owes to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.model.balance import (
    BalanceHistogram,
    balance_exact,
    balance_histogram,
    count_residuals,
    max_violation,
    residuals,
)
from quantaudit.model.moe import select_experts

# Eight tokens, four experts, one expert a token; loads (4, 3, 1, 0) without a bias.
SCORES = torch.tensor(
    [
        [0.94, 0.74, 0.58, 0.10],
        [0.44, 0.88, 0.43, 0.39],
        [0.46, 0.76, 0.80, 0.24],
        [0.56, 0.61, 0.31, 0.39],
        [0.84, 0.20, 0.13, 0.20],
        [0.45, 0.34, 0.12, 0.29],
        [0.49, 0.06, 0.36, 0.27],
        [0.29, 0.71, 0.05, 0.09],
    ]
)


def load(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Tensor:
    return torch.bincount(select_experts(score_NE, bias_E, top_k).flatten(), minlength=score_NE.shape[1])


def update(score_NE: Tensor, bias_E: Tensor, top_k: int, *, bins: int | None) -> Tensor:
    if bins is None:
        return balance_exact(score_NE, bias_E, top_k)
    return balance_histogram(count_residuals(score_NE, bias_E, top_k, bins=bins), top_k)


def skewed(num_tokens: int, num_experts: int, seed: int) -> Tensor:
    noise = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    return torch.sigmoid(noise + torch.linspace(2.0, -2.0, num_experts))


@pytest.mark.parametrize("bins", [None, 1000])
def test_one_update_balances_the_example_of_the_report(bins: int | None) -> None:
    assert load(SCORES, torch.zeros(4), 1).tolist() == [4, 3, 1, 0]
    assert load(SCORES, update(SCORES, torch.zeros(4), 1, bins=bins), 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("bins", [None, 1000])
def test_violation_of_a_skewed_router_falls_as_published(bins: int | None) -> None:
    # Published: 1.875, .56, .19, .125, ... .06 after five; each within twice its share of the first.
    score, bias, violations = skewed(512, 8, seed=0), torch.zeros(8), []
    for _ in range(6):
        violations.append(max_violation(load(score, bias, 2)))
        bias = update(score, bias, 2, bins=bins)
    assert violations[0] > 1.5
    published = (0.56, 0.19, 0.125)
    for violation, expected in zip(violations[1:4], published, strict=True):
        assert violation <= 2 * violations[0] * expected / 1.875
    assert violations[5] <= 2 * violations[0] * 0.06 / 1.875


def test_residual_is_the_first_rejected_score_minus_the_own() -> None:
    score, bias = torch.tensor([[0.5, 0.25, 0.75, 0.125]]), torch.tensor([0.0, 1.0, 0.0, 0.0])
    # Biased: .5, 1.25, .75, .125; the third largest is .5.
    assert residuals(score, bias, 2).tolist() == [[0.0, 0.25, -0.25, 0.375]]


def test_exact_form_is_an_order_statistic_centred() -> None:
    # Six tokens, four experts, top 1: q = 1.5, so the second smallest residual of each expert.
    score = skewed(6, 4, seed=3)
    expected = torch.stack([column.sort().values[1] for column in residuals(score, torch.zeros(4), 1).T])
    assert torch.equal(balance_exact(score, torch.zeros(4), 1), expected - expected.mean())


@pytest.mark.parametrize("bins", [100, 1000, 10_000])
@pytest.mark.parametrize(("num_tokens", "top_k"), [(512, 2), (317, 3), (33, 1)])
def test_histogram_form_is_within_two_bins_of_the_exact_form(num_tokens: int, top_k: int, bins: int) -> None:
    score = skewed(num_tokens, 8, seed=num_tokens)
    bias = 0.3 * torch.randn(8, generator=torch.Generator().manual_seed(1))
    histogram = count_residuals(score, bias, top_k, bins=bins)
    # Both lie in the same bin before centring; centring subtracts a mean of such differences. Sums of size 2 in fp32.
    tolerance = 2 * histogram.width + 8 * 2.0**-24
    assert (balance_histogram(histogram, top_k) - balance_exact(score, bias, top_k)).abs().max() <= tolerance


def test_histogram_is_the_same_bits_however_tokens_are_sharded() -> None:
    score, bias = skewed(500, 8, seed=6), 0.2 * torch.randn(8, generator=torch.Generator().manual_seed(7))
    whole = count_residuals(score, bias, 2)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(8))
    for cuts in ([500], [1, 499], [123, 200, 177], [10] * 50):
        shards = [count_residuals(part, bias, 2) for part in score[order].split(cuts)]
        pooled = shards[0]
        for shard in shards[1:]:
            pooled = pooled + shard
        assert torch.equal(pooled.counts_EB, whole.counts_EB)
        assert torch.equal(balance_histogram(pooled, 2), balance_histogram(whole, 2))


def test_histogram_counts_every_residual_once_inside_its_range() -> None:
    score, bias = skewed(200, 8, seed=9), torch.randn(8, generator=torch.Generator().manual_seed(10))
    histogram = count_residuals(score, bias, 3)
    assert histogram.counts_EB.sum(1).tolist() == [200] * 8
    assert histogram.lowest == float(bias.min()) - 1.0
    r = residuals(score, bias, 3)
    assert r.min() >= histogram.lowest
    assert r.max() <= histogram.lowest + 1000 * histogram.width


def test_quantile_is_interpolated_inside_its_bin() -> None:
    counts = torch.tensor([[0, 4, 0, 0], [1, 1, 1, 1], [0, 0, 0, 4], [4, 0, 0, 0]])
    histogram = BalanceHistogram(counts_EB=counts, lowest=-1.0, width=0.5, num_tokens=4)
    # q = 4 x 1 / 4 = 1: a quarter into the bin of four, the whole of the bin of one.
    expected = torch.tensor([-0.5 + 0.125, -0.5, 0.5 + 0.125, -1.0 + 0.125])
    assert torch.equal(balance_histogram(histogram, 1), expected - expected.mean())


def test_histograms_of_different_biases_are_refused() -> None:
    score = skewed(20, 8, seed=11)
    with pytest.raises(ValueError, match="two different biases"):
        count_residuals(score, torch.zeros(8), 2) + count_residuals(score, torch.ones(8), 2)


def test_balance_has_mean_zero_and_no_violation_when_even() -> None:
    assert abs(float(balance_exact(skewed(64, 8, seed=12), torch.zeros(8), 2).mean())) < 1e-6
    assert max_violation(torch.tensor([3, 3, 3])) == 0.0
    assert max_violation(torch.tensor([4, 3, 1, 0])) == 1.0

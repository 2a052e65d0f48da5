"""Attention residuals: the published example, and what enters where."""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.model.attn_residual import NormWeight, PseudoQuery, mix_sources, score_sources

BANK = [[1.0, 2.0, -1.0, 0.0], [0.5, -0.5, 0.5, -0.5]]
PREFIX = [3.0, 0.0, 0.0, 4.0]
EPS = 1e-5
HALF_DIGIT = 0.5e-8  # the published numbers have eight decimals


def wide(rows: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def parameters() -> tuple[NormWeight, PseudoQuery]:
    norm, query = NormWeight(4).double(), PseudoQuery(4).double()
    with torch.no_grad():
        norm.weight.copy_(wide([1.0, 1.0, 2.0, 0.5]))
        query.weight.copy_(wide([[0.1, -0.2, 0.3, 0.4]]))
    return norm, query


def example(prefix: list[float] = PREFIX, *, eps: float = EPS) -> Tensor:
    return mix_sources([wide([row]) for row in BANK], wide([prefix]), *parameters(), eps)[0]


def test_published_scores_and_probabilities() -> None:
    scores = score_sources(wide([*BANK, PREFIX]).unsqueeze(1), *parameters(), EPS)[:, 0]
    assert (scores - wide([-0.73484447, 0.69998600, 0.43999965])).abs().max() <= HALF_DIGIT
    assert (scores.softmax(0) - wide([0.11853156, 0.49770611, 0.38376232])).abs().max() <= HALF_DIGIT


def test_published_mixture() -> None:
    assert (example() - wide([1.51867159, -0.01178993, 0.13032149, 1.28619624])).abs().max() <= HALF_DIGIT


def test_epsilon_enters_the_score() -> None:
    assert (example(eps=1e-2) - example()).abs().max() > 1e-5


def test_mixed_values_are_not_normalised() -> None:
    # The score does not see a factor on a source (but for epsilon); the mixture does.
    doubled = example([6.0, 0.0, 0.0, 8.0], eps=0.0)
    share = wide([-0.73484447, 0.69998600, 0.43999965]).softmax(0)[2]
    assert (doubled - example(eps=0.0) - share * wide(PREFIX)).abs().max() < 1e-4


def test_zero_query_mixes_evenly() -> None:
    norm, query = NormWeight(4).double(), PseudoQuery(4).double()
    mixed = mix_sources([wide([row]) for row in BANK], wide([PREFIX]), norm, query, EPS)
    torch.testing.assert_close(mixed[0], wide([*BANK, PREFIX]).mean(0), rtol=1e-15, atol=1e-16)


def test_every_token_has_its_own_weights() -> None:
    bank = [wide([BANK[0], PREFIX]), wide([BANK[1], BANK[0]])]
    mixed = mix_sources(bank, wide([PREFIX, BANK[1]]), *parameters(), EPS)
    assert torch.equal(mixed[0], example())
    # The second token has the same three sources in another order.
    torch.testing.assert_close(mixed[1], mixed[0], rtol=1e-14, atol=1e-15)


def test_bf16_is_scored_in_fp32_and_rounded_once() -> None:
    generator = torch.Generator().manual_seed(3)
    bank, prefix = [torch.randn(5, 4, generator=generator).bfloat16() for _ in range(2)], torch.randn(5, 4).bfloat16()
    norm, query = parameters()
    norm.float(), query.float()
    mixed = mix_sources(bank, prefix, norm, query, EPS)
    assert torch.equal(mixed, mix_sources([b.float() for b in bank], prefix.float(), norm, query, EPS).bfloat16())

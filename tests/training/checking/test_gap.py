"""The numbers of a gap, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.errors import NotMeasuredError
from quantaudit.training.checking.gap import measure_gap

LN2 = math.log(2)


def test_equal_log_probabilities_have_no_gap() -> None:
    logprobs = torch.tensor([-0.1, -2.0, -7.0])
    gap = measure_gap(logprobs, logprobs)
    assert (gap.mean, gap.p50, gap.p99, gap.max, gap.k1, gap.k3) == (0.0,) * 6
    assert (gap.ess, gap.num_extreme, gap.num_confident, gap.num_tokens) == (1.0, 0, 0, 3)


def test_numbers_by_hand() -> None:
    serve = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    train = serve - torch.tensor([LN2, -LN2], dtype=torch.float64)
    gap = measure_gap(serve, train)
    # d = ln 2, -ln 2; r = 1/2, 2; a few roundings of numbers of order one
    assert gap.mean == pytest.approx(LN2, rel=1e-12) and gap.max == pytest.approx(LN2, rel=1e-12)
    assert gap.k1 == pytest.approx(0.0, abs=1e-12)
    assert gap.k3 == pytest.approx((0.5 - 1 + LN2 + 2 - 1 - LN2) / 2, rel=1e-12)
    assert gap.ess == pytest.approx(2.5**2 / (2 * 4.25), rel=1e-12)


def test_k3_is_never_negative_where_k1_is() -> None:
    serve = torch.full((4,), -2.0)
    gap = measure_gap(serve, serve + 0.5)
    assert gap.k1 < 0 < gap.k3


def test_masked_tokens_are_in_no_number() -> None:
    serve, train = torch.tensor([-1.0, -1.0, -9.0]), torch.tensor([-1.5, -1.0, -1.0])
    masked = measure_gap(serve, train, torch.tensor([True, True, False]))
    assert masked == measure_gap(serve[:2], train[:2])
    assert masked.num_tokens == 2


def test_extreme_tokens_and_confident_disagreements_are_counted() -> None:
    serve = torch.tensor([0.95, 0.95, 0.5, 0.2]).log()
    train = torch.tensor([0.40, 0.60, 0.2, 0.19]).log()
    gap = measure_gap(serve, train)
    assert (gap.num_extreme, gap.num_confident) == (2, 1)


def test_nothing_kept_is_nothing_measured() -> None:
    with pytest.raises(NotMeasuredError, match="no token"):
        measure_gap(torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=torch.bool))

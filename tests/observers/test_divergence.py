"""Divergences agree with a loop, are never negative, vanish for equal models only, and know which side is which."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.core.site import Point, Site
from quantaudit.observers.logits import KL_FORWARD, KL_REVERSE, NLL, TOP_1
from quantaudit.observers.paired import PairedBatch
from quantaudit.observers.routing import EXPERT_SET_AGREEMENT
from quantaudit.observers.token_view import Column, view_tokens
from tests.observers.random_pairs import COUNTS, pair, random_pair, trace, with_itself

# Two log-sum-exps of 11 terms, a product and a sum of 11: 40 roundings of 2^-53 on numbers up to 20.
FP64 = 40 * 2.0**-53 * 20


def softmax(row: list[float]) -> list[float]:
    """Returns probabilities."""
    top = max(row)
    total = math.fsum(math.exp(x - top) for x in row)
    return [math.exp(x - top) / total for x in row]


def kl_by_loop(p_MV: Tensor, q_MV: Tensor) -> list[float]:
    """Returns sum p ln(p / q) at every position."""
    rows = zip(p_MV.tolist(), q_MV.tolist(), strict=True)
    return [math.fsum(a * math.log(a / b) for a, b in zip(softmax(p), softmax(q), strict=True)) for p, q in rows]


def divergence(p_MV: Tensor, q_MV: Tensor) -> Column:
    """Returns KL(p || q) of logits at every position."""
    hi, lo = (trace(x_MV, torch.zeros(len(x_MV), dtype=torch.long), (len(x_MV),)) for x_MV in (p_MV, q_MV))
    return view_tokens(hi, lo, 1).kl_M


def means(values: list[float]) -> list[float]:
    """Returns the mean over each of the first four sequences."""
    pieces = torch.tensor(values, dtype=torch.float64).split(list(COUNTS))
    return [float(p.mean()) for p in pieces[:4]]


@pytest.mark.parametrize("seed", range(3))
def test_divergences_are_those_of_a_loop(seed: int) -> None:
    batch = random_pair(seed)
    hi, lo = batch.hi.logits_MV, batch.lo.logits_MV
    for observer, p, q in ((KL_FORWARD, hi, lo), (KL_REVERSE, lo, hi)):
        readings = observer.measure(batch)
        assert np.abs(readings.lo_R - means(kl_by_loop(p, q))).max() <= FP64
        assert not readings.hi_R.any()


def test_divergence_is_never_negative() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(2000, 11, generator=generator) * 5 for _ in range(2))
    assert (divergence(p, q) >= 0).all()
    near = divergence(p, p + 1e-6 * q)
    assert (near > -FP64).all()


def test_divergence_vanishes_for_equal_models_only() -> None:
    batch = random_pair()
    for observer in (KL_FORWARD, KL_REVERSE):
        assert (observer.measure(with_itself(batch)).lo_R == 0).all()
        assert (observer.measure(batch).lo_R > 0).all()


def test_a_shift_of_all_logits_is_no_difference() -> None:
    hi = random_pair().hi.logits_MV
    assert np.abs(divergence(hi, hi + 8.0)).max() <= FP64


def test_the_two_directions_are_two_numbers() -> None:
    batch = random_pair()
    assert not np.allclose(KL_FORWARD.measure(batch).lo_R, KL_REVERSE.measure(batch).lo_R)


def test_top_1_counts_positions_and_ties_go_to_the_lowest_id() -> None:
    batch = random_pair()
    same = [
        float(h.index(max(h)) == lo.index(max(lo)))
        for h, lo in zip(batch.hi.logits_MV.tolist(), batch.lo.logits_MV.tolist(), strict=True)
    ]
    readings = TOP_1.measure(batch)
    assert readings.lo_R.tolist() == pytest.approx(means(same), rel=2.0**-52)
    assert 0 < readings.lo_R.mean() < 1 and (readings.hi_R == 1).all()
    tied = torch.zeros(sum(COUNTS), 11)
    winner = tied.clone()
    winner[:, 0] = 1.0
    assert (TOP_1.measure(pair(tied, winner, torch.zeros(sum(COUNTS), dtype=torch.long))).lo_R == 1).all()


def test_nll_is_the_mean_over_answer_tokens() -> None:
    batch = random_pair()
    p = [math.log(softmax(r)[t]) for r, t in zip(batch.lo.logits_MV.tolist(), batch.lo.target_M.tolist(), strict=True)]
    assert np.abs(NLL.measure(batch).lo_R + means(p)).max() <= FP64


def routed(batch: PairedBatch, hi: dict[int, list[list[int]]], lo: dict[int, list[list[int]]]) -> PairedBatch:
    """Returns the batch with these experts chosen, layer by layer."""
    for t, chosen in ((batch.hi, hi), (batch.lo, lo)):
        t.sites.update({Site(i, Point.TOP_K_IDS): torch.tensor(ids) for i, ids in chosen.items()})  # type: ignore[attr-defined]
    return batch


def test_expert_agreement_is_the_mean_share_over_tokens_and_layers() -> None:
    batch = random_pair()
    tokens = sum(batch.hi.lengths_B)
    rng = np.random.default_rng(0)
    hi, lo = (
        {layer: [sorted(rng.choice(6, 2, replace=False).tolist()) for _ in range(tokens)] for layer in (1, 3)}
        for _ in range(2)
    )
    readings = EXPERT_SET_AGREEMENT.measure(routed(batch, hi, lo))
    share = [sum(len(set(hi[i][n]) & set(lo[i][n])) / 2 for i in (1, 3)) / 2 for n in range(tokens)]
    pieces = torch.tensor(share).split(list(batch.hi.lengths_B))
    # Shares are quarters: sums are exact, and the division rounds once on each side.
    assert readings.lo_R.tolist() == pytest.approx([float(p.double().mean()) for p in pieces[:4]], rel=2.0**-52)
    assert (readings.hi_R == 1).all() and 0 < readings.lo_R.mean() < 1

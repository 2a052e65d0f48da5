"""Every column of the view is what a loop over the vocabulary finds; equal models give exact zeros and ones.

The loops take probabilities from `math.exp` in plain Python and know none of the rearranged sums of the code.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.token_view import TOP, TokenView, join_views, view_tokens
from tests.observers.random_pairs import COUNTS, pair, random_pair, trace, with_itself

ANSWERED = sum(COUNTS[:4])  # tokens of the first four sequences; the others are opposite responses

# Two log-sum-exps of 11 terms, a product and a sum of 11: 40 roundings of 2^-53 on numbers up to 20; squared ratios of
# up to e^12 carry them as they are, relative to their size.
RELATIVE = 40 * 2.0**-53 * 20


def softmax(row: list[float]) -> list[float]:
    """Returns probabilities."""
    top = max(row)
    total = math.fsum(math.exp(x - top) for x in row)
    return [math.exp(x - top) / total for x in row]


def by_loop(hi: list[float], lo: list[float], target: int) -> dict[str, float]:
    """Returns every column at one position."""
    p, q = softmax(hi), softmax(lo)
    both = list(zip(p, q, strict=True))
    middle = [(a + b) / 2 for a, b in both]
    ranked_hi, ranked_lo = (sorted(range(len(x)), key=lambda v: -x[v]) for x in (hi, lo))
    return {
        "kl_M": math.fsum(a * math.log(a / b) for a, b in both),
        "kl_reverse_M": math.fsum(b * math.log(b / a) for a, b in both),
        "js_M": math.fsum(
            (a * math.log(a / m) + b * math.log(b / m)) / 2 for (a, b), m in zip(both, middle, strict=True)
        ),
        "k2_M": math.fsum(a * math.log(b / a) ** 2 / 2 for a, b in both),
        "k3_M": math.fsum(a * (b / a - 1 - math.log(b / a)) for a, b in both),
        "excess_M": math.fsum(b * b / a for a, b in both) - 1,
        "extreme_M": math.fsum(a for a, b in both if max(a / b, b / a) > 2),
        "same_top_M": float(ranked_hi[0] == ranked_lo[0]),
        "overlap_M": len(set(ranked_hi[:TOP]) & set(ranked_lo[:TOP])) / TOP,
        "collision_M": math.fsum(a * b for a, b in both),
        "hi_collision_M": math.fsum(a * a for a in p),
        "lo_collision_M": math.fsum(b * b for b in q),
        "hi_p_M": p[target],
        "lo_p_M": q[target],
        "log_ratio_M": math.log(q[target] / p[target]),
        "hi_lead_M": hi[ranked_hi[0]] - hi[ranked_hi[1]],
        "hi_confidence_M": max(p),
        "lo_confidence_M": max(q),
        "hi_right_M": float(ranked_hi[0] == target),
        "lo_right_M": float(ranked_lo[0] == target),
    }


def view_of(hi: list[float], lo: list[float], target: int = 0) -> TokenView:
    """Returns the view of a single position."""
    right = torch.tensor([target])
    return view_tokens(trace(torch.tensor([hi]), right, (1,)), trace(torch.tensor([lo]), right, (1,)), 1)


@pytest.mark.parametrize("seed", range(4))
def test_every_column_is_that_of_a_loop_over_the_vocabulary(seed: int) -> None:
    batch = random_pair(seed)
    view = batch.tokens()
    assert len(view) == ANSWERED
    rows = zip(*(t.tolist() for t in (batch.hi.logits_MV, batch.lo.logits_MV, batch.hi.target_M)), strict=True)
    expected = [by_loop(*row) for row in rows][:ANSWERED]
    for column in fields(TokenView):
        found, wanted = getattr(view, column.name), np.array([row[column.name] for row in expected])
        assert np.abs(found - wanted).max() <= RELATIVE * max(1.0, float(np.abs(wanted).max())), column.name
        assert found.std() > 0, f"{column.name} never varies, so the test sees nothing"


def test_the_expectation_of_k3_is_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    hi, lo = (4 * torch.randn(500, 64, generator=generator) for _ in range(2))
    zeros = torch.zeros(500, dtype=torch.long)
    view = view_tokens(trace(hi, zeros, (500,)), trace(lo, zeros, (500,)), 1)
    # Both sums have 64 terms of at most p d and q; log-probabilities up to 40 are rounded once on each side.
    assert np.abs(view.k3_M - view.kl_M).max() <= 2 * 64 * 2.0**-53 * 40
    assert (view.k3_M > 0).all()


def test_rounding_enters_k3_and_the_second_moment_as_its_square() -> None:
    generator = torch.Generator().manual_seed(0)
    hi = 4 * torch.randn(200, 64, generator=generator, dtype=torch.float64)
    lo = hi + 1e-9 * torch.randn(200, 64, generator=generator, dtype=torch.float64)
    zeros = torch.zeros(200, dtype=torch.long)
    view = view_tokens(trace(hi, zeros, (200,)), trace(lo, zeros, (200,)), 1)
    # ln r is about 1e-9 with an error of 40 u = 4e-15, so its square keeps six digits.
    assert np.allclose(view.excess_M, 2 * view.k2_M, rtol=1e-5, atol=0)
    assert (view.excess_M > 0).all() and view.excess_M.max() < 1e-16
    # r - 1 - ln r cancels to an error of u times 1e-9 a term.
    assert (view.k3_M > -64 * 2.0**-53 * 1e-8).all()


def test_a_model_against_itself_gives_exact_zeros_and_ones() -> None:
    view = with_itself(random_pair()).tokens()
    for name in ("kl_M", "kl_reverse_M", "js_M", "k2_M", "k3_M", "excess_M", "extreme_M", "log_ratio_M"):
        assert not getattr(view, name).any(), name
    assert (view.same_top_M == 1).all() and (view.overlap_M == 1).all()
    for hi, lo in (("hi_p_M", "lo_p_M"), ("hi_confidence_M", "lo_confidence_M"), ("hi_right_M", "lo_right_M")):
        assert np.array_equal(getattr(view, hi), getattr(view, lo))
    assert np.array_equal(view.collision_M, view.hi_collision_M) and (view.collision_M < 1).all()


@pytest.mark.parametrize("name", [n for n, o in PROBE_OBSERVERS.items() if not o.points])
def test_no_observer_tells_a_model_from_itself(name: str) -> None:
    readings = PROBE_OBSERVERS[name].measure(with_itself(random_pair(2)))
    assert np.array_equal(readings.hi_R, readings.lo_R)


def test_the_extreme_ratio_is_two_either_way() -> None:
    # p = (1/2, 1/2) against q = (x, 1 - x): ratios 2x and 2 - 2x, so only the second passes below 1/2.
    for x, expected in ((0.70, 0.0), (0.80, 0.5), (0.99, 0.5)):
        view = view_of([0.0, 0.0], [math.log(x), math.log(1 - x)])
        assert view.extreme_M[0] == pytest.approx(expected, abs=2.0**-50)


def test_one_sample_of_hi_against_one_of_lo_is_not_agreement() -> None:
    view = view_of([0.0] * 4, [0.0] * 4)
    assert (view.collision_M[0], view.same_top_M[0]) == (0.25, 1.0)


def test_jensen_shannon_is_at_most_ln_2_and_symmetric() -> None:
    far = view_of([900.0, 0.0, 0.0], [0.0, 900.0, 0.0])
    assert far.js_M[0] == pytest.approx(math.log(2), rel=2.0**-50)
    batch = random_pair()
    there, back = batch.tokens(), pair(batch.lo.logits_MV, batch.hi.logits_MV, batch.hi.target_M).tokens()
    assert np.abs(there.js_M - back.js_M).max() <= RELATIVE


def test_a_ratio_that_overflows_is_infinite_and_not_a_large_number() -> None:
    view = view_of([900.0, 0.0], [0.0, 900.0])
    assert view.excess_M[0] == math.inf
    assert view.kl_M[0] == view.kl_reverse_M[0] == pytest.approx(900.0, rel=2.0**-50)
    assert view.k3_M[0] == pytest.approx(900.0, rel=2.0**-50)
    impossible = view_of([0.0, -math.inf], [0.0, 0.0])
    assert impossible.excess_M[0] == impossible.kl_reverse_M[0] == math.inf
    assert impossible.kl_M[0] == pytest.approx(math.log(2), rel=2.0**-50)
    assert impossible.k3_M[0] == pytest.approx(math.log(2), rel=2.0**-50)
    lost = view_of([0.0, 0.0], [0.0, -math.inf])
    assert lost.kl_M[0] == lost.k3_M[0] == lost.k2_M[0] == math.inf
    assert lost.excess_M[0] == pytest.approx(1.0, rel=2.0**-50)  # q^2 / p = 1 / (1 / 2)


def test_large_ratios_below_overflow_are_exact() -> None:
    view = view_of([400.0, 0.0], [0.0, 0.0])  # p = (1, e^-400), q = (1/2, 1/2): q^2 / p = e^400 / 4
    assert view.excess_M[0] == pytest.approx(math.exp(400) / 4, rel=400 * 2.0**-52)
    assert view.k3_M[0] == pytest.approx(math.log(2), rel=2.0**-50)


def test_tokens_that_neither_side_can_write_do_not_differ() -> None:
    view = view_of([0.0, 1.0, -math.inf], [0.5, 1.0, -math.inf])
    without = view_of([0.0, 1.0], [0.5, 1.0])
    for name in ("kl_M", "kl_reverse_M", "js_M", "k2_M", "k3_M", "excess_M", "extreme_M"):
        assert getattr(view, name)[0] == getattr(without, name)[0], name


def test_what_is_not_a_number_stays_so() -> None:
    view = view_of([math.nan, 0.0], [0.0, 0.0])
    assert np.isnan(view.kl_M[0]) and np.isnan(view.excess_M[0]) and np.isnan(view.k3_M[0])


def test_the_view_is_made_once_and_never_carried_over() -> None:
    batch = random_pair()
    assert batch.tokens() is batch.tokens()
    assert with_itself(batch).tokens() is not batch.tokens()
    assert not with_itself(batch).tokens().kl_M.any()


def test_views_are_joined_in_order() -> None:
    views = [random_pair(seed).tokens() for seed in (0, 1)]
    joined = join_views(views)
    assert len(joined) == 2 * ANSWERED
    assert np.array_equal(joined.js_M, np.concatenate([v.js_M for v in views]))


def means(column: Tensor) -> list[float]:
    """Returns the mean over each of the first four sequences."""
    return [float(piece.mean()) for piece in column.split(list(COUNTS[:4]))]


@pytest.mark.parametrize(
    ("observer", "column", "hi", "offset"),
    [
        ("k3", "k3_M", 0.0, 0.0),
        ("extreme-tokens", "extreme_M", 0.0, 0.0),
        ("importance-second-moment", "excess_M", 1.0, 1.0),
        ("js", "js_M", 0.0, 0.0),
        ("top-5-overlap", "overlap_M", 1.0, 0.0),
        ("delta-p", "lo_p_M", None, 0.0),
    ],
)
def test_readings_are_means_over_the_answer_tokens_of_each_probe(
    observer: str, column: str, hi: float | None, offset: float
) -> None:
    batch = random_pair(1)
    readings = PROBE_OBSERVERS[observer].measure(batch)
    view = batch.tokens()
    assert readings.index_R.tolist() == [0, 1, 2, 3]
    expected = [offset + mean for mean in means(torch.from_numpy(getattr(view, column)))]
    # Means of at most five numbers, in two orders.
    assert readings.lo_R.tolist() == pytest.approx(expected, rel=8 * 2.0**-53)
    hi_expected = means(torch.from_numpy(view.hi_p_M)) if hi is None else [hi] * 4
    assert readings.hi_R.tolist() == pytest.approx(hi_expected, rel=8 * 2.0**-53)

"""P-values say the same as the interval, and keep their promises at the margin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.proportion import estimate_flips
from quantaudit.stats.sample import gather
from quantaudit.stats.statistic import compute_p_values, compute_statistic


def known(value: float, standard_error: float, df: float = math.inf) -> Estimate:
    """Builds a mean estimate with given numbers."""
    reach = float(stats.t.ppf(0.95, df)) * standard_error
    return Estimate(
        value=value,
        standard_error=standard_error,
        degrees_of_freedom=df,
        interval=Interval(lower=value - reach, upper=value + reach, level=0.9),
        num_probes=300,
        num_clusters=30,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.CR1,
    )


def test_p_values_of_independent_probes_are_those_of_statsmodels() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.1, 1.0, 40)
    estimate = estimate_mean(gather(values, [f"c{i}" for i in range(40)]))
    second_opinion = DescrStatsW(values)
    worse = compute_p_values(estimate, direction=Direction.WORSE, margin=0.3)
    assert worse.admit == pytest.approx(second_opinion.ttest_mean(0.3, alternative="smaller")[1], rel=1e-10)
    assert worse.reject == pytest.approx(second_opinion.ttest_mean(0.3, alternative="larger")[1], rel=1e-10)
    both = compute_p_values(estimate, direction=Direction.BOTH, margin=0.3)
    assert both.admit == pytest.approx(second_opinion.ttost_mean(-0.3, 0.3)[0], rel=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_a_bound_is_inside_the_margin_exactly_when_its_p_value_is_small(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters = [f"c{i // 7:02d}" for i in range(140)]
    mean = estimate_mean(gather(rng.normal(0.01, 0.1, 140), clusters))
    rate = estimate_flips(gather(rng.choice([-1.0, 0.0, 1.0], 140, p=[0.03, 0.9, 0.07]), clusters))
    for estimate in (mean, rate):
        for margin in np.linspace(0.001, 0.2, 50):
            worse = compute_p_values(estimate, direction=Direction.WORSE, margin=float(margin))
            both = compute_p_values(estimate, direction=Direction.BOTH, margin=float(margin))
            is_below, is_above = estimate.interval.upper < margin, estimate.interval.lower > -margin
            assert (worse.admit < 0.05) == is_below
            assert (worse.reject < 0.05) == (estimate.interval.lower > margin)
            assert (both.admit < 0.05) == (is_below and is_above)


def test_admit_and_reject_are_complementary_one_sided() -> None:
    p_values = compute_p_values(known(0.03, 0.01, 12), direction=Direction.WORSE, margin=0.02)
    assert p_values.admit + p_values.reject == pytest.approx(1.0, rel=1e-12)


def test_two_sided_rejection_counts_both_tails() -> None:
    # with a margin that is nothing beside the standard error, rejecting is the two-sided test of no difference
    p_values = compute_p_values(known(0.02, 0.01, 9), direction=Direction.BOTH, margin=1e-12)
    assert p_values.reject == pytest.approx(2 * float(stats.t.sf(2.0, 9)), rel=1e-8)
    # with a margin of many standard errors, it is the one-sided test beyond the nearer margin
    far = compute_p_values(known(0.52, 0.01, 9), direction=Direction.BOTH, margin=0.5)
    assert far.reject == pytest.approx(float(stats.t.sf(2.0, 9)), rel=1e-8)


def test_two_sided_p_values_do_not_know_the_sign() -> None:
    for value in (0.0, 0.013, 0.04):
        there = compute_p_values(known(value, 0.01, 9), direction=Direction.BOTH, margin=0.02)
        back = compute_p_values(known(-value, 0.01, 9), direction=Direction.BOTH, margin=0.02)
        assert there == pytest.approx(back, rel=1e-12)


@pytest.mark.parametrize("margin", [0.05, 0.5, 2.0])
def test_two_sided_rejection_on_the_margin_happens_at_most_alpha_of_the_time(margin: float) -> None:
    # standard error 1 in truth, nine degrees of freedom; margins far below, near and above it
    rng = np.random.default_rng(5)
    values, errors = margin + rng.standard_normal(4000), np.sqrt(rng.chisquare(9, 4000) / 9)
    rejected = np.mean(
        [
            compute_p_values(known(float(v), float(e), 9), direction=Direction.BOTH, margin=margin).reject <= 0.05
            for v, e in zip(values, errors, strict=True)
        ]
    )
    assert rejected <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


def test_no_spread_is_certain_on_either_side_and_undecided_on_the_margin() -> None:
    assert compute_statistic(known(0.1, 0.0), 0.2) == -math.inf
    assert compute_statistic(known(0.3, 0.0), 0.2) == math.inf
    assert compute_statistic(known(0.2, 0.0), 0.2) == 0.0
    assert compute_p_values(known(0.2, 0.0), direction=Direction.WORSE, margin=0.2) == (0.5, 0.5)

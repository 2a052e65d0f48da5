"""Tango's interval against a numerical likelihood, published values, and its known closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats
from statsmodels.stats.contingency_tables import mcnemar

from quantaudit.core.decision import Method
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.proportion import (
    estimate_flips,
    exact_zero_flip_bound,
    mcnemar_exact,
    score_bounds,
    score_statistic,
    tango_statistic,
    zero_flip_bound,
)
from quantaudit.stats.sample import Sample, gather

Z95, Z90 = float(stats.norm.ppf(0.975)), float(stats.norm.ppf(0.95))
TABLES = [(3, 0, 50), (0, 4, 40), (9, 2, 120), (5, 5, 60), (30, 12, 90), (1, 20, 300), (40, 20, 160)]


def score_by_likelihood(worse: int, better: int, num: int, margin: float) -> float:
    """Computes the score statistic with a maximiser of the multinomial likelihood instead of the quadratic's root."""

    def loss(rate: float) -> float:  # rate of -1 flips; +1 flips have rate + margin, the rest agree
        cells = ((worse, rate + margin), (better, rate), (num - worse - better, 1 - 2 * rate - margin))
        return -sum(count * math.log(probability) for count, probability in cells if count)

    bounds = (max(0.0, -margin) + 1e-13, (1 - margin) / 2 - 1e-13)
    rate = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-13}).x
    return ((worse - better) / num - margin) * math.sqrt(num) / math.sqrt(2 * rate + margin - margin**2)


def flips(worse: int, better: int, num: int, *, per_cluster: int = 1) -> Sample:
    """Spreads flips over clusters one by one, as evenly as they go."""
    values = np.zeros(num)
    values[:worse], values[worse : worse + better] = 1, -1
    num_clusters = num // per_cluster
    return gather(values, [f"c{i % num_clusters:03d}" for i in range(num)])


@pytest.mark.parametrize(("worse", "better", "num"), TABLES)
@pytest.mark.parametrize("margin", [-0.3, -0.05, 0.02, 0.1, 0.4])
def test_statistic_equals_the_numerical_score(worse: int, better: int, num: int, margin: float) -> None:
    d, q = (worse - better) / num, (worse + better) / num
    # a bounded scalar search finds an optimum to the square root of the precision of its loss, about 1e-8 of a rate;
    # next to the boundary (no flip of one kind) that is 1e-6 of the statistic
    assert float(tango_statistic(d, q, num, margin)) == pytest.approx(
        score_by_likelihood(worse, better, num, margin), rel=2e-6, abs=1e-6
    )


@pytest.mark.parametrize(("worse", "better", "num"), [table for table in TABLES if min(table[:2]) > 0])
def test_interval_holds_exactly_the_margins_that_the_score_test_keeps(worse: int, better: int, num: int) -> None:
    bounds = score_bounds((worse - better) / num, (worse + better) / num, num, Z90)
    step = 1e-3
    kept = [m for m in np.arange(-0.6, 0.6, step) if abs(score_by_likelihood(worse, better, num, float(m))) <= Z90]
    assert bounds.lower == pytest.approx(min(kept), abs=step)
    assert bounds.upper == pytest.approx(max(kept), abs=step)


@pytest.mark.parametrize(
    ("worse", "better", "num", "critical", "lower", "upper", "digits"),
    [
        (28, 25, 618, Z90, -0.0148, 0.0247, 4),  # R package PropCIs, scoreci.mp(25, 28, 618), level .90
        (1, 7, 21, Z95, -0.517, -0.026, 3),  # R package ratesci, scorepair on c(1, 1, 7, 12), level .95
    ],
)
def test_published_intervals(
    worse: int, better: int, num: int, critical: float, lower: float, upper: float, digits: int
) -> None:
    bounds = score_bounds((worse - better) / num, (worse + better) / num, num, critical)
    assert (round(bounds.lower, digits), round(bounds.upper, digits)) == (lower, upper)


def test_statistic_at_no_difference_is_mcnemars() -> None:
    # chi-squared without continuity correction is (b - c)^2 / (b + c)
    table = [[50, 12], [5, 33]]
    expected = mcnemar(table, exact=False, correction=False).statistic
    assert float(tango_statistic(7 / 100, 17 / 100, 100, 0.0)) ** 2 == pytest.approx(expected, rel=1e-12)


def test_statistic_falls_with_the_margin() -> None:
    margins = np.linspace(-0.999, 0.999, 4001)
    for worse, better, num in [*TABLES, (0, 0, 30), (30, 0, 30), (0, 30, 30)]:
        values = tango_statistic((worse - better) / num, (worse + better) / num, num, margins)
        assert np.all(np.diff(values) < 0)


def test_statistic_is_antisymmetric() -> None:
    margins = np.linspace(-0.9, 0.9, 37)
    there, back = tango_statistic(0.06, 0.1, 80, margins), tango_statistic(-0.06, 0.1, 80, -margins)
    # the two sides use different roots of the same quadratic: rounding of a few operations near cancellation
    assert there == pytest.approx(-back, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("num", [20, 133, 300])
def test_without_flips_the_bound_is_the_exact_one_and_the_score_is_less_cautious(num: int) -> None:
    bounds = score_bounds(0.0, 0.0, num, Z90)
    assert bounds.upper == pytest.approx(1 - 0.05 ** (1 / num), rel=1e-12)
    assert bounds.lower == pytest.approx(-bounds.upper, rel=1e-12)
    assert exact_zero_flip_bound(num) == pytest.approx(bounds.upper, rel=1e-12)
    assert float(tango_statistic(0.0, 0.0, num, zero_flip_bound(num))) == pytest.approx(-Z90, rel=1e-12)
    assert zero_flip_bound(num) < bounds.upper


def test_two_points_need_149_probes_and_one_point_299() -> None:
    assert exact_zero_flip_bound(148) > 0.02 > exact_zero_flip_bound(149)
    assert exact_zero_flip_bound(298) > 0.01 > exact_zero_flip_bound(299)


@pytest.mark.parametrize(("count", "num"), [(1, 40), (5, 100), (12, 60)])
def test_one_way_flips_have_bounds_no_tighter_than_the_exact_binomial(count: int, num: int) -> None:
    exact = stats.binomtest(count, num).proportion_ci(0.9, method="exact")
    for side in (1, -1):
        bounds = score_bounds(side * count / num, count / num, num, Z90)
        lower, upper = sorted((side * bounds.lower, side * bounds.upper))
        # the exact bound or the score's, whichever is further; scipy solves for its own to about 1e-12
        assert lower <= exact.low + 1e-9 and upper >= exact.high - 1e-9


def test_a_flip_the_other_way_leaves_the_score() -> None:
    for margin in (-0.2, 0.03, 0.3):
        assert score_statistic(4 / 50, 6 / 50, 50, margin) == tango_statistic(4 / 50, 6 / 50, 50, margin)


def admitted_at_margin(num: int, margin: float, better: float) -> float:
    """Sums the chance of all samples of independent probes that are admitted although the truth is on the margin."""
    worse_B, better_C = np.arange(num + 1)[:, None], np.arange(61)[None, :]
    rest_BC = num - worse_B - better_C
    rates = (better + margin, better, 1 - margin - 2 * better)
    log_BC = special.gammaln(num + 1) - sum(special.gammaln(np.maximum(n, 0) + 1) for n in (worse_B, better_C, rest_BC))
    log_BC = log_BC + sum(
        special.xlogy(n, r) for n, r in zip((worse_B, better_C, np.maximum(rest_BC, 0)), rates, strict=True)
    )
    chance_BC = np.where(rest_BC >= 0, np.exp(log_BC), 0.0)
    kept = np.where(rest_BC >= 0, 1.0, 0.0)
    score = score_statistic(kept * (worse_B - better_C) / num, kept * (worse_B + better_C) / num, num, margin)
    return float(np.sum(chance_BC[score <= -Z90]))


@pytest.mark.parametrize(("num", "margin"), [(133, 0.02), (300, 0.02), (100, 0.1), (60, 0.1), (90, 0.05)])
def test_sparse_flips_at_the_margin_are_admitted_at_most_alpha_whatever_the_steps(num: int, margin: float) -> None:
    # exact enumeration, no simulation: the score alone admits 6.8 % of 133 probes without a flip at 2 points
    assert admitted_at_margin(num, margin, 0.0) <= 0.05
    for better in (0.002, 0.01, 0.03):
        assert admitted_at_margin(num, margin, better) <= 0.0535  # the score's own steps, where both kinds occur


def test_all_flips_reach_the_end_of_the_scale() -> None:
    bounds = score_bounds(1.0, 1.0, 30, Z90)
    assert bounds.upper == 1.0
    assert 0.8 < bounds.lower < 1.0


def test_independent_probes_have_design_effect_one_or_nearly() -> None:
    estimate = estimate_flips(flips(9, 2, 120))
    assert estimate.method is Method.SCORE
    assert estimate.design_effect == pytest.approx(1.0, rel=1e-12)
    assert estimate.degrees_of_freedom == pytest.approx(119.0, rel=1e-10)
    assert estimate.discordant_rate == 11 / 120
    expected = score_bounds(7 / 120, 11 / 120, 120, float(stats.t.ppf(0.95, 119)))
    assert (estimate.interval.lower, estimate.interval.upper) == pytest.approx(expected, rel=1e-9)


def test_flips_in_few_clusters_count_as_fewer_probes() -> None:
    values = np.zeros(300)
    values[:10] = 1  # one whole cluster of ten
    together = gather(values, [f"c{i // 10:02d}" for i in range(300)])
    spread = gather(values, [f"c{i % 30:02d}" for i in range(300)])
    # clusters of 10 that flip as one: 10, times (N - 1)/N and G/(G - 1) from the two variance estimates
    assert estimate_flips(together).design_effect == pytest.approx(10 * 299 / 300 * 30 / 29, rel=1e-10)
    assert estimate_flips(spread).design_effect == 1.0
    assert estimate_flips(together).interval.upper > 2 * estimate_flips(spread).interval.upper


def test_design_effect_is_that_of_the_clustered_mean_unless_below_one() -> None:
    rng = np.random.default_rng(0)
    codes = np.arange(400) // 8
    values = np.where(rng.random(400) < np.where(codes % 5 == 0, 0.5, 0.02), 1.0, 0.0)
    sample = gather(values, [f"c{code:02d}" for code in codes])
    mean, rate = estimate_mean(sample), estimate_flips(sample)
    assert rate.design_effect == mean.design_effect > 1.5
    assert rate.standard_error == pytest.approx(mean.standard_error, rel=1e-12)


def test_without_flips_the_design_effect_is_assumed_and_said() -> None:
    sample = flips(0, 0, 300, per_cluster=10)
    estimate = estimate_flips(sample)
    assert estimate.method is Method.SCORE_NO_FLIPS
    assert (estimate.design_effect, estimate.degrees_of_freedom) == (1.0, math.inf)
    assert estimate.interval.upper == pytest.approx(exact_zero_flip_bound(300), rel=1e-12)
    cautious = estimate_flips(sample, least_design_effect=4.0)
    assert cautious.interval.upper == pytest.approx(exact_zero_flip_bound(75), rel=1e-12)


def test_least_design_effect_widens_only() -> None:
    sample = flips(9, 2, 120)
    assert estimate_flips(sample, least_design_effect=2.0).design_effect == 2.0
    assert estimate_flips(sample, least_design_effect=2.0).interval.upper > estimate_flips(sample).interval.upper


def test_below_five_clusters_there_is_no_interval() -> None:
    assert estimate_flips(flips(3, 0, 40, per_cluster=10)).method is Method.TOO_FEW_CLUSTERS


def test_differences_must_be_flips() -> None:
    with pytest.raises(InputError, match=r"difference 0\.5"):
        estimate_flips(gather([0.0, 0.5], ["a", "b"]))


def test_design_effect_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        estimate_flips(flips(1, 0, 40), least_design_effect=0.5)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (4, 9), (12, 12), (30, 5)])
def test_mcnemar_agrees_with_statsmodels(worse: int, better: int) -> None:
    expected = mcnemar([[10, worse], [better, 10]], exact=True).pvalue if worse + better else 1.0
    assert mcnemar_exact(worse, better) == pytest.approx(expected, rel=1e-12)

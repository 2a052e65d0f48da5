"""The cluster bootstrap against all samples that could be drawn, against scipy, and against the formula it checks.

Legend of shapes: R replicates, G clusters.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quantaudit.core.decision import Method
from quantaudit.stats.bootstrap import BoundRule, Draws, bootstrap_contrast, bound, draw, draw_counts, seed_generator
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.tails import compute_cvar

LAYOUTS = {"disjoint": 40, "shared": 0, "mixed": 20}


def contrast_samples(layout: str, seed: int) -> tuple[Sample, Sample]:
    """Draws two groups of 40 clusters of 3 and 4 probes; equal names share their effect."""
    rng = np.random.default_rng(seed)
    effects = rng.standard_normal(80)
    first, second = np.repeat(np.arange(40), 3), np.repeat(np.arange(40) + LAYOUTS[layout], 4)
    return (
        gather(0.3 + effects[first] + rng.standard_normal(120), [f"c{c:02d}" for c in first]),
        gather(effects[second] + rng.standard_normal(160), [f"c{c:02d}" for c in second]),
    )


def skewness_of(first: Sample, second: Sample) -> float:
    """Returns the skewness of the difference of means, by leaving out one cluster after the other."""

    def without(sample: Sample, name: str) -> NDArray[np.float64]:
        names_N = np.repeat(np.array(sample.clusters), sample.sizes_G)
        return np.asarray(sample.values_N[names_N != name])

    names = sorted({*first.clusters, *second.clusters})
    left = np.array([np.mean(without(first, name)) - np.mean(without(second, name)) for name in names])
    gaps = left.mean() - left
    return float(np.sum(gaps**3) / np.sum(gaps**2) ** 1.5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", list(BoundRule))
def test_contrast_agrees_with_its_formula(layout: str, rule: BoundRule) -> None:
    num = 16_000
    first, second = contrast_samples(layout, 6)
    formula, sampled = (
        estimate_contrast(first, second),
        bootstrap_contrast(first, second, rule=rule, num_replicates=num),
    )
    assert sampled.method is Method.BOOTSTRAP
    assert sampled.value == pytest.approx(formula.value, rel=1e-12)
    # both correct G residuals by about G / (G - 1), in different ways
    assert sampled.standard_error == pytest.approx(formula.standard_error, rel=1 / 40)
    # Replicates vary as if G were not corrected for. Only studentised ones know that their spread is estimated. To
    # first order percentiles move by a (q^2 - 1) / 6 where the skewness is a, and the other two by a (2 q^2 + 1) / 6.
    is_studentised = rule is BoundRule.STUDENTIZED
    quantile = float(stats.t.ppf(0.95, formula.degrees_of_freedom if is_studentised else np.inf))
    num_clusters = len({*first.clusters, *second.clusters})
    reach = sampled.standard_error * quantile * (1.0 if is_studentised else math.sqrt(1 - 1 / num_clusters))
    square = quantile**2 - 1 if rule is BoundRule.PERCENTILE else 2 * quantile**2 + 1
    middle = formula.value + skewness_of(first, second) * square / 6 * formula.standard_error
    # Four standard errors of a quantile at .05, .067 in these units, and what is left out: terms of 1 / G.
    noise = math.sqrt(0.05 * 0.95 / num) / float(stats.norm.pdf(stats.norm.ppf(0.95)))
    tolerance = (4 * noise + 1 / 40) * formula.standard_error
    assert sampled.interval.lower == pytest.approx(middle - reach, abs=tolerance)
    assert sampled.interval.upper == pytest.approx(middle + reach, abs=tolerance)


def test_shared_clusters_cancel() -> None:
    first, second = contrast_samples("shared", 6)
    renamed = Sample(
        values_N=second.values_N, sizes_G=second.sizes_G, clusters=tuple(f"d{name}" for name in second.clusters)
    )
    together = bootstrap_contrast(first, second, rule=BoundRule.PERCENTILE).interval
    apart = bootstrap_contrast(first, renamed, rule=BoundRule.PERCENTILE).interval
    assert together.upper - together.lower < 0.8 * (apart.upper - apart.lower)


def test_too_few_clusters_have_no_interval() -> None:
    few = gather([0.0, 1.0, 2.0, 3.0], list("abcd"))
    assert bootstrap_contrast(few, few).method is Method.TOO_FEW_CLUSTERS


def all_counts(num_clusters: int) -> NDArray[np.float64]:
    """Lists every possible sample of as many clusters, one for each way to draw it."""
    ways = itertools.product(range(num_clusters), repeat=num_clusters)
    return np.array([np.bincount(way, minlength=num_clusters) for way in ways], dtype=np.float64)


def test_draws_are_those_of_all_possible_samples() -> None:
    # five clusters have 5^5 samples; the drawn means must have their mean and their variance
    totals = np.array([3.0, -1.0, 4.0, 1.0, 5.0])
    every = all_counts(5) @ totals / 5
    drawn = draw_counts(np.random.default_rng(1), 5, 20_000) @ totals / 5
    assert drawn.mean() == pytest.approx(every.mean(), abs=4 * every.std() / math.sqrt(20_000))
    # the variance of a sample variance is (kurtosis - 1) / R of its square, and kurtosis is at most 3 here
    assert drawn.var() == pytest.approx(every.var(), rel=4 * math.sqrt(2 / 20_000))


def mean_draws(values: NDArray[np.float64], num: int = 9000) -> Draws:
    """Draws the mean of single-probe clusters as the limit of a CVaR that begins at nothing."""
    sample = gather(values, [f"c{i:03d}" for i in range(len(values))])
    return draw(lambda counts: compute_cvar(sample, counts, 1e-12), np.random.default_rng(2), len(values), num)


@pytest.mark.parametrize(("rule", "method"), [(BoundRule.PERCENTILE, "percentile"), (BoundRule.BCA, "BCa")])
def test_bounds_of_a_mean_are_those_of_scipy(rule: BoundRule, method: Literal["percentile", "BCa"]) -> None:
    values = np.random.default_rng(3).exponential(1.0, 30)
    found = bound(mean_draws(values), rule=rule, alpha=0.05)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=9000, confidence_level=0.9, method=method, rng=np.random.default_rng(4)
    ).confidence_interval
    # two independent sets of 9000 replicates: a quantile at .03 has a standard error of .027 s.d.; four of the pair
    tolerance = 4 * math.sqrt(2) * 0.027 * values.std() / math.sqrt(30)
    assert found.lower == pytest.approx(expected.low, abs=tolerance)
    assert found.upper == pytest.approx(expected.high, abs=tolerance)
    plain = stats.bootstrap((values,), np.mean, n_resamples=9000, confidence_level=0.9, method="percentile", rng=4)
    if rule is BoundRule.BCA:  # of skewed values the two methods differ by more than that
        assert abs(found.upper - plain.confidence_interval.high) > tolerance


def test_studentised_bounds_of_a_mean_are_those_written_out() -> None:
    values = np.random.default_rng(5).exponential(1.0, 12)
    draws = mean_draws(values, 4000)
    counts = draw_counts(np.random.default_rng(2), 12, 4000)
    assert draws.value == pytest.approx(values.mean(), rel=1e-9)
    assert draws.error == pytest.approx(values.std(ddof=1) / math.sqrt(12), rel=1e-9)
    ratios = []
    for row in counts.astype(int):
        resampled = np.repeat(values, row)
        ratios.append((resampled.mean() - values.mean()) / (resampled.std(ddof=1) / math.sqrt(12)))
    low, high = np.quantile(ratios, 0.05, method="lower"), np.quantile(ratios, 0.95, method="higher")
    found = bound(draws, rule=BoundRule.STUDENTIZED, alpha=0.05)
    assert found.lower == pytest.approx(values.mean() - high * draws.error, rel=1e-6)
    assert found.upper == pytest.approx(values.mean() - low * draws.error, rel=1e-6)


def test_equal_data_draw_equally_in_whatever_order_their_probes_come() -> None:
    values, clusters = np.array([0.5, -1.0, 2.0, 0.0, 3.0, 1.0]), list("aabbcc")
    turned = gather(values[::-1], clusters[::-1])
    straight = gather(values, clusters)
    assert seed_generator(straight).random() == seed_generator(turned).random()
    assert seed_generator(straight).random() != seed_generator(gather(values + 1e-9, clusters)).random()
    assert seed_generator(straight).random() != seed_generator(gather(values, list("aabbdd"))).random()
    first, second = contrast_samples("mixed", 1)
    assert bootstrap_contrast(first, second) == bootstrap_contrast(first, second)


def test_no_spread_is_a_bound_of_no_width() -> None:
    constant = gather([0.5] * 12, [f"c{i // 2}" for i in range(12)])
    for rule in BoundRule:
        estimate = bootstrap_contrast(constant, constant, rule=rule)
        assert (estimate.interval.lower, estimate.value, estimate.interval.upper) == (0.0, 0.0, 0.0)

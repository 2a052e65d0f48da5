"""Quantiles and CVaR equal their definitions, and their bounds are no better than the number of probes allows.

Legend of shapes: R replicates, N probes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from quantaudit.core.decision import Method
from quantaudit.core.errors import InputError
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.tails import compute_cvar, estimate_cvar, estimate_quantile

ALPHA = 0.05


def draw(num_clusters: int, size: int, seed: int, icc: float = 0.0) -> Sample:
    """Draws lognormal damages whose logarithms correlate within clusters."""
    rng = np.random.default_rng(seed)
    effects = np.repeat(rng.standard_normal(num_clusters), size)
    logs = math.sqrt(icc) * effects + math.sqrt(1 - icc) * rng.standard_normal(num_clusters * size)
    return gather(np.exp(logs), [f"c{i // size:03d}" for i in range(num_clusters * size)])


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_quantile_is_that_of_numpy(share: float) -> None:
    sample = draw(20, 7, 1)
    expected = np.quantile(sample.values_N, share, method="inverted_cdf")
    assert estimate_quantile(sample, share).value == expected


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_cvar_is_the_minimum_that_defines_it(share: float) -> None:
    # min over t of t + E max(d - t, 0) / (1 - q): Rockafellar and Uryasev's other definition
    values = draw(20, 7, 2).values_N
    found = optimize.minimize_scalar(
        lambda t: t + float(np.mean(np.maximum(values - t, 0))) / (1 - share),
        bounds=(0, values.max()),
        method="bounded",
    )
    # the minimum is flat: an error of 1e-5 in t costs at most 1e-5 / (1 - q)
    estimate = estimate_cvar(draw(20, 7, 2), share, num_replicates=200)
    assert estimate.value == pytest.approx(found.fun, abs=1e-3)
    assert estimate.value <= found.fun + 1e-12


def test_cvar_of_a_whole_number_of_probes_is_their_mean() -> None:
    sample = gather(np.arange(100.0), [f"c{i // 5:02d}" for i in range(100)])
    assert estimate_cvar(sample, 0.95, num_replicates=200).value == pytest.approx(97.0, rel=1e-12)
    assert estimate_quantile(sample, 0.95).value == 94.0


def test_replicates_are_resampled_samples() -> None:
    sample = draw(6, 4, 3)
    counts = np.random.default_rng(4).multinomial(6, np.full(6, 1 / 6), size=50).astype(np.float64)
    found = compute_cvar(sample, counts, 0.9)
    clusters = sample.values_N.reshape(6, 4)
    for row, value in zip(counts.astype(int), found.values_R, strict=True):
        resampled = np.sort(np.repeat(clusters, row, axis=0).ravel())  # 24 probes: 2.4 of them are the tail
        expected = (resampled[-1] + resampled[-2] + 0.4 * resampled[-3]) / 2.4
        assert value == pytest.approx(expected, rel=1e-9)


def test_standard_error_of_cvar_is_that_of_leaving_out_clusters() -> None:
    # the jackknife and the influence of clusters agree up to 1/G for a smooth statistic
    sample = draw(200, 5, 5)
    without = compute_cvar(sample, 1 - np.eye(200), 0.8).values_R
    jackknife = math.sqrt(199 / 200 * float(np.sum((without - without.mean()) ** 2)))
    assert estimate_cvar(sample, 0.8, num_replicates=100).standard_error == pytest.approx(jackknife, rel=0.03)


@pytest.mark.parametrize(("share", "num"), [(0.95, 59), (0.99, 299)])
def test_quantiles_need_as_many_probes_as_the_exact_bound(share: float, num: int) -> None:
    # 1 - q^n passes .95 at 59 and 299 probes
    def upper(num_probes: int) -> float:
        values = np.random.default_rng(6).permutation(num_probes).astype(np.float64)
        # clusters of one probe, so many degrees of freedom that t is nearly normal
        return estimate_quantile(gather(values, [f"c{i:04d}" for i in range(num_probes)]), share).interval.upper

    assert math.isinf(upper(num - 1))
    assert upper(num) == num - 1


@pytest.mark.parametrize(("num", "share"), [(300, 0.95), (1000, 0.99), (200, 0.5)])
def test_bounds_of_independent_probes_are_the_exact_order_statistics(num: int, share: float) -> None:
    values = np.arange(float(num))
    estimate = estimate_quantile(gather(values, [f"c{i:04d}" for i in range(num)]), share)
    # X_(k) is below the quantile with probability P(Bin(n, q) >= k), so k is the first where that is at most alpha
    above = int(stats.binom.isf(ALPHA, num, share)) + 1
    below = int(stats.binom.ppf(ALPHA, num, share))
    assert abs(estimate.interval.upper - (above - 1)) <= 1  # the score test is the normal limit of the binomial one
    assert abs(estimate.interval.lower - (below - 1)) <= 1


def test_a_tail_without_upper_bound_has_none_for_its_mean() -> None:
    estimate = estimate_cvar(draw(10, 10, 7), 0.99, num_replicates=200)
    assert math.isinf(estimate.interval.upper)
    assert math.isinf(estimate.standard_error)
    assert math.isfinite(estimate_cvar(draw(100, 10, 7), 0.95, num_replicates=200).interval.upper)


def test_dependent_probes_widen_the_bounds() -> None:
    alone, together = estimate_quantile(draw(40, 20, 8), 0.9), estimate_quantile(draw(40, 20, 8, icc=0.8), 0.9)
    assert together.design_effect > 2 * alone.design_effect
    assert alone.method is Method.SCORE
    for sample, found in ((draw(40, 20, 8), alone), (draw(40, 20, 8, icc=0.8), together)):
        reach = float(stats.t.ppf(0.95, found.degrees_of_freedom)) * math.sqrt(800 * 0.9 * 0.1 * found.design_effect)
        assert np.searchsorted(np.sort(sample.values_N), found.interval.upper) == math.floor(720 + reach)


@pytest.mark.parametrize("share", [0.0, 1.0, 95.0])
def test_shares_are_between_zero_and_one(share: float) -> None:
    with pytest.raises(InputError, match="share"):
        estimate_quantile(draw(6, 2, 1), share)


def test_too_few_clusters_have_no_bounds() -> None:
    for estimate in (estimate_quantile(draw(4, 50, 1), 0.9), estimate_cvar(draw(4, 50, 1), 0.9)):
        assert estimate.method is Method.TOO_FEW_CLUSTERS


@pytest.mark.slow
@pytest.mark.parametrize("icc", [0.0, 0.3])
def test_the_upper_bound_of_p95_is_too_low_at_most_alpha_and_the_bootstrap_is_not(icc: float) -> None:
    num, truth = 1500, math.exp(float(stats.norm.ppf(0.95)))
    too_low = percentile_too_low = 0
    rng = np.random.default_rng(9)
    for seed in range(num):
        sample = draw(30, 10, seed, icc)
        too_low += estimate_quantile(sample, 0.95).interval.upper < truth
        drawn = sample.values_N.reshape(30, 10)[rng.integers(0, 30, size=(200, 30))].reshape(200, 300)
        quantiles = np.partition(drawn, 284, axis=1)[:, 284]
        percentile_too_low += bool(np.quantile(quantiles, 0.95) < truth)
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)
    assert too_low / num <= limit
    assert percentile_too_low / num > limit

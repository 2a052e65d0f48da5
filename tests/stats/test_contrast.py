"""A contrast equals the two-column regression it stands for, for disjoint, shared and mixed clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import linalg, stats

from quantaudit.core.decision import Method
from quantaudit.stats.clustered import compute_moments, estimate_mean, satterthwaite
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.sample import Sample, gather

Array = NDArray[np.float64]
RELATIVE = 1e-10  # rounding of some hundred products, as in test_clustered


def draw(clusters: list[str], seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    effects = {name: rng.standard_normal() for name in sorted(set(clusters))}
    return gather(np.array([effects[name] + rng.standard_normal() for name in clusters]), clusters)


def names(first: int, last: int, each: int) -> list[str]:
    return [f"c{i:02d}" for i in range(first, last) for _ in range(each)]


def cr2_variance(first: Sample, second: Sample) -> float:
    """Computes the CR2 variance of the difference of two means with explicit matrices of the joint regression."""
    values = np.concatenate([first.values_N, second.values_N])
    clusters = np.array(
        [
            name
            for sample in (first, second)
            for name, size in zip(sample.clusters, sample.sizes_G, strict=True)
            for _ in range(size)
        ]
    )
    design = np.zeros((len(values), 2))
    design[: len(first.values_N), 0] = 1
    design[len(first.values_N) :, 1] = 1
    bread = linalg.inv(design.T @ design)
    maker = np.eye(len(values)) - design @ bread @ design.T
    residuals = maker @ values
    variance = 0.0
    for name in np.unique(clusters):
        at = clusters == name
        adjustment = linalg.inv(linalg.sqrtm(maker[np.ix_(at, at)]).real)
        variance += float(np.array([1.0, -1.0]) @ bread @ design[at].T @ adjustment @ residuals[at]) ** 2
    return variance


CASES = {
    "disjoint": (names(0, 6, 4), names(6, 13, 3)),
    "shared": (names(0, 8, 3), names(0, 8, 5)),
    "mixed": (names(0, 8, 3) + names(0, 3, 2), names(4, 12, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_variance_equals_the_joint_regression(case: str) -> None:
    first, second = draw(CASES[case][0], 1), draw(CASES[case][1], 2)
    estimate = estimate_contrast(first, second)
    assert estimate.method is Method.CONTRAST
    assert estimate.value == pytest.approx(first.values_N.mean() - second.values_N.mean(), rel=RELATIVE)
    assert estimate.standard_error**2 == pytest.approx(cr2_variance(first, second), rel=RELATIVE)


def test_disjoint_clusters_add_variances_and_follow_welch() -> None:
    first, second = draw(CASES["disjoint"][0], 3), draw(CASES["disjoint"][1], 4)
    one, two = compute_moments(first.values_N, first.sizes_G), compute_moments(second.values_N, second.sizes_G)
    estimate = estimate_contrast(first, second)
    v1, v2 = float(one.variance), float(two.variance)
    df1, df2 = float(satterthwaite(first.sizes_G, one.icc)), float(satterthwaite(second.sizes_G, two.icc))
    assert estimate.standard_error**2 == pytest.approx(v1 + v2, rel=RELATIVE)
    assert estimate.degrees_of_freedom == pytest.approx((v1 + v2) ** 2 / (v1**2 / df1 + v2**2 / df2), rel=RELATIVE)


def test_independent_probes_give_the_welch_interval_of_scipy() -> None:
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal(12), 3 * rng.standard_normal(20)
    estimate = estimate_contrast(gather(x, [f"x{i}" for i in range(12)]), gather(y, [f"y{i}" for i in range(20)]))
    expected = stats.ttest_ind(x, y, equal_var=False)
    bounds = expected.confidence_interval(0.9)
    assert estimate.degrees_of_freedom == pytest.approx(expected.df, rel=RELATIVE)
    reach = float(stats.t.ppf(0.95, estimate.degrees_of_freedom)) * estimate.standard_error
    assert (estimate.value - reach, estimate.value + reach) == pytest.approx((bounds.low, bounds.high), rel=RELATIVE)
    # and no bound of ours lies inside it, for 32 clusters cannot tell that they lean to neither side
    assert estimate.interval.lower < bounds.low < bounds.high < estimate.interval.upper


def test_matched_clusters_give_the_paired_interval() -> None:
    # one restricted and one benign probe per template: the contrast is the mean of differences within templates
    rng = np.random.default_rng(8)
    common = rng.standard_normal(9)
    x, y = common + 0.2 * rng.standard_normal(9), common + 0.2 * rng.standard_normal(9)
    clusters = [f"t{i}" for i in range(9)]
    contrast = estimate_contrast(gather(x, clusters), gather(y, clusters))
    paired = estimate_mean(gather(x - y, clusters))
    assert contrast.standard_error == pytest.approx(paired.standard_error, rel=RELATIVE)
    assert contrast.degrees_of_freedom == pytest.approx(8.0, rel=RELATIVE)
    assert contrast.num_clusters == 9
    assert (
        contrast.standard_error
        < 0.5 * estimate_contrast(gather(x, clusters), gather(y, list("abcdefghi"))).standard_error
    )


def test_equal_groups_agree_with_statsmodels_up_to_its_small_sample_factor() -> None:
    first, second = draw(names(0, 8, 4), 9), draw(names(0, 8, 4), 10)
    values = np.concatenate([first.values_N, second.values_N])
    design = np.stack([np.ones(64), np.repeat([1.0, 0.0], 32)], axis=1)
    groups = np.tile(np.repeat(np.arange(8), 4), 2)
    fit = sm.OLS(values, design).fit(cov_type="cluster", cov_kwds={"groups": groups})
    # statsmodels multiplies by G/(G-1) (N-1)/(N-2); equal clusters leave G/(G-1) in CR2
    assert estimate_contrast(first, second).standard_error ** 2 == pytest.approx(
        fit.bse[1] ** 2 * 62 / 63, rel=RELATIVE
    )


def test_exchanging_the_groups_turns_the_sign_only() -> None:
    first, second = draw(CASES["mixed"][0], 11), draw(CASES["mixed"][1], 12)
    there, back = estimate_contrast(first, second), estimate_contrast(second, first)
    assert there.value == -back.value
    assert there.standard_error == back.standard_error
    assert there.degrees_of_freedom == pytest.approx(back.degrees_of_freedom, rel=RELATIVE)


def test_both_sides_need_five_clusters() -> None:
    estimate = estimate_contrast(draw(names(0, 9, 4), 1), draw(names(0, 4, 9), 2))
    assert estimate.method is Method.TOO_FEW_CLUSTERS
    assert estimate.interval.upper == math.inf


def test_two_constant_groups_have_no_spread() -> None:
    first, second = gather([0.5] * 12, names(0, 6, 2)), gather([0.25] * 12, names(3, 9, 2))
    estimate = estimate_contrast(first, second)
    assert (estimate.value, estimate.standard_error) == (0.25, 0.0)
    assert estimate.degrees_of_freedom == pytest.approx(5.0, rel=RELATIVE)

"""The closed forms equal the matrix formulas they were derived from, and statsmodels where it has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import linalg, stats

from quantaudit.core.decision import Method
from quantaudit.stats.clustered import (
    bound_mean,
    compute_moments,
    estimate_mean,
    satterthwaite,
    trace,
    working_covariance,
)
from quantaudit.stats.sample import Sample, gather

Array = NDArray[np.float64]
# Closed form and matrix route each add some hundred products; 1e-10 is 450,000 ulps, far above their rounding
# and far below any wrong term.
RELATIVE = 1e-10

SIZES = {
    "equal": [6] * 8,
    "ramp": [1, 2, 3, 4, 5, 6, 7, 8],
    "dominated": [20, 2, 2, 2, 2, 3],
    "five": [9, 1, 4, 4, 2],
    "single": [1] * 12,
}


def draw(sizes: list[int], *, seed: int = 0, icc: float = 0.4) -> Sample:
    """Draws normal differences whose clusters correlate by `icc`."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    values = math.sqrt(icc) * rng.standard_normal(len(sizes))[codes]
    values = values + math.sqrt(1 - icc) * rng.standard_normal(len(codes)) + 0.3
    return gather(values, [f"c{code:02d}" for code in codes])


def bell_mccaffrey(values: Array, codes: NDArray[np.intp], working: Array) -> tuple[float, float]:
    """Computes the CR2 variance and its Satterthwaite degrees of freedom with explicit matrices.

    The adjustment is (I - H_cc)^(-1/2), that of the independent working model; `working` (N x N) is the covariance
    under which the degrees of freedom are taken.
    """
    num = len(values)
    ones = np.ones((num, 1))
    maker = np.eye(num) - ones @ ones.T / num
    residuals = maker @ values
    variance = 0.0
    columns = []
    for code in range(int(codes.max()) + 1):
        at = codes == code
        adjustment = linalg.inv(linalg.sqrtm(maker[np.ix_(at, at)]).real)
        weights = adjustment @ ones[at, 0] / num
        variance += float(weights @ residuals[at]) ** 2
        columns.append(maker[:, at] @ weights)
    spread = np.stack(columns, axis=1)
    eigenvalues = linalg.eigvalsh(spread.T @ working @ spread)
    return variance, float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("icc", [0.0, 0.3, 1.0])
def test_variance_and_degrees_of_freedom_equal_the_matrix_formula(name: str, icc: float) -> None:
    sample = draw(SIZES[name])
    codes = np.repeat(np.arange(len(sample.sizes_G)), sample.sizes_G)
    working = (1 - icc) * np.eye(len(codes)) + icc * (codes[:, None] == codes[None, :])
    variance, df = bell_mccaffrey(sample.values_N, codes, working)
    assert float(compute_moments(sample.values_N, sample.sizes_G).variance) == pytest.approx(variance, rel=RELATIVE)
    assert float(satterthwaite(sample.sizes_G, icc)) == pytest.approx(df, rel=RELATIVE)


@pytest.mark.parametrize("name", SIZES)
def test_degrees_of_freedom_at_zero_correlation_have_the_short_form(name: str) -> None:
    # 1 / (sum h^2 + (sum a)^2 - sum a^2) with a = h^2 / (1 - h): Bell and McCaffrey for a column of ones
    sizes = np.array(SIZES[name])
    share = sizes / sizes.sum()
    a = share**2 / (1 - share)
    expected = 1 / ((share**2).sum() + a.sum() ** 2 - (a**2).sum())
    assert float(satterthwaite(sizes, 0.0)) == pytest.approx(expected, rel=RELATIVE)


@pytest.mark.parametrize("icc", [0.0, 0.5, 1.0])
def test_equal_clusters_have_one_degree_of_freedom_less_than_clusters(icc: float) -> None:
    assert float(satterthwaite(np.full(9, 7), icc)) == pytest.approx(8.0, rel=RELATIVE)


def test_negative_correlation_counts_as_none() -> None:
    sizes = np.array(SIZES["ramp"])
    assert float(satterthwaite(sizes, -0.2)) == float(satterthwaite(sizes, 0.0))


def test_the_variance_is_unbiased_for_independent_probes() -> None:
    # E V = tr(M) / N^2 = 1 / N for probes of variance 1, whatever the sizes
    sizes = np.array(SIZES["dominated"])
    assert float(trace(working_covariance(sizes, 0.0))) == pytest.approx(sizes.sum(), rel=RELATIVE)


def test_equal_clusters_agree_with_statsmodels_cluster_robust_ols() -> None:
    sample = draw(SIZES["equal"], seed=3)
    groups = np.repeat(np.arange(8), 6)
    fit = sm.OLS(sample.values_N, np.ones(48)).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    estimate = estimate_mean(sample)
    assert estimate.method is Method.CR1
    assert estimate.degrees_of_freedom == 7
    assert estimate.value == pytest.approx(fit.params[0], rel=RELATIVE)
    assert estimate.standard_error == pytest.approx(fit.bse[0], rel=RELATIVE)
    reach = bound_mean(sample.values_N, sample.sizes_G).reach
    plain = estimate.value + np.array([-1, 1]) * float(reach.plain) * estimate.standard_error
    assert plain == pytest.approx(fit.conf_int(alpha=0.1)[0], rel=RELATIVE)
    # the interval is the same, each bound drawn further by what the clusters lean to its side
    assert estimate.interval.lower == pytest.approx(
        estimate.value - reach.lower * estimate.standard_error, rel=RELATIVE
    )
    assert estimate.interval.upper == pytest.approx(
        estimate.value + reach.upper * estimate.standard_error, rel=RELATIVE
    )


def test_one_probe_per_cluster_is_the_ordinary_t_interval() -> None:
    sample = draw(SIZES["single"], seed=5)
    estimate = estimate_mean(sample, alpha=0.025)
    expected = stats.ttest_1samp(sample.values_N, 0.0).confidence_interval(0.95)
    reach = bound_mean(sample.values_N, sample.sizes_G, alpha=0.025).reach
    bounds = estimate.value + np.array([-1, 1]) * float(reach.plain) * estimate.standard_error
    assert bounds == pytest.approx((expected.low, expected.high), rel=RELATIVE)
    assert estimate.interval.lower < expected.low < expected.high < estimate.interval.upper
    assert estimate.interval.level == 0.95
    assert estimate.design_effect == pytest.approx(1.0, rel=RELATIVE)
    assert estimate.intraclass_correlation == 0.0


def test_unequal_clusters_use_the_estimated_correlation() -> None:
    sample = draw(SIZES["ramp"], seed=7, icc=0.6)
    estimate = estimate_mean(sample)
    assert estimate.method is Method.CR2
    assert estimate.intraclass_correlation > 0.3
    assert estimate.degrees_of_freedom == float(satterthwaite(sample.sizes_G, estimate.intraclass_correlation))
    assert estimate.degrees_of_freedom < float(satterthwaite(sample.sizes_G, 0.0))


def test_known_case_by_hand() -> None:
    # five clusters of two equal values: totals 2(x - 3) = -4, -2, 0, 2, 4; CR1 = 5/4 * 40 / 100 = 1/2
    estimate = estimate_mean(gather([1, 1, 2, 2, 3, 3, 4, 4, 5, 5], list("aabbccddee")))
    assert estimate.value == 3.0
    assert estimate.standard_error == pytest.approx(math.sqrt(0.5), rel=RELATIVE)
    assert estimate.intraclass_correlation == 1.0
    # independent variance 20 / 90
    assert estimate.design_effect == pytest.approx(0.5 * 90 / 20, rel=RELATIVE)


def test_intraclass_correlation_equals_the_anova_of_scipy() -> None:
    sample = draw([5] * 6, seed=11)
    groups = np.split(sample.values_N, 6)
    ratio = float(stats.f_oneway(*groups).statistic)  # mean square between over within
    estimate = estimate_mean(sample)
    assert estimate.intraclass_correlation == pytest.approx((ratio - 1) / (ratio + 4), rel=RELATIVE)


def test_order_of_probes_does_not_matter() -> None:
    rng = np.random.default_rng(2)
    values, clusters = rng.standard_normal(60), [f"c{i % 7}" for i in range(60)]
    order = rng.permutation(60)
    shuffled = gather(values[order], [clusters[i] for i in order])
    # sums are taken in another order, so only rounding may differ
    assert estimate_mean(shuffled).standard_error == pytest.approx(
        estimate_mean(gather(values, clusters)).standard_error, rel=RELATIVE
    )


def test_a_constant_difference_has_no_spread_at_all() -> None:
    estimate = estimate_mean(gather([0.1] * 30, [f"c{i // 5}" for i in range(30)]))
    assert (estimate.value, estimate.standard_error) == (0.1, 0.0)
    assert (estimate.interval.lower, estimate.interval.upper) == (0.1, 0.1)
    assert (estimate.design_effect, estimate.intraclass_correlation) == (1.0, 0.0)


@pytest.mark.parametrize("num_clusters", [1, 2, 4])
def test_below_five_clusters_there_is_a_value_but_no_interval(num_clusters: int) -> None:
    estimate = estimate_mean(gather(np.arange(12.0), [f"c{i % num_clusters}" for i in range(12)]))
    assert estimate.method is Method.TOO_FEW_CLUSTERS
    assert estimate.value == 5.5
    assert (estimate.interval.lower, estimate.interval.upper) == (-math.inf, math.inf)


def test_replicates_along_leading_axes_are_computed_independently() -> None:
    rng = np.random.default_rng(4)
    sizes = np.array(SIZES["ramp"])
    values = rng.standard_normal((3, sizes.sum()))
    together = compute_moments(values, sizes)
    for row in range(3):
        alone = compute_moments(values[row], sizes)
        assert float(together.variance[row]) == float(alone.variance)
        assert float(satterthwaite(sizes, together.icc)[row]) == float(satterthwaite(sizes, alone.icc))

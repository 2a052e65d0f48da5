"""The mean of clustered differences, with a variance and degrees of freedom that hold for few and unequal clusters.

The model is d_i = mu + e_i with e independent between clusters. With N probes, G clusters, sizes n_c and shares
h_c = n_c / N, the estimate is the mean over probes and everything follows from the cluster totals of its residuals,
S_c = sum_{i in c} (d_i - dbar).

Variance. The design is a column of ones, so the hat matrix of cluster c is H_cc = (1/N) 1 1' and its one non-zero
eigenvalue is h_c. The bias-reduced residuals (I - H_cc)^(-1/2) e_c therefore have the total S_c / sqrt(1 - h_c):

    V = (1/N^2) sum_c S_c^2 / (1 - h_c)                                      (CR2)

With equal clusters 1 - h_c = (G - 1)/G and this is G/(G-1) (1/N^2) sum_c S_c^2 (CR1): one formula serves both.

Degrees of freedom. Let probes of a cluster correlate by rho, so that a cluster total has the variance
v_c = n_c (1 - rho) + n_c^2 rho in units of the variance of a probe; v = sum_c v_c. Then

    Cov(S_c, S_d) = [c = d] v_c + h_c q_d + h_d q_c     with q_c = h_c v / 2 - v_c,
    M_cd = Cov(S_c, S_d) / sqrt((1 - h_c)(1 - h_d)),    df = tr(M)^2 / tr(M^2)

because V is a sum of squares with covariance M. Expanding the square needs sums over c only, never a G x G matrix.
rho = 0 is Bell and McCaffrey's choice, with equal clusters df = G - 1 for every rho. We put in the estimated rho
(floored at 0), as Imbens and Kolesar advise: with rho = 0 and unequal correlated clusters the t test admits up to
6 % at the margin where 5 % is promised.

Bounds. Where a few clusters carry the differences, the t statistic leans, and the bound on the side of the tail reaches
further than the t quantile: see `skewness`. The interval holds the two reaches, and decisions are read off it.

Legend of shapes: N probes, G clusters, leading axes (...) are independent replicates of one design.
Source: Bell and McCaffrey 2002 (CR2 and df); Imbens and Kolesar 2016, section IV (rho); Pustejovsky and Tipton 2018.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.stats.sample import Sample
from quantaudit.stats.skewness import Reach, reach_of
from quantaudit.stats.student import Floats

MIN_CLUSTERS = 5
ALPHA = 0.05


class Moments(NamedTuple):
    """Mean and variances of clustered values; every field has the leading axes of the values.

    Attributes:
        mean: Mean over probes.
        variance: Clustered (CR2) variance of the mean.
        independent_variance: Variance that the mean would have if probes were independent.
        icc: ANOVA intraclass correlation, at most 1; 0 where clusters have one probe each or nothing varies.
        totals_G: Residual totals per cluster (one axis more).
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    independent_variance: NDArray[np.float64]
    icc: NDArray[np.float64]
    totals_G: NDArray[np.float64]


class MeanBounds(NamedTuple):
    """All that decides a mean; every field has the leading axes of the values.

    Attributes:
        moments: Mean and variances.
        standard_error: Root of the clustered variance.
        degrees_of_freedom: Of that variance.
        reach: How many standard errors each bound lies from the mean.
    """

    moments: Moments
    standard_error: NDArray[np.float64]
    degrees_of_freedom: NDArray[np.float64]
    reach: Reach


class WorkingCovariance(NamedTuple):
    """The covariance of residual totals under the working model, as the vectors that build it.

    Attributes:
        shares_G: h_c.
        leverage_G: 1 / sqrt(1 - h_c).
        variances_G: v_c.
        slopes_G: q_c.
    """

    shares_G: NDArray[np.float64]
    leverage_G: NDArray[np.float64]
    variances_G: NDArray[np.float64]
    slopes_G: NDArray[np.float64]


def compute_moments(values_N: NDArray[np.float64], sizes_G: NDArray[np.int64]) -> Moments:
    """Computes mean, variances and intraclass correlation of at least two clusters.

    Args:
        values_N: (..., N), each cluster contiguous.
        sizes_G: Probes per cluster, in the order of the values.
    """
    num_probes, num_clusters = int(sizes_G.sum()), len(sizes_G)
    starts_G = np.cumsum(sizes_G) - sizes_G
    # Relative to the first value, a constant sample has residuals of exactly zero, not of rounding noise.
    first = values_N[..., :1]
    shift = np.mean(values_N - first, axis=-1, keepdims=True)
    residuals_N = values_N - first - shift
    totals_G = np.add.reduceat(residuals_N, starts_G, axis=-1)
    sum_squares = np.sum(residuals_N**2, axis=-1)
    return Moments(
        mean=(first + shift)[..., 0],
        variance=np.sum(totals_G**2 / (1 - sizes_G / num_probes), axis=-1) / num_probes**2,
        independent_variance=sum_squares / (num_probes * (num_probes - 1)),
        icc=_intraclass_correlation(np.sum(totals_G**2 / sizes_G, axis=-1), sum_squares, sizes_G, num_clusters),
        totals_G=totals_G,
    )


def _intraclass_correlation(
    between: NDArray[np.float64], total: NDArray[np.float64], sizes_G: NDArray[np.int64], num_clusters: int
) -> NDArray[np.float64]:
    """Returns the ANOVA estimate from the sums of squares between clusters and in total."""
    num_probes = int(sizes_G.sum())
    if num_probes == num_clusters:
        return np.zeros_like(total)
    mean_between = between / (num_clusters - 1)
    mean_within = np.maximum(total - between, 0) / (num_probes - num_clusters)
    typical_size = (num_probes - float(np.sum(sizes_G**2)) / num_probes) / (num_clusters - 1)
    scale = mean_between + (typical_size - 1) * mean_within
    safe_scale = np.where(scale > 0, scale, 1.0)
    return np.asarray(np.where(scale > 0, (mean_between - mean_within) / safe_scale, 0.0), dtype=np.float64)


def working_covariance(sizes_G: NDArray[np.int64], icc: Floats) -> WorkingCovariance:
    """Builds the working covariance of residual totals for one intraclass correlation (or an array of them).

    Args:
        sizes_G: Probes per cluster; zeros are clusters that belong to another group.
        icc: Intraclass correlation; negative values count as 0.
    """
    sizes = sizes_G.astype(np.float64)
    rho = np.clip(np.asarray(icc, dtype=np.float64), 0, 1)[..., None]
    shares_G = sizes / sizes.sum()
    variances_G = sizes * (1 - rho) + sizes**2 * rho
    slopes_G = shares_G * np.sum(variances_G, axis=-1, keepdims=True) / 2 - variances_G
    return WorkingCovariance(shares_G, 1 / np.sqrt(1 - shares_G), variances_G, slopes_G)


def trace(working: WorkingCovariance) -> NDArray[np.float64]:
    """Returns tr(M): the expectation of the variance estimator, times N^2."""
    return np.asarray(np.sum(_diagonal(working), axis=-1))


def trace_of_product(first: WorkingCovariance, second: WorkingCovariance) -> NDArray[np.float64]:
    """Returns tr(M N) of two groups over the same clusters, by sums over clusters only."""
    weights_G = first.leverage_G * second.leverage_G
    h, q, k, r = first.shares_G, first.slopes_G, second.shares_G, second.slopes_G

    def total(product_G: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sum(weights_G * product_G, axis=-1))

    # sum over all (c, d) of w_c w_d (h_c q_d + h_d q_c)(k_c r_d + k_d r_c), less its own diagonal
    everywhere = 2 * (total(h * k) * total(q * r) + total(h * r) * total(q * k))
    diagonal_G = _diagonal(first) * _diagonal(second) - weights_G**2 * 4 * h * q * k * r
    return np.asarray(everywhere + np.sum(diagonal_G, axis=-1), dtype=np.float64)


def _diagonal(working: WorkingCovariance) -> NDArray[np.float64]:
    h, leverage, v, q = working
    return np.asarray(leverage**2 * (v + 2 * h * q), dtype=np.float64)


def satterthwaite(sizes_G: NDArray[np.int64], icc: Floats) -> NDArray[np.float64]:
    """Returns the degrees of freedom of the CR2 variance; G - 1 when the clusters are equal."""
    working = working_covariance(sizes_G, icc)
    return trace(working) ** 2 / trace_of_product(working, working)


def bound_mean(values_N: NDArray[np.float64], sizes_G: NDArray[np.int64], *, alpha: float = ALPHA) -> MeanBounds:
    """Computes a clustered mean with its bounds, for any number of replicates at once.

    Args:
        values_N: (..., N), each cluster contiguous.
        sizes_G: Probes per cluster, in the order of the values; at least two clusters.
        alpha: One-sided error rate of each bound.
    """
    moments = compute_moments(values_N, sizes_G)
    is_equal = bool(np.all(sizes_G == sizes_G[0]))
    exact = np.full(moments.mean.shape, len(sizes_G) - 1.0)
    df = exact if is_equal else satterthwaite(sizes_G, moments.icc)
    influence_G = moments.totals_G / np.sqrt(1 - sizes_G / sizes_G.sum())
    return MeanBounds(moments, np.sqrt(moments.variance), df, reach_of(influence_G, df, alpha=alpha))


def mean_statistic(bounds: MeanBounds, margin: float) -> NDArray[np.float64]:
    """Computes the statistic of "the true mean is `margin`" that `t_cdf` turns into p-values, elementwise."""
    gap = bounds.moments.mean - margin
    further = np.where(gap < 0, bounds.reach.upper, bounds.reach.lower) / bounds.reach.plain
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gap / bounds.standard_error / further
    return np.where(gap == 0, 0.0, ratio)


def estimate_mean(sample: Sample, *, alpha: float = ALPHA) -> Estimate:
    """Estimates the mean difference over probes, with uncertainty taken over clusters.

    Below five clusters the estimate has no interval and cannot decide.

    Args:
        sample: Paired differences by cluster.
        alpha: One-sided error rate; the interval has level 1 - 2 alpha.
    """
    num_probes, num_clusters = len(sample.values_N), len(sample.sizes_G)
    if num_clusters < MIN_CLUSTERS:
        return refuse(float(np.mean(sample.values_N)), num_probes=num_probes, num_clusters=num_clusters, alpha=alpha)
    moments, error, df, reach = bound_mean(sample.values_N, sample.sizes_G, alpha=alpha)
    is_equal = bool(np.all(sample.sizes_G == sample.sizes_G[0]))
    return Estimate(
        value=float(moments.mean),
        standard_error=float(error),
        degrees_of_freedom=float(df),
        interval=skewed_interval(float(moments.mean), float(error), reach, alpha),
        num_probes=num_probes,
        num_clusters=num_clusters,
        design_effect=design_effect(moments.variance, moments.independent_variance),
        intraclass_correlation=float(moments.icc),
        method=Method.CR1 if is_equal else Method.CR2,
    )


def design_effect(variance: Floats, independent_variance: Floats) -> float:
    """Returns clustered over independent variance, 1 where nothing varies."""
    return float(variance) / float(independent_variance) if float(independent_variance) > 0 else 1.0


def skewed_interval(value: float, standard_error: float, reach: Reach, alpha: float) -> Interval:
    """Returns the interval of level 1 - 2 alpha whose bounds reach as far as `reach` says."""
    lower, upper = value - float(reach.lower) * standard_error, value + float(reach.upper) * standard_error
    return Interval(lower=lower, upper=upper, level=1 - 2 * alpha)


def refuse(value: float, *, num_probes: int, num_clusters: int, alpha: float) -> Estimate:
    """Returns a value that is bounded by nothing: below five clusters no interval can be trusted."""
    return Estimate(
        value=value,
        standard_error=float("inf"),
        degrees_of_freedom=0.0,
        interval=Interval(lower=float("-inf"), upper=float("inf"), level=1 - 2 * alpha),
        num_probes=num_probes,
        num_clusters=num_clusters,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.TOO_FEW_CLUSTERS,
    )

"""The difference of two clustered means, such as damage on restricted requests minus damage on benign ones.

Clusters may be disjoint, shared, or partly shared (a template that has a restricted and a benign version). The two
means are the coefficients of a two-column regression, so with residual totals S_c and R_c of the two groups

    V = sum_c ( S_c / (N sqrt(1 - h_c)) - R_c / (M sqrt(1 - k_c)) )^2,

which for disjoint clusters is the sum of the two variances. The degrees of freedom are Welch and Satterthwaite's,

    df = (V1 + V2)^2 / ( V1^2/df1 + V2^2/df2 + 2 V1 V2 t ),     t = tr(M1 M2) / (tr M1 tr M2),

where t vanishes for disjoint clusters and equals 1/(G-1) when both groups fill the same G equal clusters, whose
differences then have G - 1 degrees of freedom, as they should.

Bounds. The larger of two reaches counts. One takes the contrast as a single mean, which each cluster moves by the term
that V squares (see `skewness`). The other recovers it from the bounds of the two groups, the upper one of the first at
a distance l1 and the lower one of the second at l2, as the root of l1^2 + l2^2 - 2 r l1 l2 with r the correlation of
the two means: ten clusters of lognormal damage stay ten clusters when a second group has forty.

Legend of shapes: G clusters (the union of both groups).
Source: `clustered` for M; Welch 1947; Satterthwaite 1946; Zou and Donner 2008 (bounds from those of the groups).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Estimate, Method
from quantaudit.stats.clustered import (
    ALPHA,
    MIN_CLUSTERS,
    Moments,
    WorkingCovariance,
    compute_moments,
    design_effect,
    refuse,
    satterthwaite,
    skewed_interval,
    trace,
    trace_of_product,
    working_covariance,
)
from quantaudit.stats.sample import Sample
from quantaudit.stats.skewness import Reach, reach_of


class _Group(NamedTuple):
    """One side of a contrast, spread over the union of clusters."""

    moments: Moments
    influence_G: NDArray[np.float64]
    working: WorkingCovariance
    degrees_of_freedom: float


def estimate_contrast(first: Sample, second: Sample, *, alpha: float = ALPHA) -> Estimate:
    """Estimates the mean of `first` minus the mean of `second` (restricted minus benign).

    Needs five clusters on each side. The design effect compares with independent probes, and the intraclass
    correlation is that of the two groups, weighted by their numbers of probes.

    Args:
        first: Damage-oriented differences of the first group.
        second: The same for the second; equal cluster names mean the same cluster.
        alpha: One-sided error rate; the interval has level 1 - 2 alpha.
    """
    clusters = tuple(sorted({*first.clusters, *second.clusters}))
    num_first, num_second = len(first.values_N), len(second.values_N)
    if min(len(first.clusters), len(second.clusters)) < MIN_CLUSTERS:
        value = float(np.mean(first.values_N) - np.mean(second.values_N))
        return refuse(value, num_probes=num_first + num_second, num_clusters=len(clusters), alpha=alpha)
    one, two = _spread(first, clusters), _spread(second, clusters)
    value = float(one.moments.mean - two.moments.mean)
    influence_G = one.influence_G - two.influence_G
    error, df = float(np.sqrt(np.sum(influence_G**2))), _welch(one, two)
    return Estimate(
        value=value,
        standard_error=error,
        degrees_of_freedom=df,
        interval=skewed_interval(value, error, _reach(one, two, df, alpha), alpha),
        num_probes=num_first + num_second,
        num_clusters=len(clusters),
        design_effect=design_effect(error**2, one.moments.independent_variance + two.moments.independent_variance),
        intraclass_correlation=float(np.average([one.moments.icc, two.moments.icc], weights=[num_first, num_second])),
        method=Method.CONTRAST,
    )


def _reach(one: _Group, two: _Group, degrees_of_freedom: float, alpha: float) -> Reach:
    """Returns the larger reach of the contrast as one mean and as recovered from its groups, side by side."""
    whole = reach_of(one.influence_G - two.influence_G, degrees_of_freedom, alpha=alpha)
    first, second = (reach_of(g.influence_G, g.degrees_of_freedom, alpha=alpha) for g in (one, two))
    error = float(np.linalg.norm(one.influence_G - two.influence_G))
    if error == 0:
        return whole
    lengths = float(np.linalg.norm(one.influence_G)), float(np.linalg.norm(two.influence_G))
    product = float(one.influence_G @ two.influence_G)  # covariance of the means: r times both lengths

    def recover(reach: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        square = (reach * lengths[0]) ** 2 + (other * lengths[1]) ** 2 - 2 * reach * other * product
        return np.sqrt(np.maximum(square, 0.0)) / error

    lower, upper = recover(first.lower, second.upper), recover(first.upper, second.lower)
    return Reach(np.maximum(whole.lower, lower), np.maximum(whole.upper, upper), whole.plain)


def _spread(sample: Sample, clusters: tuple[str, ...]) -> _Group:
    """Computes one group's moments and places its cluster quantities among all clusters."""
    position = {name: index for index, name in enumerate(clusters)}
    at_G = np.array([position[name] for name in sample.clusters])
    moments = compute_moments(sample.values_N, sample.sizes_G)
    sizes_G = np.zeros(len(clusters), dtype=np.int64)
    sizes_G[at_G] = sample.sizes_G
    working = working_covariance(sizes_G, moments.icc)
    influence_G = np.zeros(len(clusters))
    influence_G[at_G] = moments.totals_G / len(sample.values_N)
    return _Group(
        moments=moments,
        influence_G=influence_G * working.leverage_G,
        working=working,
        degrees_of_freedom=float(satterthwaite(sample.sizes_G, moments.icc)),
    )


def _welch(one: _Group, two: _Group) -> float:
    """Returns the Welch-Satterthwaite degrees of freedom; the smaller one where nothing varies."""
    first, second = float(one.moments.variance), float(two.moments.variance)
    if first + second == 0:
        return min(one.degrees_of_freedom, two.degrees_of_freedom)
    shared = float(trace_of_product(one.working, two.working) / (trace(one.working) * trace(two.working)))
    spread = first**2 / one.degrees_of_freedom + second**2 / two.degrees_of_freedom + 2 * first * second * shared
    return (first + second) ** 2 / spread

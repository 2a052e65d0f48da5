"""Paired differences of proportions: Tango's score interval at the effective number of probes.

A 0/1 observer gives one of -1, 0, +1 per pair (+1: lo lost what hi had). With d the mean, q the share of discordant
pairs and n pairs, the score statistic of "the difference is m" is

    T(m) = (d - m) sqrt(n) / sqrt(2 p(m) + m (1 - m)),

where p(m) is the maximum-likelihood rate of the -1 flips under that hypothesis, the larger root of
2 p^2 + B p + C = 0 with B = (2 - d) m - q and C = -c m (1 - m), c = (q - d)/2. T falls in m, so the interval is
{m : |T(m)| <= quantile}. It keeps its level when flips are few, where a paired t or Wald interval does not: with no
flip at all it still gives the bound z^2 / (n + z^2).

Clusters enter twice: n is divided by the design effect (clustered over independent variance, at least 1), and the
quantile is Student's with the degrees of freedom of the clustered variance. With the normal quantile instead, 10
clusters of 30 admit up to 27 % at the margin where 5 % is promised.

Where flips go one way only, their number is binomial and its steps are large: 133 probes without a flip pass a margin
of 2 points by the score, and at that margin 6.8 % of samples have none. There the exact tail of the binomial counts
if it is less sure than the score (149 probes; 299 for 1 point). A single flip the other way smooths the steps away.

Rejecting needs more than admitting. The score knows that rare flips lean to one side, so bounds away from zero keep the
t quantile; but clusters of hard questions, where everything flips at once, lean to the other side and reject 14 % at
the margin (1000 probes in 10 unequal clusters). The bound on the side of zero, which rejecting is read off, therefore
reaches as far as `skewness` says; where that would pass zero, it stops there.

What remains: a design effect cannot be estimated from a handful of flips. Let the margins whose sign flips correlate
within clusters: up to correlation .1 the rate of wrong admission stays at 5 %, at .2 it reaches 8 %, at .5 with
one-way flips 23 %. Where that continuous companion was measured (the answer margin beside accuracy), pass its design
effect as `least_design_effect`: dichotomising only weakens dependence, and the rate is then below 4 %.

Source: Tango 1998, equations 3-5; Korn and Graubard 1998 (effective sample size with t quantile).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.core.errors import InputError
from quantaudit.stats.bisection import cross
from quantaudit.stats.clustered import ALPHA, MIN_CLUSTERS, Moments, compute_moments, refuse, satterthwaite
from quantaudit.stats.sample import Sample
from quantaudit.stats.skewness import Reach, reach_of
from quantaudit.stats.student import Floats, at_most, binomial_cdf, normal_quantiles, t_quantile


def tango_statistic(
    difference: Floats, discordant_rate: Floats, effective_num: Floats, margin: Floats
) -> NDArray[np.float64]:
    """Returns the score statistic of "the true difference is `margin`", elementwise; it falls as the margin grows.

    Args:
        difference: Observed mean of the -1, 0, +1 differences.
        discordant_rate: Observed share of pairs that differ, at least the absolute difference.
        effective_num: Pairs, divided by the design effect.
        margin: Hypothesised difference, strictly between -1 and 1.
    """
    d, q, m = np.broadcast_arrays(np.asarray(difference), np.asarray(discordant_rate), np.asarray(margin))
    linear = (2 - d) * m - q
    constant = -(q - d) / 2 * m * (1 - m)
    rate = (np.sqrt(np.maximum(linear**2 - 8 * constant, 0)) - linear) / 4
    variance = np.maximum(2 * rate + m * (1 - m), 0)
    gap = (d - m) * np.sqrt(effective_num)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gap / np.sqrt(variance)
    # 0/0 is "no flips, hypothesis of no difference": perfect agreement with the hypothesis
    return np.where(gap == 0, 0.0, ratio)


def score_statistic(
    difference: Floats, discordant_rate: Floats, effective_num: Floats, margin: Floats
) -> NDArray[np.float64]:
    """Returns Tango's statistic, or that of the exact binomial where no flip goes against `margin` and it is less sure.

    Args:
        difference: Observed mean of the -1, 0, +1 differences.
        discordant_rate: Observed share of pairs that differ, at least the absolute difference.
        effective_num: Pairs, divided by the design effect.
        margin: Hypothesised difference, strictly between -1 and 1.
    """
    given = (difference, discordant_rate, effective_num, margin)
    d, q, n, m = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in given))
    score = np.asarray(tango_statistic(d, q, n, m))
    side = np.sign(m)
    # rates are means of whole numbers, so what is left of no flip at all is rounding
    is_one_way = (side != 0) & (q - side * d < 1e-12)
    if not is_one_way.any():
        return score
    count, num, rate = (q * n)[is_one_way], n[is_one_way], np.abs(m)[is_one_way]
    below = np.minimum(normal_quantiles(at_most(count, num, rate)), 0.0)
    # the chance of at least `count` flips is that of at most the others without one
    above = np.maximum(-normal_quantiles(at_most(num - count, num, 1 - rate)), 0.0)
    signed = (side * score)[is_one_way]
    exact = np.where(signed < 0, np.maximum(signed, below), np.minimum(signed, above))
    score[is_one_way] = side[is_one_way] * exact
    return score


class Bounds(NamedTuple):
    """Lower and upper bound of a difference of proportions, each strictly inside -1 to 1 or at it."""

    lower: float
    upper: float


def score_bounds(difference: float, discordant_rate: float, effective_num: float, critical: float) -> Bounds:
    """Returns the margins at which `score_statistic` reaches plus and minus `critical`."""

    def statistic(margin: float) -> float:
        return float(score_statistic(difference, discordant_rate, effective_num, margin))

    lower = cross(statistic, level=critical, lower=-1.0, upper=difference)
    upper = cross(statistic, level=-critical, lower=difference, upper=1.0)
    return Bounds(lower, upper)


class FlipBounds(NamedTuple):
    """All that decides a difference of proportions; every field has the leading axes of the values.

    Attributes:
        moments: Mean and variances of the -1, 0, +1 differences.
        discordant_rate: Share of pairs that differ.
        design_effect: The larger of the estimated one, the least one and 1.
        degrees_of_freedom: Of the clustered variance; infinite without any flip.
        reach: Score statistic at each bound: `plain` away from zero, the larger one of its side towards zero.
    """

    moments: Moments
    discordant_rate: NDArray[np.float64]
    design_effect: NDArray[np.float64]
    degrees_of_freedom: NDArray[np.float64]
    reach: Reach


def bound_flips(
    values_N: NDArray[np.float64],
    sizes_G: NDArray[np.int64],
    *,
    alpha: float = ALPHA,
    least_design_effect: Floats = 1.0,
) -> FlipBounds:
    """Computes what bounds a difference of proportions, for any number of replicates at once.

    Args:
        values_N: (..., N) of -1, 0 and +1, each cluster contiguous.
        sizes_G: Probes per cluster, in the order of the values; at least two clusters.
        alpha: One-sided error rate of each bound.
        least_design_effect: Smallest design effect to use, shape (...).
    """
    moments = compute_moments(values_N, sizes_G)
    varies = moments.independent_variance > 0
    estimated = moments.variance / np.where(varies, moments.independent_variance, 1.0)
    discordant_rate = np.mean(values_N != 0, axis=-1)
    df = np.where(discordant_rate > 0, satterthwaite(sizes_G, moments.icc), np.inf)
    influence_G = moments.totals_G / np.sqrt(1 - sizes_G / sizes_G.sum())
    return FlipBounds(
        moments=moments,
        discordant_rate=discordant_rate,
        design_effect=np.maximum(np.where(varies, estimated, 1.0), np.maximum(least_design_effect, 1.0)),
        degrees_of_freedom=df,
        reach=reach_of(influence_G, df, alpha=alpha),
    )


def flip_statistic(bounds: FlipBounds, num_probes: int, margin: float) -> NDArray[np.float64]:
    """Computes the statistic of "the true difference is `margin`" that `t_cdf` turns into p-values, elementwise."""
    num = num_probes / bounds.design_effect
    statistic = score_statistic(bounds.moments.mean, bounds.discordant_rate, num, margin)
    reach = bounds.reach.lower if margin > 0 else bounds.reach.upper
    return np.where(statistic * margin > 0, statistic * bounds.reach.plain / reach, statistic)


def estimate_flips(sample: Sample, *, alpha: float = ALPHA, least_design_effect: float = 1.0) -> Estimate:
    """Estimates the difference of two paired proportions, with a score interval at the effective number of probes.

    Without any discordant pair nothing says how flips cluster: the design effect is then `least_design_effect`, the
    quantile normal and the method `SCORE_NO_FLIPS`, so that a reader sees what was assumed.

    Args:
        sample: Differences of a 0/1 observer: +1 where lo lost what hi had, -1 the other way, 0 where they agree.
        alpha: One-sided error rate; the interval has level 1 - 2 alpha.
        least_design_effect: Smallest design effect to use, for example that of a continuous companion.

    Raises:
        InputError: If a difference is none of -1, 0, +1, or the least design effect is below 1.
    """
    _check(sample, least_design_effect)
    num_probes, num_clusters = len(sample.values_N), len(sample.sizes_G)
    if num_clusters < MIN_CLUSTERS:
        return refuse(float(np.mean(sample.values_N)), num_probes=num_probes, num_clusters=num_clusters, alpha=alpha)
    found = bound_flips(sample.values_N, sample.sizes_G, alpha=alpha, least_design_effect=least_design_effect)
    moments, discordant_rate, effect = found.moments, float(found.discordant_rate), float(found.design_effect)
    bounds = _reach_bounds(float(moments.mean), discordant_rate, num_probes / effect, found.reach)
    return Estimate(
        value=float(moments.mean),
        standard_error=float(np.sqrt(effect * moments.independent_variance)),
        degrees_of_freedom=float(found.degrees_of_freedom),
        interval=Interval(lower=bounds.lower, upper=bounds.upper, level=1 - 2 * alpha),
        num_probes=num_probes,
        num_clusters=num_clusters,
        design_effect=effect,
        intraclass_correlation=float(moments.icc),
        method=Method.SCORE if discordant_rate > 0 else Method.SCORE_NO_FLIPS,
        discordant_rate=discordant_rate,
    )


def _reach_bounds(difference: float, discordant_rate: float, effective_num: float, reach: Reach) -> Bounds:
    """Returns the bounds; the one on the side of zero reaches further, but not past zero for that."""
    lower, upper = score_bounds(difference, discordant_rate, effective_num, float(reach.plain))
    if difference > 0:
        further = score_bounds(difference, discordant_rate, effective_num, float(reach.lower)).lower
        return Bounds(further if further > 0 else min(lower, 0.0), upper)
    if difference < 0:
        further = score_bounds(difference, discordant_rate, effective_num, float(reach.upper)).upper
        return Bounds(lower, further if further < 0 else max(upper, 0.0))
    return Bounds(lower, upper)


def _check(sample: Sample, least_design_effect: float) -> None:
    strange = sample.values_N[~np.isin(sample.values_N, (-1.0, 0.0, 1.0))]
    if len(strange):
        raise InputError(
            f"difference {strange[0]} of a 0/1 observer",
            expected="-1, 0 or +1 per pair",
            fix="use estimate_mean for an observer that is not 0 or 1",
        )
    if least_design_effect < 1:
        raise InputError(
            f"least design effect {least_design_effect}",
            expected="at least 1",
            fix="clusters are never allowed to add information; leave the argument out",
        )


def zero_flip_bound(num_probes: float, *, alpha: float = ALPHA) -> float:
    """Returns the one-sided score bound on the flip rate after `num_probes` independent pairs without a flip.

    It is z^2 / (n + z^2): 2.706 / (n + 2.706) at alpha = .05. Estimates use the exact bound, which is a tenth larger.
    """
    square = t_quantile(1 - alpha, float("inf")) ** 2
    return square / (num_probes + square)


def exact_zero_flip_bound(num_probes: float, *, alpha: float = ALPHA) -> float:
    """Returns the exact one-sided bound on the flip rate after `num_probes` independent pairs without a flip.

    It is 1 - alpha^(1/n): a margin of .02 needs 149 pairs and .01 needs 299.
    """
    return float(-np.expm1(np.log(alpha) / num_probes))


def mcnemar_exact(num_worse: int, num_better: int) -> float:
    """Returns the exact two-sided McNemar p-value of "flips go both ways equally often"; for display only.

    It tests no difference rather than a margin, and it takes probes as independent, so it never gates.
    """
    return min(1.0, 2 * binomial_cdf(min(num_worse, num_better), num_worse + num_better, 0.5))

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
from quantaudit.stats.clustered import ALPHA, MIN_CLUSTERS, compute_moments, design_effect, refuse, satterthwaite
from quantaudit.stats.sample import Sample
from quantaudit.stats.student import Floats, binomial_cdf, t_quantile


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


class Bounds(NamedTuple):
    """Lower and upper bound of a difference of proportions, each strictly inside -1 to 1 or at it."""

    lower: float
    upper: float


def tango_bounds(difference: float, discordant_rate: float, effective_num: float, critical: float) -> Bounds:
    """Returns the margins at which the score statistic reaches plus and minus `critical`."""

    def statistic(margin: float) -> float:
        return float(tango_statistic(difference, discordant_rate, effective_num, margin))

    lower = cross(statistic, level=critical, lower=-1.0, upper=difference)
    upper = cross(statistic, level=-critical, lower=difference, upper=1.0)
    return Bounds(lower, upper)


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
    moments = compute_moments(sample.values_N, sample.sizes_G)
    value, discordant_rate = float(moments.mean), float(np.mean(sample.values_N != 0))
    has_flips = discordant_rate > 0
    df = float(satterthwaite(sample.sizes_G, moments.icc)) if has_flips else float("inf")
    effect = max(design_effect(moments.variance, moments.independent_variance), least_design_effect)
    bounds = tango_bounds(value, discordant_rate, num_probes / effect, t_quantile(1 - alpha, df))
    return Estimate(
        value=value,
        standard_error=float(np.sqrt(effect * moments.independent_variance)),
        degrees_of_freedom=df,
        interval=Interval(lower=bounds.lower, upper=bounds.upper, level=1 - 2 * alpha),
        num_probes=num_probes,
        num_clusters=num_clusters,
        design_effect=effect,
        intraclass_correlation=float(moments.icc),
        method=Method.SCORE if has_flips else Method.SCORE_NO_FLIPS,
        discordant_rate=discordant_rate,
    )


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

    It is z^2 / (n + z^2): 2.706 / (n + 2.706) at alpha = .05, so a margin of .02 needs 133 pairs and .01 needs 268.
    """
    square = t_quantile(1 - alpha, float("inf")) ** 2
    return square / (num_probes + square)


def mcnemar_exact(num_worse: int, num_better: int) -> float:
    """Returns the exact two-sided McNemar p-value of "flips go both ways equally often"; for display only.

    It tests no difference rather than a margin, and it takes probes as independent, so it never gates.
    """
    return min(1.0, 2 * binomial_cdf(min(num_worse, num_better), num_worse + num_better, 0.5))

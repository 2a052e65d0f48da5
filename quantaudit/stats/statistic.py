"""How far an estimate lies from a margin, and the two p-values that follow.

The statistic of "the true difference is m" is (value - m) / standard error for means and Tango's T(m) for
proportions. Both fall as m grows, both scale with the square root of the number of probes, and both are compared
with a t quantile q, so decisions and power are written once, on the statistic. Where the bound of a side reaches r > q
standard errors (see `skewness`), the statistic on that side is multiplied by q / r, which the interval tells: p-values
say what the bounds say, of a stored estimate too.

With F the t distribution, delta the margin and s = statistic:

    admit,  worse:  F(s(delta))                           against "damage is delta or more"
    admit,  both:   max(F(s(delta)), 1 - F(s(-delta)))    two one-sided tests
    reject, worse:  1 - F(s(delta))                       against "damage is delta or less"
    reject, both:   1 - F(s(delta)) + 1 - F(s(-delta))    for damage, mirrored for improvement: both tails beyond the
                                                          margins count, else narrow margins reject twice alpha
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Method
from quantaudit.stats.proportion import score_statistic
from quantaudit.stats.skewness import MIN_DEGREES
from quantaudit.stats.student import Floats, t_cdf, t_quantile

_BY_CLUSTER_T = (Method.CR1, Method.CR2, Method.CONTRAST)


class PValues(NamedTuple):
    """Small `admit` says inside the margin, small `reject` says beyond it; never both below .5."""

    admit: float
    reject: float


def is_decidable(estimate: Estimate) -> bool:
    """Tells whether there are clusters enough to read a decision off the statistic."""
    if estimate.method is Method.TOO_FEW_CLUSTERS:
        return False
    is_sampled = estimate.method in (*_BY_CLUSTER_T, Method.SCORE, Method.SCORE_NO_FLIPS)
    return not is_sampled or bool(has_weight(estimate.degrees_of_freedom, estimate.num_clusters))


def has_weight(degrees_of_freedom: Floats, num_clusters: int) -> NDArray[np.bool_]:
    """Tells whether clusters weigh as much as the fewest that decide, elementwise."""
    # degrees of freedom are sums of rounded terms
    return np.minimum(degrees_of_freedom, num_clusters - 1) > MIN_DEGREES - 1e-6


def compute_statistic(estimate: Estimate, margin: float) -> float:
    """Computes the signed distance of an estimate from `margin`, in its own standard errors; negative is inside."""
    if estimate.discordant_rate is not None:
        return _score_statistic(estimate, estimate.discordant_rate, margin)
    gap = estimate.value - margin
    if estimate.standard_error == 0:  # a constant difference is on one side for certain, or exactly on the margin
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / estimate.standard_error / stretch_of(estimate, is_above=gap < 0)


def stretch_of(estimate: Estimate, *, is_above: bool) -> float:
    """Returns how many times further than the t quantile a bound of a mean reaches; at least 1."""
    interval = estimate.interval
    width = interval.upper - estimate.value if is_above else estimate.value - interval.lower
    if estimate.method not in _BY_CLUSTER_T or estimate.standard_error == 0 or math.isinf(width):
        return 1.0
    return max(1.0, width / estimate.standard_error / _quantile(estimate))


def _score_statistic(estimate: Estimate, discordant_rate: float, margin: float) -> float:
    """Returns the score statistic, divided by what the bound towards zero reaches further where it is read off that."""

    def score(hypothesis: float) -> float:
        return float(score_statistic(estimate.value, discordant_rate, estimate.effective_num_probes, hypothesis))

    statistic = score(margin)
    bound = estimate.interval.lower if estimate.value > 0 else estimate.interval.upper
    is_beyond = statistic * margin > 0 and bound * estimate.value >= 0 and bound != estimate.value
    if not is_beyond or math.isinf(bound):
        return statistic
    return statistic / max(1.0, abs(score(bound)) / _quantile(estimate))


def _quantile(estimate: Estimate) -> float:
    return t_quantile((1 + estimate.interval.level) / 2, estimate.degrees_of_freedom)


def compute_p_values(estimate: Estimate, *, direction: Direction, margin: float) -> PValues:
    """Computes the p-values for admitting and for rejecting at `margin`."""
    above, below = compute_statistic(estimate, margin), compute_statistic(estimate, -margin)
    admit, reject = p_values(above, below, estimate.degrees_of_freedom, direction=direction)
    return PValues(float(admit), float(reject))


def p_values(
    above: Floats, below: Floats, degrees_of_freedom: Floats, *, direction: Direction
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes the p-values for admitting and rejecting, elementwise.

    Args:
        above: Statistic at the margin.
        below: Statistic at minus the margin.
        degrees_of_freedom: Of the t distribution both are compared with.
        direction: Which differences count.
    """
    over, under = t_cdf(above, degrees_of_freedom), t_cdf(-np.asarray(above), degrees_of_freedom)
    if direction is Direction.WORSE:
        return over, under
    far_over, far_under = t_cdf(below, degrees_of_freedom), t_cdf(-np.asarray(below), degrees_of_freedom)
    damage, improvement = under + far_under, far_over + over
    return np.maximum(over, far_under), np.minimum(np.minimum(damage, improvement), 1.0)


def improvement_p_value(estimate: Estimate, *, margin: float) -> float:
    """Returns the p-value against "the improvement is within the margin"; small means displacement."""
    return float(t_cdf(compute_statistic(estimate, -margin), estimate.degrees_of_freedom))

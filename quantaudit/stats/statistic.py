"""How far an estimate lies from a margin, and the two p-values that follow.

The statistic of "the true difference is m" is (value - m) / standard error for means and Tango's T(m) for
proportions. Both fall as m grows, both scale with the square root of the number of probes, and both are compared
with a t quantile, so decisions and power are written once, on the statistic.

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

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate
from quantaudit.stats.proportion import tango_statistic
from quantaudit.stats.student import t_cdf


class PValues(NamedTuple):
    """Small `admit` says inside the margin, small `reject` says beyond it; never both below .5."""

    admit: float
    reject: float


def compute_statistic(estimate: Estimate, margin: float) -> float:
    """Computes the signed distance of an estimate from `margin`, in its own standard errors; negative is inside."""
    if estimate.discordant_rate is not None:
        num = estimate.effective_num_probes
        return float(tango_statistic(estimate.value, estimate.discordant_rate, num, margin))
    gap = estimate.value - margin
    if estimate.standard_error == 0:  # a constant difference is on one side for certain, or exactly on the margin
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / estimate.standard_error


def compute_p_values(estimate: Estimate, *, direction: Direction, margin: float) -> PValues:
    """Computes the p-values for admitting and for rejecting at `margin`."""
    df = estimate.degrees_of_freedom
    above = compute_statistic(estimate, margin)
    below = compute_statistic(estimate, -margin)
    if direction is Direction.WORSE:
        return PValues(float(t_cdf(above, df)), float(t_cdf(-above, df)))
    admit = max(float(t_cdf(above, df)), float(t_cdf(-below, df)))
    damage = float(t_cdf(-above, df) + t_cdf(-below, df))
    improvement = float(t_cdf(below, df) + t_cdf(above, df))
    return PValues(admit, min(damage, improvement, 1.0))


def improvement_p_value(estimate: Estimate, *, margin: float) -> float:
    """Returns the p-value against "the improvement is within the margin"; small means displacement."""
    return float(t_cdf(compute_statistic(estimate, -margin), estimate.degrees_of_freedom))

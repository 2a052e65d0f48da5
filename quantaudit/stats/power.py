"""What this many probes can tell, and how many would decide.

More probes of the same kind (clusters growing with them) multiply the statistic by r = sqrt(n'/n) and the degrees of
freedom by r^2. With t the quantile at 1 - alpha, F the t distribution and s(m) the statistic, the chance to admit is

    worse:  F(-r s(delta) - t)
    both:   F(-r s(delta) - t) + F(r s(-delta) - t) - 1,

and n' is the smallest number with chance .8. For many degrees of freedom, one-sided, that is the textbook
n' = (z_{1-alpha} + z_{1-beta})^2 sigma^2 / (delta - d)^2. Where d >= delta no number admits.

A sample without flips has no spread to take a chance over: n' is then the number that stays without a flip at most
alpha of the time at the margin, log(alpha) / log(1 - delta).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Method
from quantaudit.stats.bisection import cross
from quantaudit.stats.statistic import compute_statistic, is_decidable, stretch_of
from quantaudit.stats.student import t_cdf, t_quantile

POWER = 0.8
MAX_NUM = 10**12  # beyond this a number of probes is no advice


def num_to_admit(estimate: Estimate, *, direction: Direction, margin: float, alpha: float) -> int | None:
    """Returns the probes that would admit with power .8 if the difference stays as observed; `None` if none would."""
    if estimate.method is Method.TOO_FEW_CLUSTERS:
        return None
    if estimate.method is Method.SCORE_NO_FLIPS:
        return math.ceil(estimate.design_effect * math.log(alpha) / math.log1p(-margin))
    above, below = compute_statistic(estimate, margin), compute_statistic(estimate, -margin)

    def chance(scale: float, df: float) -> float:
        quantile = t_quantile(1 - alpha, df)
        upper = _chance_beyond(-scale * above - quantile, df, estimate)
        if direction is Direction.WORSE:
            return upper
        return upper + _chance_beyond(scale * below - quantile, df, estimate) - 1

    return _smallest_num(estimate, chance)


def num_to_reject(estimate: Estimate, *, direction: Direction, margin: float, alpha: float) -> int | None:
    """Returns the probes that would reject with power .8 if the difference stays as observed; `None` if none would."""
    above, below = compute_statistic(estimate, margin), compute_statistic(estimate, -margin)
    distance = above if direction is Direction.WORSE else max(above, -below)
    if estimate.method is Method.TOO_FEW_CLUSTERS or distance <= 0:
        return None

    def chance(scale: float, df: float) -> float:
        return _chance_beyond(scale * distance - t_quantile(1 - alpha, df), df, estimate)

    return _smallest_num(estimate, chance)


def minimum_detectable_effect(estimate: Estimate, *, direction: Direction, alpha: float) -> float:
    """Returns the smallest margin that a lo without any difference would pass with power .8 at this n.

    One-sided it is (t_{1-alpha} + t_.8) standard errors, which is also the smallest damage that is told from zero with
    power .8; with two one-sided tests either may fail, so t_.9 takes the place of t_.8. Where the bound reaches further
    than t_{1-alpha}, that reach counts; too few clusters detect nothing. For proportions the observed
    discordant rate is kept and Tango's statistic takes the place of the standard error.
    """
    if not is_decidable(estimate):
        return math.inf
    df = estimate.degrees_of_freedom
    stretch = stretch_of(estimate, is_above=True)
    if direction is Direction.BOTH:
        stretch = max(stretch, stretch_of(estimate, is_above=False))
    reach = stretch * t_quantile(1 - alpha, df)
    if estimate.standard_error > 0:
        reach += t_quantile(POWER if direction is Direction.WORSE else (1 + POWER) / 2, df)
    if estimate.discordant_rate is None:
        return reach * estimate.standard_error
    harmless = estimate.model_copy(update={"value": 0.0})
    return cross(lambda margin: compute_statistic(harmless, margin), level=-reach, lower=0.0, upper=1.0)


def _chance_beyond(distance: float, degrees_of_freedom: float, estimate: Estimate) -> float:
    """Returns the chance that the statistic ends on the decided side of its quantile."""
    if estimate.standard_error == 0:
        return float(distance >= 0)
    return float(t_cdf(distance, degrees_of_freedom))


def _smallest_num(estimate: Estimate, chance: Callable[[float, float], float]) -> int | None:
    """Returns the smallest number of probes at which `chance(scale, degrees of freedom)` reaches the power."""

    def suffices(num: int) -> bool:
        ratio = num / estimate.num_probes
        # below one degree of freedom quantiles overflow, and nothing so small decides
        return chance(math.sqrt(ratio), max(1.0, estimate.degrees_of_freedom * ratio)) >= POWER

    upper = 1
    while not suffices(upper):
        upper *= 2
        if upper > MAX_NUM:
            return None
    lower = upper // 2
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (lower, middle) if suffices(middle) else (middle, upper)
    return upper

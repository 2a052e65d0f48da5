"""What betting evidence says about one clause at every look: outcomes, and how much evidence is missing.

Inside the margin is a claim with one side or two (two one-sided tests: each has to be won, so each may err alpha).
Beyond the margin is, for a two-sided clause, a union: half of the wealth is bet on each side. The first outcome
stands; later clusters cannot undo it, so it makes no difference whether somebody went on after it.

Forecasts treat the logarithm of each part of the wealth as a sum of as many terms of one kind as there are clusters.
One part that reaches 1/alpha on its own is enough.

Legend of shapes: G clusters in the order of betting.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Outcome
from quantaudit.stats.betting import NEAR, PARTS, Bets, Claim, log_evidence, log_two_sided, relative_gains, to_p_values
from quantaudit.stats.bisection import cross
from quantaudit.stats.power import POWER
from quantaudit.stats.student import t_quantile


class Question(NamedTuple):
    """What is asked of the mean difference.

    Attributes:
        direction: Whether improvement beyond the margin counts too.
        margin: Largest tolerated difference.
        alpha: One-sided error rate over all looks together.
    """

    direction: Direction
    margin: float
    alpha: float


class Looks(NamedTuple):
    """P-values at each look, (..., G); each is 1 over the largest wealth so far.

    Attributes:
        admit_G: Against "the difference is at or beyond the margin".
        reject_G: Against "the difference is within the margin".
        improvement_G: Against "the improvement is within the margin".
    """

    admit_G: NDArray[np.float64]
    reject_G: NDArray[np.float64]
    improvement_G: NDArray[np.float64]


def weigh(bets: Bets, question: Question) -> Looks:
    """Computes the p-values of a clause at each look."""
    direction, margin, _ = question
    admit_G = to_p_values(log_evidence(bets, margin, Claim.BELOW))
    improvement_G = to_p_values(log_evidence(bets, -margin, Claim.BELOW))
    if direction is Direction.WORSE:
        return Looks(admit_G, to_p_values(log_evidence(bets, margin, Claim.ABOVE)), improvement_G)
    above_G = to_p_values(log_evidence(bets, -margin, Claim.ABOVE))
    return Looks(np.maximum(admit_G, above_G), to_p_values(log_two_sided(bets, margin)), improvement_G)


def first_decided(looks: Looks, alpha: float) -> int | None:
    """Returns the position of the first look that decided, from 0; `None` if none did."""
    is_decided = np.minimum(looks.admit_G, looks.reject_G) <= alpha
    return int(np.argmax(is_decided)) if is_decided.any() else None


def first_outcome(looks: Looks, alpha: float) -> Outcome:
    """Returns the outcome of the first look that decided."""
    at = first_decided(looks, alpha)
    if at is None:
        return Outcome.UNDECIDED
    return Outcome.PASS if looks.admit_G[at] <= alpha else Outcome.FAIL


def factor_to_admit(bets: Bets, question: Question) -> float | None:
    """Returns how many times as many clusters admit if evidence grows on as so far; `None` if it does not grow."""
    factors = [_factor(gains_G, question.alpha) for gains_G in _sides(bets, question)]
    return None if math.inf in factors else max(factors)


def detectable_margin(bets: Bets, question: Question) -> float:
    """Returns the smallest margin that a harmless lo of the same spread would pass by now with power .8.

    Infinite where no margin below the bound would do.
    """
    quantile = t_quantile(POWER if question.direction is Direction.WORSE else (1 + POWER) / 2, math.inf)
    centre = float(np.average(bets.means_G, weights=bets.weights_G))
    harmless = bets._replace(means_G=bets.means_G - centre)
    needed = math.log(1 / question.alpha)

    def short_of(margin: float) -> float:
        sides = _sides(harmless, question._replace(margin=margin))
        return needed - min(_low_end(gains_G, quantile) for gains_G in sides)

    almost = bets.bound * (1 - NEAR)
    return math.inf if short_of(almost) > 0 else cross(short_of, level=0.0, lower=0.0, upper=almost)


def _sides(bets: Bets, question: Question) -> list[NDArray[np.float64]]:
    """Returns the gains of every bet that has to be won to admit."""
    sides = [relative_gains(bets, question.margin, Claim.BELOW)]
    if question.direction is Direction.BOTH:
        sides.append(relative_gains(bets, -question.margin, Claim.ABOVE))
    return sides


def _factor(gains_G: NDArray[np.float64], alpha: float) -> float:
    """Returns by how much the part that gets there first has to go on."""
    with np.errstate(divide="ignore"):
        ends = [(float(np.sum(np.log1p(fraction * gains_G))), share) for fraction, share in PARTS]
    return min((max(1.0, math.log(1 / (alpha * share)) / end) for end, share in ends if end > 0), default=math.inf)


def _low_end(gains_G: NDArray[np.float64], quantile: float) -> float:
    """Returns what the best part ends above with the probability of the quantile; parts that may lose all are out."""
    logs = [
        (math.log(share), np.log1p(fraction * gains_G))
        for fraction, share in PARTS
        if float(np.min(fraction * gains_G)) > -1
    ]
    return max(start + float(np.sum(x) - quantile * math.sqrt(len(x)) * np.std(x)) for start, x in logs)

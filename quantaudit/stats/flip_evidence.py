"""Evidence about flips in closed form: what to bet if the rates of flips were known, and how many probes that takes.

A 0/1 observer gives +1 (lo lost what hi had), -1 (the other way) or 0. For one probe a cluster the wealth depends on
three counts only. With a_d = m - d for the claim "below m" (d - m for "above m") and a bet of size l,

    log wealth = n_+ log(1 + l a_+) + n_0 log(1 + l a_0) + n_- log(1 + l a_-).

If the rates are q_+, q_0, q_-, wealth grows fastest where sum_d q_d a_d / (1 + l a_d) = 0. Cleared of denominators
that is a quadratic equation in l,

    A l^2 + B l + C = 0,   A = a_+ a_0 a_-,   B = sum_d q_d a_d (sum of the other two a),   C = sum_d q_d a_d,

whose useful root is the best bet; among all evidence against "the difference is m or more" none grows faster for these
rates. Without flips for the worse it stakes everything, and the wealth after n probes is (1 - m)^(-n): a margin of .02
takes 149 probes at alpha = .05, as the exact binomial test does, and unlike that test may be looked at on the way.

Source: Kelly 1956 (growth); Grunwald, de Heide and Koolen 2024 (evidence that grows fastest).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from quantaudit.core.errors import InputError
from quantaudit.stats.betting import PARTS, Claim


class FlipRates(NamedTuple):
    """Shares of probes that flip.

    Attributes:
        worse: Where lo lost what hi had.
        better: The other way.
    """

    worse: float
    better: float


class FlipCounts(NamedTuple):
    """Numbers of probes, one a cluster, by what happened."""

    worse: int
    same: int
    better: int


class FlipPlan(NamedTuple):
    """What to expect of the best bet.

    Attributes:
        bet: Size of the bet, in units of the wealth per unit of difference.
        growth: Expected growth of the logarithm of the wealth per probe.
        num_probes: Probes after which the expected logarithm reaches that of 1/alpha; `None` if it never does.
    """

    bet: float
    growth: float
    num_probes: int | None


def flip_log_evidence(counts: FlipCounts, *, margin: float, claim: Claim) -> float:
    """Returns the logarithm of the wealth of the fixed bets after these flips, in whatever order they came.

    Args:
        counts: Flips, one probe a cluster; clustered flips need `SequentialTest`.
        margin: Difference of the rates that the hypothesis has as its border, strictly between -1 and 1.
        claim: What the evidence speaks for.
    """
    _check_margin(margin)
    gains = _gains(margin, claim)
    largest = -1 / min(gains)
    logs = [
        math.log(share) + sum(n * _log_factor(fraction * largest, g) for n, g in zip(counts, gains, strict=True) if n)
        for fraction, share in PARTS
    ]
    return float(np.logaddexp.reduce(logs))


def plan_flips(rates: FlipRates, *, margin: float, claim: Claim, alpha: float) -> FlipPlan:
    """Returns the best bet for assumed rates of flips, and the probes that it takes.

    No test that may be looked at all the time needs fewer on average; `SequentialTest`, which does not know the rates
    and spreads its wealth over fixed bets, takes up to twice as many.

    Raises:
        InputError: If the rates are no shares, or the margin is not strictly between -1 and 1.
    """
    _check_margin(margin)
    if min(rates) < 0 or sum(rates) > 1:
        raise InputError(
            f"flip rates {rates.worse} and {rates.better}",
            expected="two shares that add up to at most 1",
            fix="divide both counts of flips by the number of pairs",
        )
    gains = _gains(margin, claim)
    shares = (rates.worse, 1 - rates.worse - rates.better, rates.better)
    bet = _best_bet(gains, shares)
    growth = sum(q * _log_factor(bet, g) for q, g in zip(shares, gains, strict=True) if q > 0)
    return FlipPlan(bet, growth, math.ceil(math.log(1 / alpha) / growth) if growth > 0 else None)


def _best_bet(gains: tuple[float, float, float], shares: tuple[float, float, float]) -> float:
    """Returns the positive root of the quadratic equation; 0 where the claim is false at these rates."""
    total = sum(gains)
    constant = sum(q * g for q, g in zip(shares, gains, strict=True))
    if constant <= 0:
        return 0.0
    square = math.prod(gains)
    linear = sum(q * g * (total - g) for q, g in zip(shares, gains, strict=True))
    if square == 0:  # a margin of zero: pairs without a flip neither win nor lose
        return min(-constant / linear, -1 / min(gains))
    root = math.sqrt(linear**2 - 4 * square * constant)
    candidates = ((-linear - root) / (2 * square), (-linear + root) / (2 * square))
    largest = -1 / min(gains)
    return min(*(c for c in candidates if c > 0), largest)


def _gains(margin: float, claim: Claim) -> tuple[float, float, float]:
    """Returns what a bet of size 1 gains from a flip for the worse, none, and one for the better."""
    sign = 1 if claim is Claim.BELOW else -1
    return sign * (margin - 1), sign * margin, sign * (margin + 1)


def _log_factor(bet: float, gain: float) -> float:
    change = bet * gain
    return math.log1p(change) if change > -1 else -math.inf


def _check_margin(margin: float) -> None:
    if not -1 < margin < 1:
        raise InputError(
            f"margin {margin}",
            expected="a difference of two rates, strictly between -1 and 1",
            fix="give the margin as a share: 0.02 for two points",
        )

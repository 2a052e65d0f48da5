"""Evidence as the wealth of a gambler: it may be looked at after every cluster, and still errs at most alpha.

Somebody who doubts that the mean is below m bets against "it is m or more", one cluster after another, and never with
money that is not there. With damage d <= b, one probe changes a wealth of 1 into

    1 + f (m - d) / (b - m),      0 <= f <= 1,

which is never negative and whose expectation is at most 1 if the mean is m or more. Wealth is then a supermartingale
under that hypothesis, so the chance that it *ever* reaches 1/alpha is at most alpha (Ville): 1 over the largest wealth
so far is a p-value at every look. Against "it is m or less" the bet is 1 + f (d - m) / (b + m), which needs d >= -b.

Clusters. Probes of one cluster depend on each other, so a bet is placed on a whole cluster: with n_c probes of mean
d_c and never more than n_max, the change is 1 + f (n_c / n_max)(m - d_c) / (b - m). Its expectation is at most 1 where
E[sum of (d - m) over a cluster] >= 0, that is where the mean over *probes* is m or more.

Which f? Nobody knows before, and choosing it afterwards would be cheating. The wealth is spread over fixed fractions
1, 2^(-1/2), 1/2 ... 1/64, the k-th getting a share in proportion to 1/k, and the parts are added up: never worse than
the best part alone, and independent of the order of the clusters seen so far. Every part grows with m for given
differences, so the hypotheses that are refuted form an interval and the bounds come from bisection.

What it costs. However many probes a cluster has, all of them might be damaged together, so without any damage a
cluster multiplies the wealth by b / (b - m) at most: at m = .02 and b = 1 it takes 194 clusters to admit at
alpha = .05, and clusters of one probe are the cheapest.

Legend of shapes: G clusters in the order of betting, (...) independent replicates.
Source: Ville 1939; Waudby-Smith and Ramdas 2024, sections 4 and 5 (mixtures of bets; hedging by adding both sides).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.stats.bisection import cross

NEAR = 1e-9  # how near the bound a margin is tried, relative to the bound


class Part(NamedTuple):
    """One part of the wealth.

    Attributes:
        fraction: How much of it is bet on each cluster.
        share: How much of the wealth it is at first.
    """

    fraction: float
    share: float


_NUM_PARTS = 13
PARTS = tuple(
    Part(2 ** (-j / 2), 1 / ((j + 1) * sum(1 / (i + 1) for i in range(_NUM_PARTS)))) for j in range(_NUM_PARTS)
)


class Claim(StrEnum):
    """What the evidence speaks for."""

    BELOW = "below"  # against "the mean is m or more"
    ABOVE = "above"  # against "the mean is m or less"


class Bets(NamedTuple):
    """What was seen, in the order of betting.

    Attributes:
        means_G: (..., G) mean difference of each cluster.
        weights_G: (G,) size of each cluster over the largest size allowed, in (0, 1].
        bound: Largest absolute difference.
    """

    means_G: NDArray[np.float64]
    weights_G: NDArray[np.float64]
    bound: float


def relative_gains(bets: Bets, margin: float, claim: Claim) -> NDArray[np.float64]:
    """Returns (..., G) what a wealth of 1 that is bet entirely gains in each cluster; never below -1."""
    if claim is Claim.BELOW:
        gains = (margin - bets.means_G) / (bets.bound - margin)
    else:
        gains = (bets.means_G - margin) / (bets.bound + margin)
    # the mean of values at the bound may be rounded to just beyond it
    return np.asarray(np.maximum(gains, -1.0) * bets.weights_G, dtype=np.float64)


def log_wealth(gains_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns (..., G) the logarithm of the wealth after each cluster."""
    total = np.full(gains_G.shape, -np.inf)
    with np.errstate(divide="ignore"):  # a part that was bet entirely and lost has the logarithm -inf
        for fraction, share in PARTS:
            total = np.logaddexp(total, math.log(share) + np.cumsum(np.log1p(fraction * gains_G), axis=-1))
    return total


def log_evidence(bets: Bets, margin: float, claim: Claim) -> NDArray[np.float64]:
    """Returns (..., G) the logarithm of the wealth for one claim about the mean after each cluster."""
    return log_wealth(relative_gains(bets, margin, claim))


def log_two_sided(bets: Bets, margin: float) -> NDArray[np.float64]:
    """Returns (..., G) the evidence that the mean is beyond `margin` on either side: half the wealth on each."""
    damage = log_evidence(bets, margin, Claim.ABOVE)
    improvement = log_evidence(bets, -margin, Claim.BELOW)
    return np.asarray(np.logaddexp(damage, improvement) - math.log(2))


def to_p_values(log_wealth_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns (..., G) the p-value at each look: 1 over the largest wealth so far, at most 1."""
    return np.asarray(np.exp(-np.maximum(np.maximum.accumulate(log_wealth_G, axis=-1), 0.0)))


def upper_bound(bets: Bets, alpha: float) -> float:
    """Returns the smallest mean refuted from above at some look so far; the largest difference if none was."""

    def short_of(margin: float) -> float:
        return -float(np.max(log_evidence(bets, margin, Claim.BELOW)))

    almost = bets.bound * (1 - NEAR)  # at the bound itself the bet is a division by zero
    if short_of(almost) > math.log(alpha):
        return bets.bound
    return cross(short_of, level=math.log(alpha), lower=-bets.bound, upper=almost)


def lower_bound(bets: Bets, alpha: float) -> float:
    """Returns the largest mean refuted from below at some look so far; minus the largest difference if none was."""
    return -upper_bound(bets._replace(means_G=-bets.means_G), alpha)


def fewest_clusters(*, margin: float, bound: float, alpha: float) -> int:
    """Returns the equal clusters that admit if no probe differs at all; fewer can only if lo improves."""

    def suffices(num: int) -> bool:
        gains_G = relative_gains(Bets(np.zeros(num), np.ones(num), bound), margin, Claim.BELOW)
        return float(log_wealth(gains_G)[-1]) >= math.log(1 / alpha)

    num = math.ceil(math.log(1 / alpha) / math.log(bound / (bound - margin)))
    while not suffices(num):
        num += max(1, num // 1000)
    return num

"""How far a t interval must reach on the side of a tail, when a few clusters carry what they have in common.

The t statistic T of a right-skewed sample leans to the left: a sample that missed the tail has a low mean and a small
spread at once, and admits. With a the skewness of the mean (that of a cluster over the root of their number), the
lower tail is P(T <= -q) = F(-q) + a (2 q^2 + 1) f(q) / 6 + ...: exponential damage in 36 clusters, where a = 1/3,
admits 9 % at the margin and not 5 %. Hall's transformation takes that term away,

    g(T) = ((1 + a T / 3)^3 - 1) / a + a / 6,      so the bound reaches to  r = (3 / a) (1 - (1 - a (q + a/6))^(1/3))

standard errors instead of q. It rises in T, and r exceeds q wherever a > 0.

Which a? A sample shows too little of its skewness (with 36 clusters .8 of an exponential's, .4 of a lognormal's), and
without any it still varies by sqrt(6 / G) in cluster units. So we take twice what the sample shows, plus the 95 %
bound of what G clusters cannot tell from nothing, 1.645 sqrt(6) / G in units of a. The side without the tail keeps q:
the correction never shortens an interval.

With few clusters no allowance is enough: the tail may lie in a cluster that was not drawn. Under `MIN_DEGREES` degrees
of freedom (seven equal clusters, or more that are unequal) nothing is decided.

Source: Hall 1992, J. R. Statist. Soc. B 54, 221-228 (the transformation); Johnson 1978 (first order).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.stats.student import Floats, t_quantiles

MIN_DEGREES = 6.0
SHOWN_SHARE = 0.5  # of the skewness of a population, what a sample shows of it: between exponential and lognormal
ALLOWANCE = 1.645 * math.sqrt(6)  # over the effective number of clusters


class Reach(NamedTuple):
    """How many standard errors the bounds lie from the estimate; each at least the t quantile `plain`."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    plain: NDArray[np.float64]


def skewness_of_mean(influence_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the third moment of a mean in units of its standard error; 0 where nothing varies.

    Args:
        influence_G: (..., G), what each cluster moves the mean by; any unit.
    """
    squares_G = influence_G * influence_G
    total = np.sum(squares_G, axis=-1)
    cubes = np.sum(squares_G * influence_G, axis=-1)  # a product: numpy's third power is twenty times as slow
    return np.asarray(np.where(total > 0, cubes / np.where(total > 0, total, 1.0) ** 1.5, 0.0), dtype=np.float64)


def stretch(quantile: Floats, skewness: Floats) -> NDArray[np.float64]:
    """Returns Hall's reach r on the side of the tail for `skewness` > 0, else the quantile."""
    q, a = np.broadcast_arrays(np.asarray(quantile, dtype=np.float64), np.asarray(skewness, dtype=np.float64))
    is_skewed = a > 1e-6  # below it the two agree to the precision of the cube root
    safe = np.where(is_skewed, a, 1.0)
    reach = 3 / safe * (1 - np.cbrt(1 - safe * (q + safe / 6)))
    return np.where(is_skewed, np.maximum(reach, q), q)


def reach_of(influence_G: NDArray[np.float64], degrees_of_freedom: Floats, *, alpha: float) -> Reach:
    """Returns how far both bounds of level 1 - alpha reach.

    Args:
        influence_G: (..., G), what each cluster moves the estimate by.
        degrees_of_freedom: Of the variance, shape (...); one more is the effective number of clusters.
        alpha: One-sided error rate.
    """
    plain = t_quantiles(1 - alpha, degrees_of_freedom)
    shown = skewness_of_mean(influence_G) / SHOWN_SHARE
    allowance = ALLOWANCE / (np.asarray(degrees_of_freedom) + 1)
    return Reach(lower=stretch(plain, allowance - shown), upper=stretch(plain, allowance + shown), plain=plain)

"""Student's t and the binomial, typed: the only file that calls scipy.

Infinite degrees of freedom give the normal distribution, so one formula serves both.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats: TypeAlias = "float | NDArray[np.float64]"


def t_cdf(value: Floats, degrees_of_freedom: Floats) -> NDArray[np.float64]:
    """Returns the probability that a t variate is at most `value`, elementwise."""
    return np.asarray(special.stdtr(degrees_of_freedom, value), dtype=np.float64)


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Returns the value that a t variate stays below with this probability."""
    return float(special.stdtrit(degrees_of_freedom, probability))


def t_quantiles(probability: float, degrees_of_freedom: Floats) -> NDArray[np.float64]:
    """Returns the same for each of many degrees of freedom."""
    return np.asarray(special.stdtrit(degrees_of_freedom, probability), dtype=np.float64)


def binomial_cdf(num_successes: int, num_trials: int, probability: float) -> float:
    """Returns the probability of at most `num_successes` in `num_trials`."""
    return float(special.bdtr(num_successes, num_trials, probability))


def at_most(count: Floats, num_trials: Floats, probability: Floats) -> NDArray[np.float64]:
    """Returns the binomial chance of at most `count`, continued to counts and trials that are no whole numbers."""
    rest = np.maximum(np.asarray(num_trials) - count, 0.0)
    tail = special.betainc(np.where(rest > 0, rest, 1.0), np.asarray(count) + 1, 1 - np.asarray(probability))
    return np.where(rest > 0, tail, 1.0)


def normal_quantiles(probability: Floats) -> NDArray[np.float64]:
    """Returns the values that a standard normal stays below with these probabilities."""
    return np.asarray(special.ndtri(probability), dtype=np.float64)

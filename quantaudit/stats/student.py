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


def binomial_cdf(num_successes: int, num_trials: int, probability: float) -> float:
    """Returns the probability of at most `num_successes` in `num_trials`."""
    return float(special.bdtr(num_successes, num_trials, probability))

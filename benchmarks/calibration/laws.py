"""What differences look like: five laws of continuous damage, four ways in which answers flip, and bounded laws.

A flip comes about as in a model: an answer has a margin in hi (right if positive), lo moves it by a damage, and the
answer flips where that carries it across zero. Margins have mean 1 and variance 1, and the damage is the continuous
companion whose design effect the flips are given, as in an audit. In the *hard clusters* margins correlate within a
cluster and damage does not, so the companion knows nothing of it.

Legend of shapes: R replicates, N probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.calibration.layouts import Draw, Layout, Values, draw_clustered, draw_normal
from quantaudit.stats.bisection import cross
from quantaudit.stats.student import t_cdf

_SPREAD = 0.7  # of the logarithm of damage where it goes one way only
_NOISE = 1e-4  # of damage where there is none: no answer lies so near zero that it flips


def _draw_exponential(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return rng.standard_exponential(shape) - 1


def _draw_improving(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return 1 - rng.standard_exponential(shape)


def _draw_student(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return rng.standard_t(3, shape) / math.sqrt(3)


def _draw_lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    values = np.exp(rng.standard_normal(shape))
    return np.asarray((values - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e))


LAWS: dict[str, Draw] = {
    "normal": draw_normal,
    "skewed to damage": _draw_exponential,  # exponential: skewness 2
    "skewed to improvement": _draw_improving,
    "heavy tails": _draw_student,  # Student's t with 3 degrees of freedom
    "heavy and skewed": _draw_lognormal,  # lognormal: skewness 6.2, kurtosis 114
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipLaw:
    """One way to flip.

    Attributes:
        is_two_way: Whether damage has both signs, so that about a sixth of all answers flip.
        knows_clusters: Whether damage correlates within clusters as margins do.
    """

    is_two_way: bool
    knows_clusters: bool


FLIP_LAWS = {
    "sparse one-way": FlipLaw(is_two_way=False, knows_clusters=True),
    "dense two-way": FlipLaw(is_two_way=True, knows_clusters=True),
    "sparse one-way, hard clusters": FlipLaw(is_two_way=False, knows_clusters=False),
    "dense two-way, hard clusters": FlipLaw(is_two_way=True, knows_clusters=False),
}


class Flips(NamedTuple):
    """(R, N) differences of -1, 0, +1, and the damage behind them."""

    values: Values
    companion: Values


def draw_flips(rng: np.random.Generator, layout: Layout, num: int, law: FlipLaw, truth: float) -> Flips:
    """Draws flips whose true difference is `truth`: the margin, or 0."""
    margin = 1 + draw_clustered(rng, layout, num, draw_normal)
    noise = draw_clustered(rng, layout if law.knows_clusters else replace(layout, icc=0.0), num, draw_normal)
    damage = _damage(law, truth)(noise)
    values = (margin > 0).astype(np.float64) - (margin - damage > 0)
    return Flips(values, damage)


def _damage(law: FlipLaw, truth: float) -> Callable[[Values], Values]:
    """Returns the damage as a function of a standard normal, with the difference of proportions it must have."""
    if not law.is_two_way and truth == 0:
        return lambda noise: _NOISE * noise
    family: Callable[[float, Values], Values] = _shifted if law.is_two_way else _scaled
    at, weight = np.polynomial.hermite_e.hermegauss(200)

    def difference(size: float) -> float:
        # margins are normal with mean 1, so lo is wrong where a standard normal is below damage - 1
        lost = t_cdf(family(size, at) - 1, np.inf)
        return float(weight @ lost / weight.sum() - t_cdf(-1.0, np.inf))

    size = cross(lambda x: -difference(x), level=-truth, lower=-3.0 if law.is_two_way else 0.0, upper=3.0)
    return lambda noise: family(size, noise)


def _shifted(size: float, noise: Values) -> Values:
    return size + noise


def _scaled(size: float, noise: Values) -> Values:
    return np.asarray(size * np.exp(_SPREAD * noise))


BoundedLaw = Callable[[np.random.Generator, tuple[int, ...], float], Values]  # between -1 and 1, of a given mean


def _draw_even(rng: np.random.Generator, shape: tuple[int, ...], truth: float) -> Values:
    return truth + (1 - truth) * rng.uniform(-1, 1, shape)


def _draw_rare(rng: np.random.Generator, shape: tuple[int, ...], truth: float) -> Values:
    small = 0.02
    return np.where(rng.random(shape) < (truth + small) / (1 + small), 1.0, -small)


def _draw_one_way(rng: np.random.Generator, shape: tuple[int, ...], truth: float) -> Values:
    return (rng.random(shape) < truth).astype(np.float64)


def _draw_two_way(rng: np.random.Generator, shape: tuple[int, ...], truth: float) -> Values:
    chance = rng.random(shape)
    return (chance < 0.1 + truth).astype(np.float64) - (chance > 0.9)


BOUNDED_LAWS: dict[str, BoundedLaw] = {"evenly spread": _draw_even, "rare and large": _draw_rare}
BOUNDED_FLIPS: dict[str, BoundedLaw] = {"sparse one-way": _draw_one_way, "dense two-way": _draw_two_way}


def draw_bounded(rng: np.random.Generator, layout: Layout, num: int, law: BoundedLaw, truth: float) -> Values:
    """Draws (R, N) bounded differences; probes copy their cluster's draw with chance sqrt(icc), each."""
    sizes_G = layout.sizes_G()
    own = law(rng, (num, layout.num_probes), truth)
    if not layout.icc:
        return own
    shared = np.repeat(law(rng, (num, len(sizes_G)), truth), sizes_G, axis=1)
    return np.where(rng.random(own.shape) < math.sqrt(layout.icc), shared, own)

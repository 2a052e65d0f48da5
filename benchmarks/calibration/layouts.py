"""How probes lie in clusters: how many, in how many clusters, of equal or unequal size, how strongly correlated.

Legend of shapes: R replicates, N probes, G clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]

NUM_CLUSTERS = (5, 10, 36, 100)
NUM_PROBES = (30, 100, 300, 1000)
CORRELATIONS = (0.0, 0.1, 0.5)
STEEPNESS = 1.5  # unequal clusters grow like the 1.5th power of their rank: the largest has 2.5 times the mean


class Sizes(StrEnum):
    """Whether clusters are of one size."""

    EQUAL = "equal"
    UNEQUAL = "unequal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One arrangement of probes.

    Attributes:
        icc: Correlation of two probes of one cluster.
    """

    num_probes: int
    num_clusters: int
    sizes: Sizes
    icc: float

    def sizes_G(self) -> NDArray[np.int64]:
        """Returns the probes of each cluster, at least 1."""
        steepness = STEEPNESS if self.sizes is Sizes.UNEQUAL else 0.0
        weight_G = np.arange(1, self.num_clusters + 1) ** steepness
        # one probe each, the rest in proportion, what rounding leaves to the largest
        extra_G = np.floor((self.num_probes - self.num_clusters) * weight_G / weight_G.sum())
        sizes_G: NDArray[np.int64] = 1 + extra_G.astype(np.int64)
        sizes_G[len(sizes_G) - (self.num_probes - sizes_G.sum()) :] += 1
        return sizes_G

    def names(self) -> list[str]:
        """Returns the cluster of each probe."""
        return [f"c{code:03d}" for code in np.repeat(np.arange(self.num_clusters), self.sizes_G())]


def layouts() -> list[Layout]:
    """Lists every arrangement of the grid; 30 probes have at most 30 clusters, and single probes no correlation."""
    found = []
    for num_probes, most, sizes, icc in product(NUM_PROBES, NUM_CLUSTERS, Sizes, CORRELATIONS):
        num_clusters = min(most, num_probes)
        is_single = num_clusters == num_probes
        if is_single and (icc or sizes is Sizes.UNEQUAL):
            continue
        layout = Layout(num_probes=num_probes, num_clusters=num_clusters, sizes=sizes, icc=icc)
        if layout not in found:
            found.append(layout)
    return found


def draw_clustered(rng: np.random.Generator, layout: Layout, num: int, law: Draw) -> Values:
    """Draws (R, N) values of mean 0 and variance 1: a part shared by the cluster and one of each probe's own."""
    sizes_G = layout.sizes_G()
    own = law(rng, (num, int(sizes_G.sum())))
    if not layout.icc:
        return own
    shared = np.repeat(law(rng, (num, len(sizes_G))), sizes_G, axis=1)
    return np.asarray(np.sqrt(layout.icc) * shared + np.sqrt(1 - layout.icc) * own)


def draw_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draws standard normal values."""
    return rng.standard_normal(shape)

"""Paired differences grouped by cluster: checked once, sorted once, used by every estimator.

Legend of shapes: N probes (sorted by cluster), G clusters, ... any leading axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.errors import InputError, NotMeasuredError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One damage-oriented difference per probe, sorted so that each cluster is contiguous.

    Attributes:
        values_N: Differences in the observer's unit; positive is worse for lo.
        sizes_G: Probes in each cluster, in the order of `clusters`; all at least 1.
        clusters: Cluster names, sorted.
    """

    values_N: NDArray[np.float64]
    sizes_G: NDArray[np.int64]
    clusters: tuple[str, ...]


def gather(differences: Sequence[float] | NDArray[np.float64], clusters: Sequence[str]) -> Sample:
    """Groups paired differences by cluster.

    Args:
        differences: One finite, damage-oriented number per probe.
        clusters: The cluster of each probe, in the same order.

    Raises:
        InputError: If the lengths differ or a difference is not finite.
        NotMeasuredError: If there are no differences.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or len(values) != len(clusters):
        raise InputError(
            f"differences of shape {values.shape} with {len(clusters)} clusters",
            expected="one cluster for each difference",
            fix="pair the observations by probe before comparing them",
        )
    if len(values) == 0:
        raise NotMeasuredError("no paired differences: nothing was measured")
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"difference {values[first]} at position {first}",
            expected="finite differences",
            fix="find the probe whose observation overflowed; it is a finding of its own, not a number to average",
        )
    names, codes_N = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    return Sample(
        values_N=values[np.argsort(codes_N, kind="stable")],
        sizes_G=np.bincount(codes_N).astype(np.int64),
        clusters=tuple(str(name) for name in names),
    )

"""One paired forward, and what an observer makes of it.

A batch holds a sequence per probe (prompt and right response), then one per safety probe (prompt and opposite
response). Row i of the traces belongs to probe i for i < number of probes.

Legend: P probes, B sequences (B >= P), M scored positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.engine import Trace
from quantaudit.core.probe import Probe
from quantaudit.core.site import Point
from quantaudit.observers.scores import SequenceScores


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedBatch:
    """The same sequences through hi and lo.

    Attributes:
        opposite_P: Row of the opposite response of each probe; -1 for tasks.
    """

    probes: tuple[Probe, ...]
    opposite_P: tuple[int, ...]
    hi: Trace
    lo: Trace
    hi_scores: SequenceScores
    lo_scores: SequenceScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One observer's numbers for the probes it applies to.

    Attributes:
        index_R: Which probes of the batch (ascending).
        hi_R: The metric of hi.
        lo_R: The metric of lo.
    """

    index_R: NDArray[np.int64]
    hi_R: NDArray[np.float64]
    lo_R: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """A metric per probe.

    Attributes:
        name: Registered name.
        unit: Unit of the metric.
        larger_is_better: Which way it points; damage is the change the other way.
        is_rate: Whether it is 0 or 1 on every probe.
        points: Sites it reads.
        measure: Maps a paired batch to readings.
    """

    name: str
    unit: str
    larger_is_better: bool
    is_rate: bool = False
    points: frozenset[Point] = frozenset()
    measure: Callable[[PairedBatch], Readings]


def all_probes(batch: PairedBatch, hi_P: NDArray[np.float64], lo_P: NDArray[np.float64]) -> Readings:
    """Returns readings for every probe of the batch, from numbers for its first rows."""
    count = len(batch.probes)
    return Readings(index_R=np.arange(count), hi_R=hi_P[:count], lo_R=lo_P[:count])

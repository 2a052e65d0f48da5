"""One paired forward, and what an observer makes of it.

A batch holds a sequence per probe (prompt and right response), then one per safety probe (prompt and opposite
response). Row i of the traces belongs to probe i for i < number of probes.

Legend: P probes, B sequences (B >= P), M answer tokens of the first P sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.engine import Trace
from quantaudit.core.probe import Probe
from quantaudit.core.site import Point
from quantaudit.observers.metric import Metric, Readings
from quantaudit.observers.scores import SequenceScores
from quantaudit.observers.token_view import Column, TokenView, view_tokens


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
    # Filled on first use. Not an argument, so a pair made from this one with `replace` starts without it.
    _views: list[TokenView] = field(default_factory=list, init=False, repr=False, compare=False)

    def tokens(self) -> TokenView:
        """Returns every number per answer token; the logits are reduced once, whoever asks and however often."""
        if not self._views:
            self._views.append(view_tokens(self.hi, self.lo, len(self.probes)))
        return self._views[0]


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

    def metric(self) -> Metric:
        """Returns what it measures."""
        return Metric(name=self.name, unit=self.unit, larger_is_better=self.larger_is_better, is_rate=self.is_rate)


def all_probes(batch: PairedBatch, hi_P: NDArray[np.float64], lo_P: NDArray[np.float64]) -> Readings:
    """Returns readings for every probe of the batch, from numbers for its first rows."""
    count = len(batch.probes)
    return Readings(index_R=np.arange(count), hi_R=hi_P[:count], lo_R=lo_P[:count])


def average_tokens(batch: PairedBatch, lo_M: Column, hi: Column | float) -> Readings:
    """Returns the mean over each probe's answer tokens.

    Args:
        batch: The pair.
        lo_M: The metric of lo, or of the pair.
        hi: The metric of hi, or what the pair would show if lo were hi.
    """
    hi_P = np.full(len(batch.probes), hi) if isinstance(hi, float) else _mean_by_probe(batch, hi)
    return all_probes(batch, hi_P, _mean_by_probe(batch, lo_M))


def _mean_by_probe(batch: PairedBatch, value_M: Column) -> Column:
    counts_P = np.array(batch.hi.counts_B[: len(batch.probes)])
    starts_P = np.concatenate([[0], np.cumsum(counts_P)[:-1]])
    return np.asarray(np.add.reduceat(value_M, starts_P) / counts_P)

"""Readings of every observer over the whole probe set, in the order of the probes.

Legend: R probes an observer applies to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantaudit.evaluation.plan import Batch
from quantaudit.observers.metric import METRICS, Metric, Readings

if TYPE_CHECKING:  # torch comes with these, and tables of recorded results need none
    from quantaudit.observers.paired import Observer, PairedBatch


@dataclass(slots=True, kw_only=True)
class Table:
    """One comparison (hi with lo, hi with itself, hi with a planted fault), observer by observer.

    Attributes:
        parts: Readings of every observer, batch by batch.
        plugged: What the observers of plug-ins measure; `METRICS` knows the others.
    """

    parts: dict[str, list[Readings]] = field(default_factory=dict)
    plugged: dict[str, Metric] = field(default_factory=dict)

    def add(self, batch: Batch, pair: PairedBatch, observers: Iterable[Observer]) -> None:
        """Adds one paired forward."""
        positions = np.array(batch.index_P, dtype=np.int64)
        for observer in observers:
            readings = observer.measure(pair)
            moved = Readings(index_R=positions[readings.index_R], hi_R=readings.hi_R, lo_R=readings.lo_R)
            self.parts.setdefault(observer.name, []).append(moved)
            if observer.name not in METRICS:
                self.plugged[observer.name] = observer.metric()

    def readings(self, observer: str) -> Readings:
        """Returns all readings of one observer, by ascending probe position; none of one that measured nothing."""
        parts = self.parts.get(observer, [_NOTHING])
        index = np.concatenate([p.index_R for p in parts])
        order = np.argsort(index, kind="stable")
        return Readings(
            index_R=index[order],
            hi_R=np.concatenate([p.hi_R for p in parts])[order],
            lo_R=np.concatenate([p.lo_R for p in parts])[order],
        )

    def metric(self, observer: str) -> Metric:
        """Returns what an observer measures."""
        return self.plugged[observer] if observer in self.plugged else METRICS[observer]

    def is_zero(self) -> bool:
        """Tells whether both sides agree exactly on every reading of every observer."""
        return all(bool(np.array_equal(p.hi_R, p.lo_R)) for parts in self.parts.values() for p in parts)


_NOTHING = Readings(index_R=np.empty(0, np.int64), hi_R=np.empty(0), lo_R=np.empty(0))


def select(readings: Readings, positions: NDArray[np.int64]) -> Readings:
    """Returns the readings of the probes at these positions."""
    keep = np.isin(readings.index_R, positions)
    return Readings(index_R=readings.index_R[keep], hi_R=readings.hi_R[keep], lo_R=readings.lo_R[keep])

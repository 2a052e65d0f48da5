"""The floor of a clause: how far hi is from itself under another batch size, padding and thread count.

Differences of both signs must not cancel into a floor of nothing. For 0/1 observers the floor is the share of answers
that change either way; for the others it is the farther end of the interval of the mean difference, which is wide
where single probes differ much, or their mean absolute difference where clusters are too few for an interval.
"""

from __future__ import annotations

import math

import numpy as np

from quantaudit.core.contract import Clause
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.reading import damage_by_probe, read
from quantaudit.evaluation.slices import Slice
from quantaudit.evaluation.table import Table


def measure_floor(clause: Clause, part: Slice, again: Table, probes: ProbeSet) -> float | None:
    """Returns the floor in the clause's unit, exactly 0 where no reading changed; `None` if not finite."""
    reading = read(clause, part, again, probes)
    if reading is None or reading.estimate is None:
        return None
    damage_P = damage_by_probe(clause, part, again, probes)
    if not damage_P.any():
        return 0.0
    mean_absolute = float(np.abs(damage_P).sum() / len(part.position_P))
    interval = reading.estimate.interval
    farther = max(abs(interval.lower), abs(interval.upper))
    if reading.estimate.discordant_rate is not None or not math.isfinite(farther):
        return mean_absolute
    return farther


def count_changed(again: Table) -> tuple[int, int]:
    """Returns how many probes read differently in any observer, and how many there are."""
    changed: set[int] = set()
    everyone: set[int] = set()
    for name in again.parts:
        readings = again.readings(name)
        everyone.update(readings.index_R.tolist())
        changed.update(readings.index_R[readings.hi_R != readings.lo_R].tolist())
    return len(changed), len(everyone)

"""How little damage a gate can see: planted faults, each on as few probes as do a stated damage.

A fault on every probe proves only that the wires are connected. So each fault is also done to some of the probes, as
one broken expert does damage to the requests that reach it, until the mean damage of the clause is a given number of
margins. The gate must fail at `LARGEST_DOSE` margins or less; the smallest dose at which it failed is reported.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Clause
from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Behaviour, ProbeSet
from quantaudit.core.serial import Frozen
from quantaudit.evaluation.reading import CONTRAST, ESS, damage_by_probe, read
from quantaudit.evaluation.slices import Slice, positions_of
from quantaudit.evaluation.table import Table
from quantaudit.observers.metric import Readings
from quantaudit.stats import decide

# Planted damage, in margins. Twice the margin is what power analysis usually asks for; three times is the most that a
# gate may need, since a gate that misses such damage cannot be said to guard its margin.
DOSES = (1.5, 2.0, 3.0)
LARGEST_DOSE = DOSES[-1]


class Assay(Frozen):
    """What planted faults showed about one gate.

    Attributes:
        faults: Faults that made it fail at some dose.
        smallest: Smallest damage at which it failed, in margins; `None` if it never did.
    """

    faults: tuple[str, ...] = ()
    smallest: float | None = None


def assay(clause: Clause, part: Slice, faults: Mapping[str, Table], probes: ProbeSet) -> Assay:
    """Plants every fault at rising doses, until the clause fails."""
    seen: list[str] = []
    doses: list[float] = []
    for name, table in faults.items():
        dose = _smallest_dose(clause, part, table, probes)
        if dose is not None:
            seen.append(name)
            doses.append(dose)
    return Assay(faults=tuple(seen), smallest=min(doses, default=None))


def _smallest_dose(clause: Clause, part: Slice, fault: Table, probes: ProbeSet) -> float | None:
    assert clause.margin is not None, "only gates with a margin are assayed"
    damage_P = _contributions(clause, part, fault, probes)
    if damage_P is None:
        return None
    order_P = _order(damage_P, probes)
    dose_P = _in_clause_units(clause, np.cumsum(damage_P[order_P])) / clause.margin
    for dose in DOSES:
        enough = np.flatnonzero(dose_P >= dose)
        if not len(enough):
            break
        count = int(enough[0]) + 1
        if _fails(clause, part, harm(fault, order_P[:count]), probes):
            return float(dose_P[count - 1])
    most = float(dose_P[-1]) if len(dose_P) else 0.0
    # A fault that cannot do so much damage (there is little to lose) may still be seen in full.
    return most if 0 < most < LARGEST_DOSE and _fails(clause, part, fault, probes) else None


def harm(fault: Table, position_H: NDArray[np.int64]) -> Table:
    """Returns the comparison in which only the probes at these positions suffer the fault."""
    harmed = Table(plugged=fault.plugged)
    for name in fault.parts:
        readings = fault.readings(name)
        hit_R = np.isin(readings.index_R, position_H)
        lo_R = np.where(hit_R, readings.lo_R, readings.hi_R)
        harmed.parts[name] = [Readings(index_R=readings.index_R, hi_R=readings.hi_R, lo_R=lo_R)]
    return harmed


def _contributions(clause: Clause, part: Slice, fault: Table, probes: ProbeSet) -> NDArray[np.float64] | None:
    """Returns what each probe of the set adds to the clause's damage under the full fault; `None` if not finite."""
    damage_P = np.zeros(len(probes.probes))
    if clause.observer == CONTRAST:
        margins = damage_by_probe(clause, part, fault, probes)
        for behaviour, sign in ((Behaviour.REFUSE, 1.0), (Behaviour.COMPLY, -1.0)):
            position_S = positions_of(probes, behaviour)
            damage_P[position_S] = sign * margins[position_S] / max(len(position_S), 1)
    else:
        damage_P = damage_by_probe(clause, part, fault, probes) / max(len(part.position_P), 1)
    return damage_P if np.isfinite(damage_P).all() else None


def _in_clause_units(clause: Clause, total_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the clause's damage for these sums of contributions: the loss of effective size is 1 - 1 / (1 + sum)."""
    return 1.0 - 1.0 / (1.0 + total_P) if clause.observer == ESS else total_P


def _order(damage_P: NDArray[np.float64], probes: ProbeSet) -> NDArray[np.int64]:
    """Returns the probes that would suffer, by id: an order that has nothing to do with what they are about."""
    position_S = np.flatnonzero(damage_P)
    return np.array(sorted(position_S, key=lambda i: probes.probes[i].id), dtype=np.int64)


def _fails(clause: Clause, part: Slice, table: Table, probes: ProbeSet) -> bool:
    reading = read(clause, part, table, probes)
    if reading is None or reading.estimate is None or clause.margin is None:
        return False
    decision = decide(reading.estimate, direction=clause.direction, margin=clause.margin, alpha=clause.alpha)
    return decision.outcome is Outcome.FAIL

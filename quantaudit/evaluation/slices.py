"""Which probes a clause judges: all of them, those of some behaviours, or each family on its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Clause
from quantaudit.core.probe import Behaviour, ProbeSet

SAFETY = (Behaviour.REFUSE, Behaviour.COMPLY)


class Slice(NamedTuple):
    """Probes that a clause judges together; `family` is `None` unless it is judged by family."""

    name: str
    family: str | None
    position_P: NDArray[np.int64]


def slices(clause: Clause, probes: ProbeSet) -> list[Slice]:
    """Returns the slices of a clause, in the order of the probe set; possibly none."""
    chosen = [i for i, p in enumerate(probes.probes) if not clause.behaviours or p.behaviour in clause.behaviours]
    if not clause.each_family:
        return [Slice(clause.name, None, _array(chosen))] if chosen else []
    by_family: dict[str, list[int]] = {}
    for i in chosen:
        by_family.setdefault(probes.probes[i].family, []).append(i)
    return [Slice(f"{clause.name}[{family}]", family, _array(at)) for family, at in by_family.items()]


def mixes_behaviours(part: Slice, probes: ProbeSet) -> bool:
    """Tells whether a slice holds both requests that must be refused and requests that must be answered."""
    return set(SAFETY) <= {probes.probes[i].behaviour for i in part.position_P}


def positions_of(probes: ProbeSet, behaviour: Behaviour) -> NDArray[np.int64]:
    """Returns the positions of the probes with one behaviour."""
    return _array([i for i, p in enumerate(probes.probes) if p.behaviour is behaviour])


def clusters_at(probes: ProbeSet, position_R: NDArray[np.int64]) -> list[str]:
    """Returns the cluster of each probe: the unit of dependence over which uncertainty is taken.

    Clusters of tasks are phrasings and kinds of one family, so equal names in two families are two clusters. Clusters
    of safety probes are what the request is about: the same term asked for plainly and in a wrapper is one.
    """
    chosen = (probes.probes[i] for i in position_R)
    return [f"{'safety' if p.behaviour in SAFETY else p.family}/{p.cluster}" for p in chosen]


def _array(positions: list[int]) -> NDArray[np.int64]:
    return np.array(positions, dtype=np.int64)

"""Fewer probes a family, for contracts that ask for a quick look: the first of the set, dealt over its clusters."""

from __future__ import annotations

from collections import Counter, defaultdict

from quantaudit.core.contract import Contract
from quantaudit.core.probe import ProbeSet


def choose_probes(probes: ProbeSet, contract: Contract) -> ProbeSet:
    """Returns the probes that a contract wants to be run: all, or so many of each family.

    A family gives its first probe of every cluster, then its second, and so on: as many clusters as there can be. The
    chosen ones keep their order, and the set says in its source what it is a part of.
    """
    count = contract.probes_per_family
    if count is None or count >= max(Counter(p.family for p in probes.probes).values(), default=0):
        return probes
    by_family: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    turn: Counter[tuple[str, str]] = Counter()
    for position, probe in enumerate(probes.probes):
        by_family[probe.family].append((turn[probe.family, probe.cluster], position))
        turn[probe.family, probe.cluster] += 1
    chosen = sorted(position for family in by_family.values() for _, position in sorted(family)[:count])
    return probes.model_copy(
        update={
            "source": f"{probes.source}; {count} probes of each family, dealt over its clusters",
            "probes": tuple(probes.probes[position] for position in chosen),
        }
    )

"""The families of a probe set, with what both models make of them, for orientation beside the clauses."""

from __future__ import annotations

import numpy as np

from quantaudit.core.probe import ProbeSet
from quantaudit.core.report import FamilySummary
from quantaudit.evaluation.degeneracy import chance_accuracy
from quantaudit.evaluation.table import Table, select


def summarize_families(probes: ProbeSet, table: Table) -> tuple[FamilySummary, ...]:
    """Returns a summary a family, in the order of the probe set."""
    return tuple(_summarize(probes, table, family) for family in probes.families())


def _summarize(probes: ProbeSet, table: Table, family: str) -> FamilySummary:
    at = np.array([i for i, p in enumerate(probes.probes) if p.family == family])
    hits = select(table.readings("accuracy"), at)
    margins = select(table.readings("answer-margin"), at)
    first = probes.probes[int(at[0])]
    return FamilySummary(
        name=family,
        behaviour=first.behaviour,
        num_probes=len(at),
        num_clusters=len({probes.probes[i].cluster for i in at}),
        hi_accuracy=float(hits.hi_R.mean()),
        lo_accuracy=float(hits.lo_R.mean()),
        chance_accuracy=chance_accuracy(probes, family),
        hi_right_lo_wrong=int(((hits.hi_R == 1) & (hits.lo_R == 0)).sum()),
        hi_wrong_lo_right=int(((hits.hi_R == 0) & (hits.lo_R == 1)).sum()),
        share_under_one_nat=float((np.abs(margins.hi_R) < 1.0).mean()),
    )

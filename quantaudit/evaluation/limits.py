"""What the audit did not examine, a sentence each: a verdict reaches no further than its evidence."""

from __future__ import annotations

from quantaudit.core.contract import Contract
from quantaudit.core.report import Environment
from quantaudit.evaluation.clauses import Evidence
from quantaudit.evaluation.free_running import FreeRun


def not_examined(evidence: Evidence, free: FreeRun, contract: Contract, environment: Environment) -> tuple[str, ...]:
    """Returns the limits of this run."""
    sentences = [
        f"Only {environment.device} in {environment.compute_dtype} was run; another device or engine can differ.",
    ]
    unreached = [
        (layer, int((sums.hi_load_E == 0).sum()))
        for layer, sums in sorted(evidence.measurements.sums.routing.items())
        if (sums.hi_load_E == 0).any()
    ]
    if unreached:
        total = sum(count for _, count in unreached)
        where = ", ".join(str(layer) for layer, _ in unreached)
        sentences.append(f"{total} experts received no token from these probes (layers {where}).")
    sizes: dict[str, int] = {}
    for probe in evidence.probes.probes:
        sizes[probe.family] = sizes.get(probe.family, 0) + 1
    small = [family for family, size in sizes.items() if size < contract.min_probes]
    if small:
        sentences.append("Too few probes to judge: " + ", ".join(small) + ".")
    sentences.append(free.describe())
    return tuple(sentences)

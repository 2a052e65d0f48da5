"""A small model audited for real: subjects made the way the composition root makes them, and what a run needs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.composition import Order, carry_out
from quantaudit.core.contract import Contract
from quantaudit.core.probe import ProbeSet, Split
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_file import load_contract
from quantaudit.core.report import AuditReport
from quantaudit.evaluation.runner import Settings
from quantaudit.probes.world import FAMILIES, default_probes

PER_FAMILY = 12


@lru_cache(maxsize=1)
def world_probes() -> ProbeSet:
    """Returns a few audit probes of every family of the closed world."""
    return default_probes(Split.AUDIT, dict.fromkeys(FAMILIES, PER_FAMILY))


def lenient_contract() -> Contract:
    """Returns the default contract with as little evidence as these probes have."""
    return load_contract("default").model_copy(update={"min_probes": PER_FAMILY, "min_clusters": 5})


def order(hi: Path, *, lo: Path | None = None, recipe: Recipe | None = None, batch_size: int = 40) -> Order:
    """Returns the order of an audit on one thread of the CPU."""
    return Order(
        hi=open_checkpoint(hi),
        hi_source=hi.name,
        lo=None if lo is None else open_checkpoint(lo),
        lo_source=None if lo is None else lo.name,
        recipe=recipe,
        contract=lenient_contract(),
        probes=world_probes(),
        device="cpu",
        threads=1,
        settings=Settings(batch_size=batch_size),
        command="quantaudit run",
    )


def audit(hi: Path, *, lo: Path | None = None, recipe: Recipe | None = None) -> AuditReport:
    """Runs an audit in silence."""
    return carry_out(order(hi, lo=lo, recipe=recipe), lambda stage, done, total: None)

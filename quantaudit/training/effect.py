"""What a repair is worth: obstructions of several arms on the same probes, and their differences probe by probe.

Every arm is compared with the same hi, so for one observer the obstruction of an arm is its mean damage, and the
reduction from one arm to another is the mean over probes of (damage before - damage after): paired, and with an
interval that knows the clusters. Damage is positive where lo is worse, so a reduction above zero is an improvement.
Where a model gets better than hi its damage is negative; the divergences show what it costs, for they have no good
side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from quantaudit.core.engine import Engine
from quantaudit.core.probe import ProbeSet
from quantaudit.core.recipe_run import Effect, Obstruction, Reduction
from quantaudit.evaluation.measure import pair_up
from quantaudit.evaluation.plan import plan_batches
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table
from quantaudit.observers.logits import KL_FORWARD, NLL
from quantaudit.observers.paired import Observer
from quantaudit.observers.scores import score_sequences
from quantaudit.observers.task import ACCURACY, MARGIN
from quantaudit.stats import estimate_mean, gather

OBSERVERS = (NLL, KL_FORWARD, MARGIN, ACCURACY)
_BATCH = 96
_ALPHA = 0.025  # of each bound: intervals have level 95 %


def _ignore(count: int) -> None:
    """Takes no notice of progress."""


def measure_effect(
    hi: Engine, arms: Mapping[str, Engine], probes: ProbeSet, *, advance: Callable[[int], None] = _ignore
) -> Effect:
    """Runs hi and every arm over the probes once.

    Args:
        hi: The reference.
        arms: Deployments by name; the last is the one that should be better than the others.
        probes: Probes of one split.
        advance: Told the number of probes after each batch.
    """
    tables = {name: Table() for name in arms}
    for batch in plan_batches(probes, _BATCH):
        reference = hi.forward(batch.sequences)
        scores = score_sequences(reference)
        for name, engine in arms.items():
            tables[name].add(batch, pair_up(batch, reference, engine.forward(batch.sequences), scores), OBSERVERS)
        advance(len(batch.probes))
    return compare_arms(tables, probes)


def compare_arms(tables: Mapping[str, Table], probes: ProbeSet) -> Effect:
    """Estimates obstructions and reductions from the readings of every arm."""
    clusters = clusters_at(probes, np.arange(len(probes.probes)))
    *others, last = tables
    obstructions, reductions = [], []
    for observer in OBSERVERS:
        damages = {name: _damage(table, observer) for name, table in tables.items()}
        for name, damage_N in damages.items():
            estimate = estimate_mean(gather(damage_N, clusters), alpha=_ALPHA)
            obstructions.append(Obstruction(arm=name, observer=observer.name, unit=observer.unit, estimate=estimate))
        for name in others:
            estimate = estimate_mean(gather(damages[name] - damages[last], clusters), alpha=_ALPHA)
            reductions.append(
                Reduction(before=name, after=last, observer=observer.name, unit=observer.unit, estimate=estimate)
            )
    return Effect(
        probes_digest=probes.digest(),
        num_probes=len(probes.probes),
        obstructions=tuple(obstructions),
        reductions=tuple(reductions),
    )


def _damage(table: Table, observer: Observer) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return damage_of(table.readings(observer.name), larger_is_better=observer.larger_is_better)

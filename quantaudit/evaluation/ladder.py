"""The ladder of bit widths: hi with its experts rounded to 8, 4, 3 and 2 bits, on a tenth of the probes.

It places the deployment: how much does this model lose at which width, whatever the recipe? And it is a test of the
measurement itself: where fewer bits come out significantly better, an implementation is to be doubted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Ladder, Rung
from quantaudit.core.engine import Engine, Trace
from quantaudit.core.errors import NotMeasuredError
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.measure import Advance, pair_up
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table
from quantaudit.observers.logits import NLL
from quantaudit.observers.paired import Observer
from quantaudit.observers.scores import score_sequences
from quantaudit.observers.task import ACCURACY
from quantaudit.stats import Dose, estimate_flips, estimate_mean, gather, judge_dose_response

EVERY = 10  # of this many probes of a family, one is on the ladder
_OBSERVERS = (NLL, ACCURACY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rung before it is measured.

    Attributes:
        scheme: Name of the weight scheme.
        bits: Bits of its elements.
        open: Returns the engine; called when the rung's turn comes.
    """

    scheme: str
    bits: int
    open: Callable[[], Engine]


def sample_probes(probes: ProbeSet) -> ProbeSet:
    """Returns every tenth probe of each family, in order."""
    by_family = {family: [p for p in probes.probes if p.family == family][::EVERY] for family in probes.families()}
    kept = {p.id for chosen in by_family.values() for p in chosen}
    return probes.model_copy(update={"probes": tuple(p for p in probes.probes if p.id in kept)})


def climb(steps: Sequence[Step], hi: Engine, probes: ProbeSet, *, batch_size: int, advance: Advance) -> Ladder | None:
    """Measures the rungs, one engine open at a time.

    Args:
        steps: By descending bits; none where hi's experts are quantized already.
        hi: The reference.
        probes: What `sample_probes` chose.
        batch_size: Probes that share a forward.
        advance: Told the number of probes after each batch of each rung.

    Returns:
        The ladder, or `None` if there is no step or too few clusters to judge one.
    """
    if not steps:
        return None
    batches = plan_batches(probes, batch_size)
    references = [hi.forward(batch.sequences) for batch in batches]
    tables = [_measure(step, batches, references, advance) for step in steps]
    clusters = clusters_at(probes, np.arange(len(probes.probes)))
    rungs = tuple(_rung(step, table, clusters) for step, table in zip(steps, tables, strict=True))
    doses = [Dose(scheme=s.scheme, bits=s.bits, damages_N=_damage(t, NLL)) for s, t in zip(steps, tables, strict=True)]
    try:
        found = judge_dose_response(doses, clusters)
    except NotMeasuredError:
        return None
    return Ladder(
        rungs=rungs,
        num_probes=len(probes.probes),
        is_monotone=found.is_monotone,
        p_value=found.p_value,
        reason=found.reason,
    )


def _measure(step: Step, batches: Sequence[Batch], references: Sequence[Trace], advance: Advance) -> Table:
    table = Table()
    engine = step.open()
    for batch, reference in zip(batches, references, strict=True):
        pair = pair_up(batch, reference, engine.forward(batch.sequences), score_sequences(reference))
        table.add(batch, pair, _OBSERVERS)
        advance(len(batch.probes))
    engine.close()
    return table


def _rung(step: Step, table: Table, clusters: list[str]) -> Rung:
    nll = estimate_mean(gather(_damage(table, NLL), clusters))
    accuracy = estimate_flips(gather(_damage(table, ACCURACY), clusters))
    return Rung(scheme=step.scheme, bits=step.bits, nll=nll, accuracy=accuracy)


def _damage(table: Table, observer: Observer) -> NDArray[np.float64]:
    return damage_of(table.readings(observer.name), larger_is_better=observer.larger_is_better)

"""The ladder of bit widths: hi with its experts rounded to 8, 4, 3 and 2 bits, on a tenth of the probes.

It places the deployment: how much does this model lose at which width, whatever the recipe? And it is a test of the
measurement itself: where fewer bits come out significantly better, an implementation is to be doubted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Ladder, Rung
from quantaudit.core.engine import Engine
from quantaudit.core.errors import NotMeasuredError
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.measure import Advance, pair_up
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.side_by_side import run_side_by_side
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
        open: Returns the engine, which holds no weights of its own.
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
    """Measures the rungs, batch by batch.

    Args:
        steps: By descending bits; none where hi's experts are quantized already.
        hi: The reference.
        probes: What `sample_probes` chose.
        batch_size: Probes that share a forward.
        advance: Told the number of probes times that of rungs after each batch.

    Returns:
        The ladder, or `None` if there is no step or too few clusters to judge one.
    """
    if not steps:
        return None
    tables = _measure(steps, hi, plan_batches(probes, batch_size), advance)
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


def _measure(steps: Sequence[Step], hi: Engine, batches: Sequence[Batch], advance: Advance) -> list[Table]:
    """Returns hi against every rung; the engines are views of hi's weights, so all can be open."""
    tables, engines = [Table() for _ in steps], [step.open() for step in steps]
    for batch in batches:
        reference, *traces = run_side_by_side([partial(engine.forward, batch.sequences) for engine in (hi, *engines)])
        scores = score_sequences(reference)
        for table, trace in zip(tables, traces, strict=True):
            table.add(batch, pair_up(batch, reference, trace, scores), _OBSERVERS)
        advance(len(batch.probes) * len(steps))
    for engine in engines:
        engine.close()
    return tables


def _rung(step: Step, table: Table, clusters: list[str]) -> Rung:
    nll = estimate_mean(gather(_damage(table, NLL), clusters))
    accuracy = estimate_flips(gather(_damage(table, ACCURACY), clusters))
    return Rung(scheme=step.scheme, bits=step.bits, nll=nll, accuracy=accuracy)


def _damage(table: Table, observer: Observer) -> NDArray[np.float64]:
    return damage_of(table.readings(observer.name), larger_is_better=observer.larger_is_better)

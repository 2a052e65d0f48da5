"""Forced routing: how much of the damage is that tokens go to other experts, and how much that experts compute worse.

lo is run again on some batches with hi's choices forced on it, layer by layer and token by token. Between hi and lo lie
two more models, and the three steps add up to the whole difference, probe by probe:

    weights    from hi to lo with hi's experts and hi's gate weights: all that is not routing
    gates      from there to lo with hi's experts, weighed by lo's own scores
    selection  from there to lo as it is: what the choice of other experts does

So `weights + gates` is the damage on hi's routes, and `gates + selection` that of routing as a whole. A step can be
negative: errors may cancel.

Source: routing replay of rollouts (R3, arXiv:2510.11370), used here to split a difference.
Legend: R readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from torch import Tensor

from quantaudit.core.decision import Estimate
from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.core.engine import Engine, Intervention, Trace
from quantaudit.core.probe import ProbeSet
from quantaudit.core.site import Point, Site
from quantaudit.evaluation.plan import Batch
from quantaudit.evaluation.reading import damage_of
from quantaudit.evaluation.shown import Shown, diagnostic
from quantaudit.evaluation.side_by_side import run_side_by_side
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table, select
from quantaudit.observers.logits import NLL
from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch
from quantaudit.observers.scores import score_sequences
from quantaudit.observers.task import ACCURACY, MARGIN
from quantaudit.stats import estimate_flips, estimate_mean, gather

_EVERY = 8  # every how many batches are run twice more; no more of them after `_MOST_PROBES`
_MOST_PROBES = 1000

_OBSERVERS = (NLL, ACCURACY, MARGIN)
_LOST = {NLL.name: "NLL added", ACCURACY.name: "Accuracy lost", MARGIN.name: "Answer margin lost"}
_STEPS = {
    "total": "in all",
    "weights": "on hi's routes and gate weights",
    "gates": "by gate weights on hi's routes",
    "selection": "by other experts",
}


@dataclass(slots=True, kw_only=True)
class RoutingSplit:
    """The steps between hi and lo, on the batches that were run with forced routing.

    Attributes:
        tables: Step by name, "total" first; `hi` of a step is where it starts, `lo` where it ends.
        num_probes: Probes behind each.
    """

    tables: dict[str, Table] = field(default_factory=lambda: {step: Table() for step in _STEPS})
    num_probes: int = 0

    def wants(self, number: int) -> bool:
        """Tells whether a batch, by its place in the plan, is to be run with forced routing."""
        return number % _EVERY == 0 and self.num_probes < _MOST_PROBES

    def add(self, lo: Engine, batch: Batch, pair: PairedBatch) -> None:
        """Runs lo twice on a batch of a pair whose hi observed experts and gate weights."""
        routes = force(pair.hi, Point.TOP_K_IDS)
        gates = force(pair.hi, Point.TOP_K_IDS, Point.GATE_WEIGHTS)
        on_routes, on_gates = run_side_by_side(
            [partial(lo.forward, batch.sequences, intervene=forced) for forced in (routes, gates)]
        )
        from_gates = replace(pair, hi=on_gates, hi_scores=score_sequences(on_gates))
        from_routes = replace(pair, hi=on_routes, hi_scores=score_sequences(on_routes))
        steps = {
            "total": pair,
            "weights": replace(pair, lo=from_gates.hi, lo_scores=from_gates.hi_scores),
            "gates": replace(from_gates, lo=from_routes.hi, lo_scores=from_routes.hi_scores),
            "selection": from_routes,
        }
        for step, between in steps.items():
            self.tables[step].add(batch, between, _OBSERVERS)
        self.num_probes += len(batch.probes)


def force(trace: Trace, *points: Point) -> Mapping[Site, Intervention]:
    """Returns the interventions that give a forward the values a trace observed at these points."""
    assert set(points) <= {site.point for site in trace.sites}, "hi did not observe what is to be forced"
    return {site: _always(value) for site, value in trace.sites.items() if site.point in points}


def _always(value: Tensor) -> Intervention:
    return lambda _: value


def diagnose_forced_routing(split: RoutingSplit, probes: ProbeSet, floor: Table) -> Shown:
    """Returns the steps of every observer, as damage with clustered intervals; nothing if no batch was run.

    Args:
        split: What was measured.
        probes: The probe set.
        floor: hi against itself, for the whole difference; the steps have no floor, for hi's routes are its own.
    """
    if not split.num_probes:
        return Shown()
    return Shown(
        diagnostics=tuple(
            _show(observer, step, table, probes, floor if step == "total" else None)
            for observer in _OBSERVERS
            for step, table in split.tables.items()
        )
    )


def _show(observer: Observer, step: str, table: Table, probes: ProbeSet, floor: Table | None) -> Diagnostic:
    readings = table.readings(observer.name)
    estimate = _estimate(observer, table, probes)
    return diagnostic(
        f"forced-routing-{observer.name}-{step}",
        Topic.ROUTING,
        f"{_LOST[observer.name]} {_STEPS[step]}",
        unit=observer.unit,
        larger_is_better=False,
        value=float(_damage(observer, readings).mean()) if estimate is None else estimate.value,
        interval=estimate.interval if estimate is not None and np.isfinite(estimate.interval.upper) else None,
        floor=None if floor is None else _floor(observer, floor, readings),
        num_items=len(readings.index_R),
        note="The sum of the next three, on the same probes." if step == "total" else "",
    )


def _estimate(observer: Observer, table: Table, probes: ProbeSet) -> Estimate | None:
    """Returns the damage of a step, or `None` where some of it is not finite."""
    readings = table.readings(observer.name)
    damage_R = _damage(observer, readings)
    if not np.isfinite(damage_R).all():
        return None
    sample = gather(damage_R, clusters_at(probes, readings.index_R))
    if not observer.is_rate:
        return estimate_mean(sample)
    margins = _estimate(MARGIN, table, probes)
    return estimate_flips(sample, least_design_effect=1.0 if margins is None else max(1.0, margins.design_effect))


def _damage(observer: Observer, readings: Readings) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return damage_of(readings, larger_is_better=observer.larger_is_better)


def _floor(observer: Observer, floor: Table, readings: Readings) -> float | None:
    same = select(floor.readings(observer.name), readings.index_R)
    return float(_damage(observer, same).mean()) if len(same.index_R) else None

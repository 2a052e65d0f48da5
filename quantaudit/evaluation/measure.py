"""The paired pass: every batch once through hi, once through lo, once through hi again under another execution.

All observers, the floor, the identity control and the planted faults are fed from these forwards; nothing is run
twice for two observers, and no logits are kept. Forwards that need nothing of each other run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.engine import Engine, Trace
from quantaudit.core.site import Point
from quantaudit.evaluation.details import Details
from quantaudit.evaluation.faults import FAULTS, plant
from quantaudit.evaluation.forced_routing import RoutingSplit
from quantaudit.evaluation.plan import Batch
from quantaudit.evaluation.selection_bias import NO_BIAS
from quantaudit.evaluation.side_by_side import describe_floor_threads, other_thread_count, run_side_by_side
from quantaudit.evaluation.table import Table
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.paired import Observer, PairedBatch
from quantaudit.observers.routing_sums import RoutingLog
from quantaudit.observers.scores import SequenceScores, score_sequences
from quantaudit.observers.sums import POINTS, LayerSums

_FLOOR_PIECES = 4  # pieces a batch is cut into for the floor: another batch size and other padding
# Every how many batches the floor runs in another number of threads as well: more threads make it hardly faster, and
# where other programs need the cores, much slower.
_OTHER_THREADS_EVERY = 4
_IDENTITY_EVERY = 8  # every how many batches go through the identity control

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What the pass runs.

    Attributes:
        hi: The reference.
        lo: The deployment.
        identity: hi through the complete lo path, nothing quantized.
    """

    hi: Engine
    lo: Engine
    identity: Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The part of the measurements that says nothing about lo; fields as in `Measurements`."""

    floor: Table
    identity: Table
    faults: dict[str, Table]
    floor_sums: LayerSums
    floor_details: Details
    floor_threads: str
    identity_probes: int


@dataclass(slots=True, kw_only=True)
class Measurements:
    """What the pass gives.

    Attributes:
        lo: hi against lo.
        floor: hi against itself under another batch size and padding, and on some batches in other threads.
        identity: hi against the identity control, on some batches; exactly zero or the run proves nothing.
        faults: hi against each planted fault.
        sums: Layer sums of hi and lo.
        floor_sums: Layer sums of hi and itself.
        details: Tokens and routing of hi and lo.
        floor_details: Tokens and routing of hi and itself.
        forced: What lo does with hi's routes forced on it, on some batches.
        floor_threads: Threads of the floor, in words.
        identity_probes: Probes that went through the identity control.
        num_scored_tokens: Tokens scored in one model.
        num_probes: Probes that were run.
    """

    lo: Table = field(default_factory=Table)
    floor: Table = field(default_factory=Table)
    identity: Table = field(default_factory=Table)
    faults: dict[str, Table] = field(default_factory=lambda: {name: Table() for name in FAULTS})
    sums: LayerSums
    floor_sums: LayerSums
    details: Details = field(default_factory=Details)
    floor_details: Details = field(default_factory=Details)
    forced: RoutingSplit = field(default_factory=RoutingSplit)
    floor_threads: str = ""
    identity_probes: int = 0
    num_scored_tokens: int = 0
    num_probes: int = 0

    def count(self, batch: Batch, hi: Trace) -> None:
        """Counts the probes of a batch and their scored tokens."""
        self.num_scored_tokens += sum(hi.counts_B[: len(batch.probes)])
        self.num_probes += len(batch.probes)


def measure(
    engines: Engines,
    batches: Sequence[Batch],
    *,
    num_experts: int,
    assayed: Collection[str],
    observers: tuple[Observer, ...] = tuple(PROBE_OBSERVERS.values()),
    advance: Advance,
    selection_bias: Mapping[int, Tensor] = NO_BIAS,
    kept: Controls | None = None,
    stops: Callable[[Measurements], bool] | None = None,
) -> Measurements:
    """Runs the pass.

    Args:
        engines: What to run.
        batches: The plan.
        num_experts: Experts per layer.
        assayed: Observers for which faults are planted.
        observers: What is measured per probe.
        advance: Told the number of probes after each batch.
        selection_bias: Correction bias of hi's router by layer, `[E]`.
        kept: Controls of an earlier run to take over; the forwards that measure them are left out.
        stops: Asked after each batch whether the rest is left out; it never is when `None`.
    """
    points = POINTS.union(*(o.points for o in observers))
    planted = tuple(o for o in observers if o.name in assayed)
    result = _begin(num_experts, selection_bias, kept)
    for number, batch in enumerate(batches):
        sides = [engines.hi, engines.lo]
        if kept is None and number % _IDENTITY_EVERY == 0:
            sides.append(engines.identity)
        hi, lo, *same = run_side_by_side([partial(side.forward, batch.sequences, observe=points) for side in sides])
        pair = pair_up(batch, hi, lo, score_sequences(hi))
        result.lo.add(batch, pair, observers)
        result.sums.add(hi, lo)
        result.details.add(batch, pair)
        if kept is None:
            threads = number % _OTHER_THREADS_EVERY == 0
            _run_controls(engines.hi, batch, pair, observers, planted, result, other_threads=threads)
            for trace in same:
                result.identity.add(batch, pair_up(batch, hi, trace, pair.hi_scores), observers)
                result.identity_probes += len(batch.probes)
        if result.forced.wants(number):
            result.forced.add(engines.lo, batch, pair)
        result.count(batch, hi)
        advance(len(batch.probes))
        if stops is not None and stops(result):
            break
    return result


def _begin(num_experts: int, selection_bias: Mapping[int, Tensor], kept: Controls | None) -> Measurements:
    """Returns measurements of nothing yet, but for controls that are taken over."""
    result = Measurements(
        sums=LayerSums(num_experts=num_experts),
        floor_sums=LayerSums(num_experts=num_experts),
        details=Details(routing=RoutingLog(bias_by_layer=selection_bias)),
        floor_details=Details(routing=RoutingLog(bias_by_layer=selection_bias)),
        floor_threads=describe_floor_threads(),
    )
    if kept is not None:
        result = replace(result, **{field.name: getattr(kept, field.name) for field in fields(kept)})
    return result


def _run_controls(
    engine: Engine,
    batch: Batch,
    pair: PairedBatch,
    observers: tuple[Observer, ...],
    planted: tuple[Observer, ...],
    result: Measurements,
    *,
    other_threads: bool,
) -> None:
    """Runs hi again for the floor, and plants the faults."""
    again = forward_in_pieces(engine, batch, points=_points_of(pair.hi), other_threads=other_threads)
    floor_pair = pair_up(batch, pair.hi, again, pair.hi_scores)
    result.floor.add(batch, floor_pair, observers)
    result.floor_sums.add(pair.hi, again)
    result.floor_details.add(batch, floor_pair)
    unharmed = replace(pair, lo=pair.hi, lo_scores=pair.hi_scores)
    for name, table in result.faults.items():
        table.add(batch, plant(name, unharmed), planted)


def pair_up(batch: Batch, hi: Trace, lo: Trace, hi_scores: SequenceScores) -> PairedBatch:
    """Returns the paired forward; hi, which is paired more than once, is scored once."""
    return PairedBatch(
        probes=batch.probes,
        opposite_P=batch.opposite_P,
        hi=hi,
        lo=lo,
        hi_scores=hi_scores,
        lo_scores=score_sequences(lo),
    )


def _points_of(trace: Trace) -> frozenset[Point]:
    return frozenset(site.point for site in trace.sites)


def forward_in_pieces(
    engine: Engine, batch: Batch, *, points: frozenset[Point] = POINTS, other_threads: bool = False
) -> Trace:
    """Runs a batch in pieces, and returns the trace of the whole.

    Args:
        engine: What to run.
        batch: The batch.
        points: What is observed.
        other_threads: Whether the thread count is another than that of hi and lo, too; pieces then take turns.
    """
    size = -(-len(batch.sequences) // _FLOOR_PIECES)
    pieces = [batch.sequences[s : s + size] for s in range(0, len(batch.sequences), size)]
    tasks = [partial(engine.forward, piece, observe=points) for piece in pieces]
    if not other_threads:
        return join(run_side_by_side(tasks))
    with other_thread_count():
        return join([task() for task in tasks])


def join(traces: Sequence[Trace]) -> Trace:
    """Returns the traces of consecutive pieces as one."""
    return Trace(
        logits_MV=torch.cat([t.logits_MV for t in traces]),
        target_M=torch.cat([t.target_M for t in traces]),
        counts_B=tuple(c for t in traces for c in t.counts_B),
        lengths_B=tuple(n for t in traces for n in t.lengths_B),
        sites={site: torch.cat([t.sites[site] for t in traces]) for site in traces[0].sites},
    )

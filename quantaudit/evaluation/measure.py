"""The paired pass: every batch once through hi, once through lo, once through hi again under another execution.

All observers, the floor, the identity control and the planted faults are fed from these forwards; nothing is run
twice for two observers, and no logits are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from quantaudit.core.engine import Engine, Trace
from quantaudit.evaluation.faults import FAULTS, plant
from quantaudit.evaluation.plan import Batch
from quantaudit.evaluation.table import Table
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.paired import PairedBatch
from quantaudit.observers.scores import SequenceScores, score_sequences
from quantaudit.observers.sums import POINTS, LayerSums

_FLOOR_PIECES = 3  # pieces a batch is cut into for the floor: another batch size and other padding
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


@dataclass(slots=True, kw_only=True)
class Measurements:
    """What the pass gives.

    Attributes:
        lo: hi against lo.
        floor: hi against itself under another batch size, padding and thread count.
        identity: hi against the identity control, on some batches; exactly zero or the run proves nothing.
        faults: hi against each planted fault.
        sums: Layer sums of hi and lo.
        floor_sums: Layer sums of hi and itself.
        floor_threads: Threads of the floor, in words.
        identity_probes: Probes that went through the identity control.
        num_scored_tokens: Tokens scored in one model.
    """

    lo: Table = field(default_factory=Table)
    floor: Table = field(default_factory=Table)
    identity: Table = field(default_factory=Table)
    faults: dict[str, Table] = field(default_factory=lambda: {name: Table() for name in FAULTS})
    sums: LayerSums
    floor_sums: LayerSums
    floor_threads: str = ""
    identity_probes: int = 0
    num_scored_tokens: int = 0


def measure(
    engines: Engines, batches: Sequence[Batch], *, num_experts: int, assayed: Collection[str], advance: Advance
) -> Measurements:
    """Runs the pass.

    Args:
        engines: What to run.
        batches: The plan.
        num_experts: Experts per layer.
        assayed: Observers for which faults are planted.
        advance: Told the number of probes after each batch.
    """
    observers = tuple(PROBE_OBSERVERS.values())
    planted = tuple(o for o in observers if o.name in assayed)
    result = Measurements(
        sums=LayerSums(num_experts=num_experts),
        floor_sums=LayerSums(num_experts=num_experts),
        floor_threads=describe_floor_threads(),
    )
    for number, batch in enumerate(batches):
        hi = engines.hi.forward(batch.sequences, observe=POINTS)
        lo = engines.lo.forward(batch.sequences, observe=POINTS)
        again = forward_in_pieces(engines.hi, batch)
        hi_scores = score_sequences(hi)
        result.lo.add(batch, pair_up(batch, hi, lo, hi_scores), observers)
        result.sums.add(hi, lo)
        result.floor.add(batch, pair_up(batch, hi, again, hi_scores), observers)
        result.floor_sums.add(hi, again)
        unharmed = PairedBatch(
            probes=batch.probes, opposite_P=batch.opposite_P, hi=hi, lo=hi, hi_scores=hi_scores, lo_scores=hi_scores
        )
        for name, table in result.faults.items():
            table.add(batch, plant(name, unharmed), planted)
        if number % _IDENTITY_EVERY == 0:
            same = engines.identity.forward(batch.sequences, observe=POINTS)
            result.identity.add(batch, pair_up(batch, hi, same, hi_scores), observers)
            result.identity_probes += len(batch.probes)
        result.num_scored_tokens += sum(hi.counts_B[: len(batch.probes)])
        advance(len(batch.probes))
    return result


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


def forward_in_pieces(engine: Engine, batch: Batch) -> Trace:
    """Runs a batch in pieces and with another thread count, and returns the trace of the whole."""
    size = -(-len(batch.sequences) // _FLOOR_PIECES)
    pieces = [batch.sequences[s : s + size] for s in range(0, len(batch.sequences), size)]
    with other_thread_count():
        return join([engine.forward(piece, observe=POINTS) for piece in pieces])


def describe_floor_threads() -> str:
    """Says in how many threads the floor runs: one less, but one stays one, for a second would lack a core."""
    threads = torch.get_num_threads()
    return "the same thread, of which there is one" if threads == 1 else f"threads {threads - 1} instead of {threads}"


@contextmanager
def other_thread_count() -> Iterator[None]:
    """Runs the body with the thread count of the floor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def join(traces: Sequence[Trace]) -> Trace:
    """Returns the traces of consecutive pieces as one."""
    return Trace(
        logits_MV=torch.cat([t.logits_MV for t in traces]),
        target_M=torch.cat([t.target_M for t in traces]),
        counts_B=tuple(c for t in traces for c in t.counts_B),
        lengths_B=tuple(n for t in traces for n in t.lengths_B),
        sites={site: torch.cat([t.sites[site] for t in traces]) for site in traces[0].sites},
    )

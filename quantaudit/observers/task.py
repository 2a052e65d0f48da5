"""Tasks: whether the answer is right, and by how much."""

from __future__ import annotations

from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch, all_probes


def measure_accuracy(batch: PairedBatch) -> Readings:
    """Returns 1 where greedy decoding gives exactly the right response."""
    return all_probes(batch, batch.hi_scores.hit_B, batch.lo_scores.hit_B)


def measure_margin(batch: PairedBatch) -> Readings:
    """Returns the smallest lead of a right token over its best rival, nats."""
    return all_probes(batch, batch.hi_scores.margin_B, batch.lo_scores.margin_B)


ACCURACY = Observer(name="accuracy", unit="share", larger_is_better=True, is_rate=True, measure=measure_accuracy)
MARGIN = Observer(name="answer-margin", unit="nats", larger_is_better=True, measure=measure_margin)

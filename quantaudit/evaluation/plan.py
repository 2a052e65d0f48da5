"""Which sequences go into which batch: a sequence per probe, then the opposite responses of safety probes.

Probes are sorted by length, so that a batch wastes little padding; the order is a pure function of the probe set.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.batch import Sequence
from quantaudit.core.probe import Probe, ProbeSet
from quantaudit.probes.encoding import encode_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Probes that share a forward.

    Attributes:
        index_P: Position of each probe in the probe set.
        probes: The probes.
        sequences: Right responses, one a probe, then opposite responses.
        opposite_P: Row of each probe's opposite response, -1 without one.
    """

    index_P: tuple[int, ...]
    probes: tuple[Probe, ...]
    sequences: list[Sequence]
    opposite_P: tuple[int, ...]


def plan_batches(probes: ProbeSet, batch_size: int) -> list[Batch]:
    """Cuts the probe set into batches of at most `batch_size` probes."""
    everything = probes.probes
    order = sorted(range(len(everything)), key=lambda i: (_length(everything[i]), i))
    return [_batch(order[s : s + batch_size], everything) for s in range(0, len(order), batch_size)]


def _batch(indices: list[int], everything: tuple[Probe, ...]) -> Batch:
    probes = tuple(everything[i] for i in indices)
    sequences = [encode_pair(p.prompt, p.response) for p in probes]
    opposite: list[int] = []
    for probe in probes:
        opposite.append(-1 if probe.alternative is None else len(sequences))
        if probe.alternative is not None:
            sequences.append(encode_pair(probe.prompt, probe.alternative))
    return Batch(index_P=tuple(indices), probes=probes, sequences=sequences, opposite_P=tuple(opposite))


def _length(probe: Probe) -> int:
    return len(probe.prompt) + max(len(probe.response), len(probe.alternative or ""))

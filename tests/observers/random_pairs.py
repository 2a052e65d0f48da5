"""Random paired batches of three kinds of probes, and traces made from logits alone.

Legend: M scored positions, V vocabulary, B sequences.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.engine import Trace
from quantaudit.core.probe import Behaviour, Probe, Split, probe_id
from quantaudit.observers.paired import PairedBatch
from quantaudit.observers.scores import score_sequences

VOCAB = 11
COUNTS = (3, 1, 4, 2, 5, 2, 3)
# Probe 0 and 2 are tasks, 1 must be refused, 3 answered; rows 4 and 5 are their opposites. Row 6 belongs to nobody.
OPPOSITE = (-1, 4, -1, 5)
BEHAVIOURS = (Behaviour.ANSWER, Behaviour.REFUSE, Behaviour.ANSWER, Behaviour.COMPLY)


def trace(logits_MV: Tensor, target_M: Tensor, counts_B: tuple[int, ...] = COUNTS) -> Trace:
    """Returns a trace without sites."""
    return Trace(
        logits_MV=logits_MV, target_M=target_M, counts_B=counts_B, lengths_B=tuple(c + 2 for c in counts_B), sites={}
    )


def probe(number: int, behaviour: Behaviour) -> Probe:
    """Returns a probe of which only the behaviour matters."""
    return Probe(
        id=probe_id("f", str(number), "r"),
        family="f",
        behaviour=behaviour,
        cluster=str(number),
        split=Split.AUDIT,
        prompt=str(number),
        response="r",
        alternative=None if behaviour is Behaviour.ANSWER else "o",
    )


def pair(hi_MV: Tensor, lo_MV: Tensor, target_M: Tensor) -> PairedBatch:
    """Returns the paired batch of two sets of logits."""
    hi, lo = trace(hi_MV, target_M), trace(lo_MV, target_M)
    return PairedBatch(
        probes=tuple(probe(i, b) for i, b in enumerate(BEHAVIOURS)),
        opposite_P=OPPOSITE,
        hi=hi,
        lo=lo,
        hi_scores=score_sequences(hi),
        lo_scores=score_sequences(lo),
    )


def random_pair(seed: int = 0) -> PairedBatch:
    """Returns a pair of random logits; about half of the targets are hi's largest logit."""
    generator = torch.Generator().manual_seed(seed)
    hi = 3 * torch.randn(sum(COUNTS), VOCAB, generator=generator)
    lo = hi + torch.randn(hi.shape, generator=generator)
    target = torch.where(
        torch.rand(len(hi), generator=generator) < 0.6,
        hi.argmax(-1),
        torch.randint(0, VOCAB, (len(hi),), generator=generator),
    )
    return pair(hi, lo, target)


def with_itself(batch: PairedBatch) -> PairedBatch:
    """Returns hi against hi."""
    return replace(batch, lo=batch.hi, lo_scores=batch.hi_scores)

"""Fidelity: likelihood of the right response, and divergence of the two distributions at its positions.

Divergences are means over a response's tokens, computed in float64 on the fly; no logits are kept.

Legend: M scored positions, V vocabulary.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from quantaudit.observers.paired import Observer, PairedBatch, Readings, all_probes
from quantaudit.observers.scores import reduce_sequences


def measure_nll(batch: PairedBatch) -> Readings:
    """Returns nats per answer token."""
    return all_probes(batch, batch.hi_scores.nll_B, batch.lo_scores.nll_B)


def measure_kl_forward(batch: PairedBatch) -> Readings:
    """Returns KL(hi || lo), nats per answer token; hi against itself is the zero it is compared with."""
    return _divergence(batch, batch.hi.logits_MV, batch.lo.logits_MV)


def measure_kl_reverse(batch: PairedBatch) -> Readings:
    """Returns KL(lo || hi), nats per answer token."""
    return _divergence(batch, batch.lo.logits_MV, batch.hi.logits_MV)


def measure_top1(batch: PairedBatch) -> Readings:
    """Returns the share of answer tokens at which lo's largest logit is hi's."""
    same_M = (batch.hi.logits_MV.argmax(-1) == batch.lo.logits_MV.argmax(-1)).double()
    share_B = reduce_sequences(same_M, batch.hi.counts_B, np.add) / np.array(batch.hi.counts_B)
    return all_probes(batch, np.ones_like(share_B), share_B)


def kl_divergence(p_MV: Tensor, q_MV: Tensor) -> Tensor:
    """Returns KL(p || q) from logits, `[M]` float64, nats."""
    log_p, log_q = p_MV.double().log_softmax(-1), q_MV.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _divergence(batch: PairedBatch, p_MV: Tensor, q_MV: Tensor) -> Readings:
    mean_B = reduce_sequences(kl_divergence(p_MV, q_MV), batch.hi.counts_B, np.add) / np.array(batch.hi.counts_B)
    return all_probes(batch, np.zeros_like(mean_B), mean_B)


NLL = Observer(name="nll", unit="nats/token", larger_is_better=False, measure=measure_nll)
KL_FORWARD = Observer(name="kl-forward", unit="nats/token", larger_is_better=False, measure=measure_kl_forward)
KL_REVERSE = Observer(name="kl-reverse", unit="nats/token", larger_is_better=False, measure=measure_kl_reverse)
TOP_1 = Observer(name="top-1", unit="share of tokens", larger_is_better=True, measure=measure_top1)

"""Fidelity: likelihood of the right response, and how far apart the two distributions are at its positions.

All of it is a mean over a response's tokens, read off the one view of the pair's logits.
"""

from __future__ import annotations

from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch, all_probes, average_tokens


def measure_nll(batch: PairedBatch) -> Readings:
    """Returns nats per answer token."""
    return all_probes(batch, batch.hi_scores.nll_B, batch.lo_scores.nll_B)


def measure_kl_forward(batch: PairedBatch) -> Readings:
    """Returns KL(hi || lo), nats per answer token; hi against itself is the zero it is compared with."""
    return average_tokens(batch, batch.tokens().kl_M, 0.0)


def measure_kl_reverse(batch: PairedBatch) -> Readings:
    """Returns KL(lo || hi), nats per answer token."""
    return average_tokens(batch, batch.tokens().kl_reverse_M, 0.0)


def measure_js(batch: PairedBatch) -> Readings:
    """Returns the Jensen-Shannon divergence, nats per answer token: symmetric, and at most ln 2."""
    return average_tokens(batch, batch.tokens().js_M, 0.0)


def measure_top1(batch: PairedBatch) -> Readings:
    """Returns the share of answer tokens at which lo's largest logit is hi's."""
    return average_tokens(batch, batch.tokens().same_top_M, 1.0)


def measure_overlap(batch: PairedBatch) -> Readings:
    """Returns the share of hi's five likeliest tokens that are among lo's, mean over answer tokens."""
    return average_tokens(batch, batch.tokens().overlap_M, 1.0)


def measure_p(batch: PairedBatch) -> Readings:
    """Returns the probability of each token of the right response, mean over its tokens; delta-p is the difference."""
    view = batch.tokens()
    return average_tokens(batch, view.lo_p_M, view.hi_p_M)


NLL = Observer(name="nll", unit="nats/token", larger_is_better=False, measure=measure_nll)
KL_FORWARD = Observer(name="kl-forward", unit="nats/token", larger_is_better=False, measure=measure_kl_forward)
KL_REVERSE = Observer(name="kl-reverse", unit="nats/token", larger_is_better=False, measure=measure_kl_reverse)
JS = Observer(name="js", unit="nats/token", larger_is_better=False, measure=measure_js)
TOP_1 = Observer(name="top-1", unit="share of tokens", larger_is_better=True, measure=measure_top1)
TOP_5 = Observer(name="top-5-overlap", unit="share of tokens", larger_is_better=True, measure=measure_overlap)
DELTA_P = Observer(name="delta-p", unit="probability", larger_is_better=True, measure=measure_p)

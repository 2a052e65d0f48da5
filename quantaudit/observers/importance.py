"""Importance ratios r = p_lo / p_hi, as a trainer that corrects for a low-precision rollout engine meets them.

Each number is an expectation under hi over the whole vocabulary, at every position of the right response, and then a
mean over its tokens: what infinitely many samples of hi would average to there. The same quantities at the one token
that the right response has are diagnostics, called "realised", and are not these.

A ratio too large for fp64 gives infinity, and so a reading that is not finite: whoever averages it must withhold.
"""

from __future__ import annotations

from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch, average_tokens


def measure_k3(batch: PairedBatch) -> Readings:
    """Returns E_hi[r - 1 - ln r], nats per answer token: KL(hi || lo), summed without negative terms."""
    return average_tokens(batch, batch.tokens().k3_M, 0.0)


def measure_extreme(batch: PairedBatch) -> Readings:
    """Returns the probability under hi of a token with max(r, 1 / r) > 2, mean over answer tokens."""
    return average_tokens(batch, batch.tokens().extreme_M, 0.0)


def measure_second_moment(batch: PairedBatch) -> Readings:
    """Returns E_hi[r^2], 1 for equal models, mean over answer tokens; its inverse is the effective sample size."""
    return average_tokens(batch, 1.0 + batch.tokens().excess_M, 1.0)


K3 = Observer(name="k3", unit="nats/token", larger_is_better=False, measure=measure_k3)
EXTREME_TOKENS = Observer(name="extreme-tokens", unit="probability", larger_is_better=False, measure=measure_extreme)
SECOND_MOMENT = Observer(
    name="importance-second-moment", unit="E[r^2]", larger_is_better=False, measure=measure_second_moment
)

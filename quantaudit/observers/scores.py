"""What each scored sequence comes to in one model: its likelihood, its margin, whether greedy decoding writes it.

Greedy decoding writes the response exactly when, teacher-forced, every one of its tokens has the largest logit;
the smallest lead of a token over its best rival is the margin, in nats, so the sign of the margin is the answer.

Legend: B sequences, M scored positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantaudit.core.engine import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceScores:
    """Per sequence, float64.

    Attributes:
        logprob_B: Log-likelihood of the response and its end, nats.
        nll_B: Mean negative log-likelihood per scored token, nats.
        margin_B: Smallest lead of a right token over its best rival, nats; positive when greedy decoding agrees.
        hit_B: 1 where every right token has the largest logit (the lowest id wins ties), else 0.
    """

    logprob_B: NDArray[np.float64]
    nll_B: NDArray[np.float64]
    margin_B: NDArray[np.float64]
    hit_B: NDArray[np.float64]


def score_sequences(trace: Trace) -> SequenceScores:
    """Reduces the logits of a trace, in float64."""
    logits_MV = trace.logits_MV.double()
    target_M1 = trace.target_M.unsqueeze(-1)
    right_M = logits_MV.gather(-1, target_M1).squeeze(-1)
    logprob_M = right_M - logits_MV.logsumexp(-1)
    rival_M = logits_MV.scatter(-1, target_M1, float("-inf")).amax(-1)
    hit_M = (logits_MV.argmax(-1) == trace.target_M).double()
    counts = np.array(trace.counts_B)
    logprob_B = reduce_sequences(logprob_M, trace.counts_B, np.add)
    return SequenceScores(
        logprob_B=logprob_B,
        nll_B=-logprob_B / counts,
        margin_B=reduce_sequences(right_M - rival_M, trace.counts_B, np.minimum),
        hit_B=reduce_sequences(hit_M, trace.counts_B, np.minimum),
    )


def reduce_sequences(value_M: Tensor, counts_B: tuple[int, ...], ufunc: np.ufunc) -> NDArray[np.float64]:
    """Reduces values at scored positions to one number a sequence."""
    starts = np.concatenate([[0], np.cumsum(counts_B)[:-1]])
    return np.asarray(ufunc.reduceat(value_M.to("cpu", torch.float64).numpy(), starts))

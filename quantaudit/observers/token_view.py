"""One look at the logits of a pair: every number per answer token that any observer needs, worked out once.

With p the distribution of hi, q that of lo, r = q / p and d = ln r at every token of the vocabulary, expectations are
taken under hi over the whole vocabulary rather than at the one token that happened to be written, so they carry no
sampling noise. Sums are arranged so that equal models give exactly 0 and rounding enters as its square:

    KL(p || q) = sum p (-d)                  chi^2 = E[r^2] - 1 = sum p (r - 1)^2
    E[k3]      = sum p (r - 1 - d) = KL      JS    = sum q (d - ln((1 + r) / 2)) / 2 - sum p ln((1 + r) / 2) / 2

Everything is fp64. Logits are not kept.

Legend: P probes, M answer tokens (the right responses and their ends), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantaudit.core.engine import Trace

Column = NDArray[np.float64]

TOP = 5  # how many of the likeliest tokens are compared
EXTREME = math.log(2.0)  # an importance ratio beyond 2 either way is extreme
_WILD = 350.0  # |d| up to which r and r^2 are fp64 numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A column a metric, an entry an answer token.

    Attributes:
        kl_M: KL(hi || lo), nats.
        kl_reverse_M: KL(lo || hi), nats.
        js_M: Jensen-Shannon divergence, nats, at most ln 2.
        k2_M: E_hi[d^2 / 2], nats^2.
        k3_M: E_hi[r - 1 - d], nats; KL(hi || lo) again, with no negative term.
        excess_M: E_hi[r^2] - 1, the chi-squared divergence; infinite where lo has mass that hi lacks.
        extreme_M: Probability under hi of a token with max(r, 1 / r) > 2.
        same_top_M: 1 where the likeliest token is the same (the lowest id wins ties).
        overlap_M: Share of hi's `TOP` likeliest tokens that are among lo's.
        collision_M: sum p q: how often one sample of hi and one of lo agree.
        hi_collision_M: sum p^2: how often two samples of hi agree.
        lo_collision_M: sum q^2.
        hi_p_M: Probability of the token in the right response, under hi.
        lo_p_M: Same, under lo.
        log_ratio_M: ln(lo_p / hi_p), nats.
        hi_lead_M: Lead of hi's likeliest token over the next, nats.
        hi_confidence_M: Probability of hi's likeliest token.
        lo_confidence_M: Same of lo.
        hi_right_M: 1 where hi's likeliest token is the right one.
        lo_right_M: Same of lo.
    """

    kl_M: Column
    kl_reverse_M: Column
    js_M: Column
    k2_M: Column
    k3_M: Column
    excess_M: Column
    extreme_M: Column
    same_top_M: Column
    overlap_M: Column
    collision_M: Column
    hi_collision_M: Column
    lo_collision_M: Column
    hi_p_M: Column
    lo_p_M: Column
    log_ratio_M: Column
    hi_lead_M: Column
    hi_confidence_M: Column
    lo_confidence_M: Column
    hi_right_M: Column
    lo_right_M: Column

    def __len__(self) -> int:
        return len(self.kl_M)


def view_tokens(hi: Trace, lo: Trace, num_probes: int) -> TokenView:
    """Reduces the logits of both at the answer tokens of the first `num_probes` sequences."""
    size = sum(hi.counts_B[:num_probes])
    target_M1 = hi.target_M[:size].unsqueeze(-1)
    hi_MV, lo_MV = hi.logits_MV[:size].double(), lo.logits_MV[:size].double()
    log_p_MV, log_q_MV = hi_MV.log_softmax(-1), lo_MV.log_softmax(-1)
    p_MV, q_MV = log_p_MV.exp(), log_q_MV.exp()
    # Tokens that are impossible on both sides do not differ.
    d_MV = torch.where(log_p_MV == log_q_MV, 0.0, log_q_MV - log_p_MV)
    columns = (
        _divergences(p_MV, q_MV, log_p_MV, log_q_MV, d_MV)
        | _ranks(hi_MV, lo_MV, target_M1)
        | {
            "extreme_M": (p_MV * (d_MV.abs() > EXTREME)).sum(-1),
            "collision_M": (p_MV * q_MV).sum(-1),
            "hi_collision_M": p_MV.square().sum(-1),
            "lo_collision_M": q_MV.square().sum(-1),
            "hi_p_M": p_MV.gather(-1, target_M1).squeeze(-1),
            "lo_p_M": q_MV.gather(-1, target_M1).squeeze(-1),
            "log_ratio_M": d_MV.gather(-1, target_M1).squeeze(-1),
            "hi_confidence_M": p_MV.amax(-1),
            "lo_confidence_M": q_MV.amax(-1),
        }
    )
    rows = torch.stack([column_M.double() for column_M in columns.values()]).cpu().numpy()
    return TokenView(**dict(zip(columns, rows, strict=True)))


def join_views(views: Sequence[TokenView]) -> TokenView:
    """Returns the tokens of all views as one."""
    return TokenView(**{f.name: np.concatenate([getattr(v, f.name) for v in views]) for f in fields(TokenView)})


def _divergences(p_MV: Tensor, q_MV: Tensor, log_p_MV: Tensor, log_q_MV: Tensor, d_MV: Tensor) -> dict[str, Tensor]:
    wild_MV = d_MV.abs() > _WILD
    is_wild = not bool((d_MV.abs().amax() <= _WILD) if d_MV.numel() else True)
    # Where lo is certain to a degree that hi cannot hold, p d is 0, and so is q d the other way round.
    up_MV = d_MV.clamp(max=_WILD) if is_wild else d_MV
    down_MV = d_MV.clamp(min=-_WILD) if is_wild else d_MV
    tame_MV = up_MV.clamp(min=-_WILD) if is_wild else d_MV
    e_MV = tame_MV.expm1()  # r - 1
    half_MV = (e_MV / 2).log1p()
    excess_MV, k3_MV = p_MV * e_MV.square(), p_MV * (e_MV - up_MV)
    if is_wild:
        beyond_MV = wild_MV & (d_MV > 0)
        excess_MV = torch.where(beyond_MV, (2 * log_q_MV - log_p_MV).exp(), excess_MV)
        k3_MV = torch.where(beyond_MV, q_MV, k3_MV)
    return {
        "kl_M": 0.0 - (p_MV * up_MV).sum(-1),  # never minus zero
        "kl_reverse_M": (q_MV * down_MV).sum(-1),
        "js_M": (q_MV * (tame_MV - half_MV) - p_MV * half_MV).sum(-1) / 2,
        "k2_M": (p_MV * up_MV.square()).sum(-1) / 2,
        "k3_M": k3_MV.sum(-1),
        "excess_M": excess_MV.sum(-1),
    }


def _ranks(hi_MV: Tensor, lo_MV: Tensor, target_M1: Tensor) -> dict[str, Tensor]:
    size = min(TOP, hi_MV.shape[-1])
    hi_top, lo_top = hi_MV.topk(size, dim=-1), lo_MV.topk(size, dim=-1)
    common_MK = (hi_top.indices.unsqueeze(-1) == lo_top.indices.unsqueeze(-2)).any(-1)
    hi_M, lo_M, target_M = hi_MV.argmax(-1), lo_MV.argmax(-1), target_M1.squeeze(-1)
    return {
        "same_top_M": hi_M == lo_M,
        "overlap_M": common_MK.double().mean(-1),
        "hi_lead_M": hi_top.values[:, 0] - hi_top.values[:, min(1, size - 1)],
        "hi_right_M": hi_M == target_M,
        "lo_right_M": lo_M == target_M,
    }

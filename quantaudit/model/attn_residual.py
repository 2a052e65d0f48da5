"""Block attention residuals: each sub-layer reads a softmax mixture of earlier block sums, per token.

score_s = sum_c (V_s,c / rms(V_s)) w_n,c w_p,c over the sources V = [bank ..., prefix]; no 1/sqrt(d); the values
that are mixed are not normalised. Everything is widened, the result cast once.

Source: Attention Residuals (arXiv:2603.15031); Kimi K3 report section 2.2.
Legend: N tokens, D hidden, S sources.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.model.precision import widen


class NormWeight(nn.Module):
    """The weight of the norm inside an attention residual, `[D]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class PseudoQuery(nn.Module):
    """The pseudo-query of an attention residual, stored `[1, D]`; zero at the start of training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))


def score_sources(sources_SND: Tensor, norm: NormWeight, query: PseudoQuery, eps: float) -> Tensor:
    """Returns the scores `[S, N]` of widened sources."""
    direction_D = widen(norm.weight) * widen(query.weight)[0]
    scale_SN = torch.rsqrt(sources_SND.square().mean(-1) + eps)
    return (sources_SND @ direction_D) * scale_SN


def mix_sources(bank: list[Tensor], prefix_ND: Tensor, norm: NormWeight, query: PseudoQuery, eps: float) -> Tensor:
    """Returns the mixture `[N, D]` in the dtype of the prefix.

    Args:
        bank: Block sums, oldest first, each `[N, D]`.
        prefix_ND: Running sum of the current block; the last source.
        norm: Weight of the norm applied to the sources before scoring.
        query: Pseudo-query.
        eps: Epsilon of that norm.
    """
    sources_SND = widen(torch.stack([*bank, prefix_ND]))
    prob_SN = score_sources(sources_SND, norm, query, eps).softmax(dim=0)
    return (prob_SN.unsqueeze(-1) * sources_SND).sum(0).to(prefix_ND.dtype)

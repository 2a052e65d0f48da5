"""Quantile Balancing: the router bias that gives every expert its share, solved rather than nudged.

With k experts per token out of n, alpha_i the (k+1)-th largest biased score of token i and r_ij = alpha_i - s_ij,
token i selects expert j roughly when b_j > r_ij; so b_j is the k/n quantile of r_.j, centred afterwards. One update
per optimizer step, over the global batch; frozen at inference. The histogram form counts integers, so its result
does not depend on how the tokens are spread over ranks or accumulation steps.

Source: Kimi K3 report section 2.3 and appendix.
Legend: N tokens, E experts, B bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def residuals(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Tensor:
    """Returns r_ij = alpha_i - s_ij, `[N, E]`."""
    alpha_N = torch.topk(score_NE + bias_E, top_k + 1, dim=-1).values[:, -1]
    return alpha_N.unsqueeze(-1) - score_NE


def balance_exact(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Tensor:
    """Returns the updated bias `[E]` by sorting: the ceil(q)-th smallest residual of each expert, q = N k / E.

    This is the limit of `balance_histogram` as bins are added: the bin that holds that residual shrinks onto it,
    from above. The report writes the (q+1)-th smallest instead, which is the same unless q is an integer; then every
    bias between the two gives an expert exactly q tokens, and this one is the lower end of the interval.
    """
    num_tokens, num_experts = score_NE.shape
    rank = math.ceil(num_tokens * top_k / num_experts)
    solved_E = residuals(score_NE, bias_E, top_k).sort(dim=0).values[rank - 1]
    return solved_E - solved_E.mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceHistogram:
    """Integer counts of the residuals, per expert, over [min(b) - 1, max(b) + 1]."""

    counts_EB: Tensor
    lowest: float
    width: float
    num_tokens: int

    def __add__(self, other: BalanceHistogram) -> BalanceHistogram:
        """Pools the counts of two shards (the one all-reduce of a step)."""
        if (self.lowest, self.width) != (other.lowest, other.width):
            raise ValueError("histograms of two different biases cannot be pooled")
        return BalanceHistogram(
            counts_EB=self.counts_EB + other.counts_EB,
            lowest=self.lowest,
            width=self.width,
            num_tokens=self.num_tokens + other.num_tokens,
        )


def count_residuals(score_NE: Tensor, bias_E: Tensor, top_k: int, *, bins: int = 1000) -> BalanceHistogram:
    """Counts the residuals of one shard."""
    lowest, highest = float(bias_E.min()) - 1.0, float(bias_E.max()) + 1.0
    width = (highest - lowest) / bins
    num_experts = score_NE.shape[1]
    r_NE = residuals(score_NE, bias_E, top_k)
    bin_NE = ((r_NE - lowest) / width).long().clamp_(0, bins - 1)
    offset_E = torch.arange(num_experts, device=bin_NE.device) * bins
    counts = torch.bincount((bin_NE + offset_E).flatten(), minlength=num_experts * bins)
    return BalanceHistogram(
        counts_EB=counts.view(num_experts, bins), lowest=lowest, width=width, num_tokens=score_NE.shape[0]
    )


def balance_histogram(histogram: BalanceHistogram, top_k: int) -> Tensor:
    """Returns the updated bias `[E]`: the first bin whose cumulative count reaches q, interpolated linearly."""
    counts = histogram.counts_EB
    q = histogram.num_tokens * top_k / counts.shape[0]
    cumulative = counts.cumsum(-1)
    bin_E = (cumulative >= -(-q // 1)).int().argmax(-1, keepdim=True)
    inside = counts.gather(-1, bin_E).clamp(min=1)
    before = cumulative.gather(-1, bin_E) - counts.gather(-1, bin_E)
    fraction = ((q - before) / inside).clamp(0.0, 1.0)
    solved_E = (histogram.lowest + (bin_E + fraction) * histogram.width).squeeze(-1).float()
    return solved_E - solved_E.mean()


def max_violation(load_E: Tensor) -> float:
    """Returns max load / mean load - 1; 0 is perfect balance."""
    return float(load_E.max() / load_E.float().mean() - 1.0)

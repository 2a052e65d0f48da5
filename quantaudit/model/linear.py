"""The two seams: the only matrix products with weights, and the only modules an engine replaces.

Legend: N rows, I in, O out, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """Computes y = x W^T; the weight is `[out, in]`, without bias.

    A weight narrower than the input is widened exactly to the input's dtype.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x_NI: Tensor) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`."""
        return nn.functional.linear(x_NI, self.weight.to(x_NI.dtype))


class GroupedLinear(nn.Module):
    """Computes y = x W_e^T for rows sorted by expert; the weight is `[E, out, in]`."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))

    def forward(self, x_NI: Tensor, counts_E: list[int]) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`.

        Args:
            x_NI: Rows sorted by expert.
            counts_E: Rows of each expert, summing to N.
        """
        return grouped_matmul(x_NI, self.weight, counts_E)


def grouped_matmul(x_NI: Tensor, w_EOI: Tensor, counts_E: list[int]) -> Tensor:
    """Multiplies each expert's rows by its weight, one product a group; experts without rows cost nothing."""
    groups = zip(torch.split(x_NI, counts_E), w_EOI.to(x_NI.dtype).unbind(0), strict=True)
    return torch.cat([nn.functional.linear(rows, w_OI) for rows, w_OI in groups if len(rows)])

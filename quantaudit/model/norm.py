"""RMSNorm as the released model rounds it: normalised in fp32, cast to the input dtype, then weighted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.model.precision import widen


class RMSNorm(nn.Module):
    """Computes w * cast(x / sqrt(mean(x^2) + eps)); the weight is used as it is, not as 1 + w."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x_ND: Tensor) -> Tensor:
        """Returns the normalised rows in the dtype of `x_ND`."""
        return self.weight.to(x_ND.dtype) * normalize_rms(x_ND, self.eps).to(x_ND.dtype)


def normalize_rms(x_ND: Tensor, eps: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) over the last dimension, widened."""
    wide = widen(x_ND)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)

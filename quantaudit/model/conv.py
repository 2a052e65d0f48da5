"""Causal depthwise convolution with a carried window.

y_t = silu(sum_j w_j x_(t-W+1+j)) per channel: tap 0 meets the oldest input, tap W-1 the current one.

Legend: B sequences, T tokens, C channels, W taps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.model.precision import widen


class ShortConv(nn.Module):
    """A depthwise convolution; the weight is `[channels, 1, taps]` and stays fp32 on disk."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))

    def forward(self, x_BTC: Tensor, window_BCW: Tensor | None) -> Tensor:
        """Returns silu(conv(x)) as `[B, T, C]`.

        Args:
            x_BTC: Inputs.
            window_BCW: The W inputs before the first one, oldest first; zeros when `None`.
        """
        taps = self.weight.shape[-1]
        history = x_BTC.new_zeros(x_BTC.shape[0], taps, x_BTC.shape[2]) if window_BCW is None else window_BCW.mT
        full = widen(torch.cat([history[:, 1:].to(x_BTC.dtype), x_BTC], dim=1))
        w_WC = widen(self.weight)[:, 0].T
        steps = x_BTC.shape[1]
        mixed = full[:, :steps] * w_WC[0]
        for j in range(1, taps):
            mixed = mixed + full[:, j : j + steps] * w_WC[j]
        return nn.functional.silu(mixed).to(x_BTC.dtype)


def slide_window(window_BCW: Tensor | None, x_BTC: Tensor, lengths: tuple[int, ...], taps: int) -> Tensor:
    """Returns the last `taps` inputs of each sequence, `[B, C, W]`, oldest first, zeros before the start."""
    history = x_BTC.new_zeros(x_BTC.shape[0], taps, x_BTC.shape[2]) if window_BCW is None else window_BCW.mT
    full = torch.cat([history, x_BTC], dim=1)
    return torch.stack([full[b, n : n + taps] for b, n in enumerate(lengths)]).mT.contiguous()

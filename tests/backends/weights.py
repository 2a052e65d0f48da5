"""Random weights as published figures describe them, and how far a measured fraction may be from such a figure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_Z_99 = 2.5758  # two-sided 99 % point of the normal distribution


def gaussian_weights(rows: int, cols: int, *, seed: int = 0) -> Tensor:
    """Returns Gaussian numbers with a lognormal scale a row, [rows, cols] fp32."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randn(rows, 1, generator=generator).exp()
    return torch.randn(rows, cols, generator=generator) * scale


def assert_agrees(differs: Tensor, figure: float, *, digits: int) -> None:
    """Holds a measured fraction against a figure that was measured on another sample of the same size.

    The interval is that of a difference of two proportions at 99 %. Groups of a row have maxima of similar mantissa, so
    the rows are what is independent: the standard error is that of their mean. The figure itself is rounded.

    Args:
        differs: [rows, n], truth values.
        figure: A fraction.
        digits: Decimals of the fraction that the figure has.
    """
    by_row = differs.double().mean(-1)
    error = by_row.std().item() / math.sqrt(len(by_row))
    # A row may have no event at all among few: the binomial error of the whole is a lower bound of the honest one.
    error = max(error, math.sqrt(figure * (1 - figure) / differs.numel()))
    distance, allowed = abs(by_row.mean().item() - figure), _Z_99 * math.sqrt(2) * error + 0.5 * 10.0**-digits
    assert distance <= allowed, f"measured {by_row.mean().item():.5f}, published {figure}, allowed {allowed:.5f}"

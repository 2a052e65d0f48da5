"""Matrices that hit what random data hides: ties, saturation, zeros, subnormals, overflow, values already quantized."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

COLUMNS = 256
_TIES = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
_LARGEST = torch.finfo(torch.float32).max


def gaussian() -> Tensor:
    """Rows of different size, as weights have."""
    return torch.randn(3, COLUMNS) * torch.tensor([[1.0], [0.02], [300.0]])


def ties() -> Tensor:
    """Every midpoint of FP4, both signs, at three scales; integers and half-integers for the integer formats."""
    row = torch.tensor(_TIES).repeat(COLUMNS // 8) * torch.tensor([1.0, -1.0]).repeat(COLUMNS // 2)
    halves = (torch.arange(COLUMNS) % 32 - 15.5) / 2
    return torch.stack([row, row * 2.0**-20, row * 3, halves, halves / 7])


def already_quantized() -> Tensor:
    """Values that lie on the FP4 grid, and on the INT4 grid."""
    fp4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -6.0, -3.0, 4.0, 1.0, 0.0, 2.0, -1.5])
    ints = torch.arange(COLUMNS) % 16 - 8.0
    return torch.stack([fp4.repeat(COLUMNS // 16) * 0.125, ints * 0.25, ints.flip(0)])


def zeros() -> Tensor:
    """Zero groups, negative zeros, and groups with one value among zeros."""
    x = torch.zeros(3, COLUMNS)
    x[0, ::3] = -0.0
    x[1, 5], x[1, 40], x[1, 77] = 1.0, -2.0, -0.0
    x[2, 128:] = -(2.0**-140)
    return x


def subnormal() -> Tensor:
    """Numbers around and below the smallest normal number of fp32; the first row has scales that vanish."""
    x = torch.randn(4, COLUMNS) * torch.tensor([[0.0], [2.0**-129], [2.0**-136], [2.0**-125]])
    x[0, ::3], x[0, 1::6] = 2.0**-149, -(2.0**-149)
    return x


def saturating() -> Tensor:
    """Group maxima just below, at and above the points where rules change their mind, up to the largest number."""
    x = torch.randn(4, COLUMNS)
    peaks = [6.0, 7.0, 7.5, 8.0, 448.0, 480.0, 464.0, 1.75]
    for group, peak in enumerate(peaks):
        at = group * 32 + group
        x[0, at], x[1, at] = peak, -math.nextafter(peak, 0.0) * (1 - 2.0**-24)
        x[2, at] = peak * (1 + 2.0**-23)
    x[3, ::32], x[3, 1::64], x[3, 37] = _LARGEST, -_LARGEST, -(2.0**127)
    return x


def wide() -> Tensor:
    """Random exponents over all of fp32."""
    return torch.randn(3, COLUMNS) * torch.exp2(torch.randint(-149, 126, (3, COLUMNS)).float())


def opposite_maxima() -> Tensor:
    """+a and -a in one group, in both orders."""
    x = torch.randn(2, COLUMNS).clamp(-2, 2)
    x[0, 3::32], x[0, 9::32] = 4.0, -4.0
    x[1, 3::32], x[1, 9::32] = -4.0, 4.0
    return x


def infinite() -> Tensor:
    """One infinity in the second group of the second row."""
    x = torch.randn(2, COLUMNS)
    x[1, 40] = -math.inf
    return x


def not_a_number() -> Tensor:
    """A NaN, and a NaN beside an infinity."""
    x = torch.randn(2, COLUMNS)
    x[0, 200], x[1, 3], x[1, 4] = math.nan, math.inf, math.nan
    return x


MATRICES: dict[str, Callable[[], Tensor]] = {
    make.__name__: make
    for make in (
        gaussian,
        ties,
        already_quantized,
        zeros,
        subnormal,
        saturating,
        wide,
        opposite_maxima,
        infinite,
        not_a_number,
    )
}

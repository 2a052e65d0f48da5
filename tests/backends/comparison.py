"""A quantizer of a backend held against a scheme, group by group."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.backends import load_backend
from quantaudit.core.scheme import Scheme
from quantaudit.numerics import dequantize, quantize
from quantaudit.numerics.grouping import plan, to_groups
from tests.numerics.bits import bits
from tests.numerics.structured import MATRICES

DTYPES = [torch.float32, torch.bfloat16]
DTYPE_NAMES = ["fp32", "bf16"]


class Parting(NamedTuple):
    """Where two quantizers part, one truth value a group: [G] each."""

    scales: Tensor
    codes: Tensor
    values: Tensor

    @property
    def anywhere(self) -> Tensor:
        """Whether anything differs in a group."""
        return self.scales | self.codes | self.values


def structured(dtype: torch.dtype) -> Tensor:
    """Stacks all structured matrices of 256 columns, and Gaussian rows of many sizes; inf and NaN are among them."""
    rows = torch.randn(64, 256) * torch.exp2(torch.linspace(-20, 20, 64)).unsqueeze(1)
    return torch.cat([*(make() for make in MATRICES.values()), rows]).to(dtype)


def compare(backend: str, name: str, x: Tensor, scheme: Scheme) -> Parting:
    """Compares scales, codes and values of a backend's quantizer with those of a scheme, bit by bit."""
    library = load_backend(backend)
    theirs, ours = library.quantize(x, name), quantize(x, scheme)
    assert theirs.scales.shape == ours.scales.shape and theirs.codes.dtype == ours.codes.dtype
    cut = plan(tuple(x.shape), scheme.granularity)

    def differ(a: Tensor, b: Tensor) -> Tensor:
        return to_groups(a != b, cut).any(-1).flatten()

    values = differ(bits(library.dequantize(theirs)), bits(dequantize(ours)))
    scales = (bits(theirs.scales) != bits(ours.scales)).flatten()
    return Parting(scales, differ(theirs.codes, ours.codes), values)


def grouped(x: Tensor, scheme: Scheme) -> Tensor:
    """Returns the groups of a matrix, [G, N]."""
    return to_groups(x, plan(tuple(x.shape), scheme.granularity)).flatten(0, 1)


def row_of(*head: float, size: int = 32, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns one row, [1, size], of these numbers and zeros after them."""
    x = torch.zeros(1, size)
    x[0, : len(head)] = torch.tensor(head)
    return x.to(dtype)

"""Groups that hit what random data hides, each with one value that dominates it.

Shape suffixes: G groups, N members of a group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.arrangement import arrange, collect, group_size, spread
from quantaudit.numerics.reference import fake_quantize

_FREE_SIZE = 256  # members of a group, where the shape of the matrix decides
_SEED = 20260801
_TIES = (6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


class Dominated(NamedTuple):
    """Groups, and the position in each of a value that no other reaches in magnitude."""

    groups_GN: Tensor
    position_G: Tensor


def dominated_groups(scheme: Scheme, dtype: torch.dtype) -> Dominated:
    """Returns groups of every sort: Gaussian, ties, already quantized, one-sided, tiny and huge."""
    size = group_size(scheme.granularity) or _FREE_SIZE
    rng = torch.Generator().manual_seed(_SEED)
    gaussian_GN = torch.randn(4, size, generator=rng)
    ties_N = torch.tensor(_TIES).repeat(math.ceil(size / len(_TIES)))[:size]
    signs_N = torch.tensor([1.0, -1.0, -1.0]).repeat(math.ceil(size / 3))[:size]
    sorts = [
        gaussian_GN * torch.tensor([[1.0], [0.02], [300.0], [1e-7]]),
        (ties_N * signs_N) * torch.tensor([[1.0], [2.0**-20], [3.0]]),
        (torch.arange(size) % 31 - 15) / torch.tensor([[2.0], [7.0], [15.0]]),
        _already_quantized(gaussian_GN, scheme),
        gaussian_GN.abs()[:2] * torch.tensor([[1.0], [-1.0]]),
        gaussian_GN[:2] * torch.tensor([[2.0**-130], [2.0**120]]),
    ]
    groups_GN = torch.cat(sorts).to(dtype)
    position_G = torch.randint(0, size, (len(groups_GN),), generator=rng)
    peak_G = groups_GN.abs().amax(1) * 1.25
    rows_G = torch.arange(len(groups_GN))
    groups_GN[rows_G, position_G] = torch.where(rows_G % 3 == 0, peak_G, -peak_G)
    return Dominated(groups_GN, position_G)


def special_groups(scheme: Scheme, dtype: torch.dtype, specials: tuple[float, ...]) -> Tensor:
    """Returns groups with one or two members that are not finite, first, in the middle and last, among several others.

    Args:
        scheme: Says how large a group is.
        dtype: fp32 or bf16.
        specials: What is put in; the last two together make one more sort.
    """
    size = group_size(scheme.granularity) or _FREE_SIZE
    rng = torch.Generator().manual_seed(_SEED + 1)
    backgrounds = [torch.zeros(size), torch.ones(size), torch.randn(size, generator=rng), torch.full((size,), -7.5)]
    groups = []
    for background_N in backgrounds:
        for at in (0, size // 2, size - 1):
            for special in specials:
                group_N = background_N.clone()
                group_N[at] = special
                groups.append(group_N)
        both_N = background_N.clone()
        both_N[1], both_N[size - 2] = specials[-2], specials[-1]
        groups.append(both_N)
    return torch.stack(groups).to(dtype)


def _already_quantized(gaussian_GN: Tensor, scheme: Scheme) -> Tensor:
    where = arrange(len(gaussian_GN), gaussian_GN.shape[1], scheme.granularity)
    one = where._replace(num_matrices=1)
    return torch.cat([collect(fake_quantize(matrix, scheme), one) for matrix in spread(gaussian_GN, where)])

"""Whether a power of two times a group gives that times its result: the premise by which one binade stands for all.

Shape suffixes: G groups, N members of a group.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantaudit.core.certificate import Assumption
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import bits_of
from quantaudit.identity.domain import INPUTS
from quantaudit.identity.observe import run_groups
from quantaudit.identity.sides import Side
from quantaudit.identity.step_domain import highest_scalable, lowest_scalable

_NUM_VALUES = 1 << 14
_FREE_SIZE = 256  # members of a group, where the shape of the matrix decides
_BINADES = 12  # below the statistic, where codes change
_SEED = 20260807


def check_equivariant(side: Side, dtype: torch.dtype, out_dtype: torch.dtype) -> Assumption:
    """Runs a side on groups whose absmax is in the binade of 1, and on the same in every other binade.

    Args:
        side: The side, of a linear scale.
        dtype: Of the inputs.
        out_dtype: Of decoded values where the side leaves it open.
    """
    base_GN = _groups(side, dtype)
    expected = run_groups(side, base_GN, side.scheme, out_dtype)
    checked, failures = 0, []
    for exponent in _exponents(side):
        moved_GN = (base_GN.double() * 2.0**exponent).to(dtype)
        # What a subnormal input cannot hold is another input, and not compared.
        is_exact_GN = moved_GN.double() == base_GN.double() * 2.0**exponent
        found = run_groups(side, moved_GN, side.scheme, out_dtype)
        differs_GN = ~_is_scaled(found.values_GN, expected.values_GN, exponent)
        if found.codes_GN is not None and expected.codes_GN is not None:
            differs_GN |= found.codes_GN != expected.codes_GN
        if found.scales_G is not None and expected.scales_G is not None:
            differs_GN |= ~_is_scaled(found.scales_G, expected.scales_G, exponent).unsqueeze(1)
        differs_GN &= is_exact_GN
        checked += int(is_exact_GN.sum())
        if differs_GN.any():
            failures.append(f"{int(differs_GN.sum())} values times 2^{exponent}")
    return Assumption(
        side=side.name,
        name="equivariant",
        statement="Multiplying a group by a power of two multiplies scale and results by it, and changes no code.",
        holds=not failures,
        num_checked=checked,
        found="; ".join(failures) or None,
    )


def _groups(side: Side, dtype: torch.dtype) -> Tensor:
    """Returns groups [G, N] of random magnitudes in the twelve binades below an absmax in the binade of 1."""
    inputs = INPUTS[dtype]
    size = group_size(side.scheme.granularity) or _FREE_SIZE
    rng = torch.Generator().manual_seed(_SEED)
    one, num_groups = 1 << inputs.mantissa_bits, max(2, _NUM_VALUES // size)
    ranks_G1 = inputs.rank_of_one + torch.randint(0, one, (num_groups, 1), generator=rng)
    below_GN = torch.randint(0, _BINADES * one, (num_groups, size), generator=rng)
    groups_GN = inputs.numbers(ranks_G1 - below_GN)
    groups_GN[:, 0] = inputs.numbers(ranks_G1.squeeze(1))
    is_negative_GN = torch.rand(groups_GN.shape, generator=rng) < 0.5
    return torch.where(is_negative_GN, -groups_GN, groups_GN)


def _exponents(side: Side) -> range:
    """Returns the powers of two that lead to every other binade in which nothing is subnormal and nothing overflows."""
    lowest = math.frexp(lowest_scalable(side.scheme))[1] - 1
    highest = math.frexp(highest_scalable(side.scheme))[1] - 2
    return range(lowest, highest + 1)


def _is_scaled(found: Tensor, expected: Tensor, exponent: int) -> Tensor:
    """Returns where `found` is `expected` times a power of two, bit for bit."""
    scaled = (expected.double() * 2.0**exponent).to(found.dtype)
    return bits_of(found.contiguous()) == bits_of(scaled.contiguous())

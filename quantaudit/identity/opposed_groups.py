"""Groups that hold both +a and -a: which of them a signed statistic takes is a rule of its own.

It decides the sign of the scale, hence everything in the group: under gguf's Q4_0 [1, -1, .3] becomes [1, -.875, .25]
and [-1, 1, .3] becomes [-1, .875, .25]. Every a of bf16 is tried in both orders, and every pair of positions for some.

Shape suffixes: G groups, N members of a group, P pairs of positions.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import Tallies, add_masks, bits_of, find_differences, kind_of
from quantaudit.identity.domain import InputNumbers
from quantaudit.identity.observe import run_groups
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side
from quantaudit.identity.special_blocks import as_block, as_outcome

_FREE_SIZE = 64  # members of a group, where the shape of the matrix decides
_EVERY = {7: 1, 23: 1 << 16}  # of so many magnitudes one is tried, by mantissa bits
_PAIRED = (1.0, 1.9921875, 7.0, 2.0**-15)  # magnitudes under which every pair of positions is tried
_PIECE = 1 << 13  # groups


class Takes(StrEnum):
    """Which of +a and -a decides."""

    FIRST = "first"
    LAST = "last"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    EITHER = "either: the sign does not matter"
    UNCLEAR = "unclear"


def compare_opposed(sides: tuple[Side, Side], inputs: InputNumbers, tallies: Tallies, out_dtype: torch.dtype) -> int:
    """Compares two sides on groups with +a and -a, and counts; returns how many values were compared.

    Args:
        sides: Both sides, of one granularity.
        inputs: The input dtype.
        tallies: Counts, which grow.
        out_dtype: Of decoded values where a side leaves it open.
    """
    scheme = sides[0].scheme
    size = group_size(scheme.granularity) or _FREE_SIZE
    ranks = torch.arange(1, inputs.num_ranks, _EVERY[inputs.mantissa_bits])
    total = 0
    for groups_GN in (*_every_magnitude(ranks, size, inputs).split(_PIECE), _every_pair(size, inputs)):
        outcomes = [as_outcome(run_groups(side, groups_GN, scheme, out_dtype)) for side in sides]
        _count(tallies, groups_GN, outcomes[0], outcomes[1])
        total += groups_GN.numel()
    return total


def find_what_it_takes(side: Side, scheme: Scheme, inputs: InputNumbers, out_dtype: torch.dtype) -> Takes:
    """Returns which of +1 and -1 decides, by what becomes of the other values of the group."""
    size = group_size(scheme.granularity) or _FREE_SIZE
    others_N = (torch.arange(size) % 13 - 6) / 7.7
    groups_GN = others_N.repeat(4, 1)
    groups_GN[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    groups_GN[:, -1] = torch.tensor([-1.0, 1.0, 0.0, 0.0])
    values_GN = run_groups(side, groups_GN.to(inputs.dtype), scheme, out_dtype).values_GN
    positive_first, negative_first, positive, negative = bits_of(values_GN[:, 1:-1].contiguous()).unbind(0)
    if torch.equal(positive, negative):
        return Takes.EITHER
    once, again = (
        1 if torch.equal(found, positive) else -1 if torch.equal(found, negative) else 0
        for found in (positive_first, negative_first)
    )
    known = {(1, -1): Takes.FIRST, (-1, 1): Takes.LAST, (1, 1): Takes.POSITIVE, (-1, -1): Takes.NEGATIVE}
    return known.get((once, again), Takes.UNCLEAR)


def _every_magnitude(ranks: Tensor, size: int, inputs: InputNumbers) -> Tensor:
    """Returns two groups for every magnitude, +a first and -a first, at changing positions."""
    first = (ranks * 7) % (size - 1)
    second = first + 1 + (ranks * 13) % (size - 1 - first)
    magnitudes_GN = inputs.numbers((ranks.unsqueeze(1) - (torch.arange(size) + 1) * 11).clamp(min=0))
    signs_N = torch.where(torch.arange(size) % 3 == 1, -1.0, 1.0).to(inputs.dtype)
    return _oppose(magnitudes_GN * signs_N, inputs.numbers(ranks), first, second)


def _every_pair(size: int, inputs: InputNumbers) -> Tensor:
    """Returns two groups for every pair of positions under some magnitudes."""
    first, second = torch.triu_indices(size, size, offset=1).unbind(0)
    others_N = (torch.arange(size) % 13 - 6) / 7.7
    groups = [
        _oppose(
            (others_N * peak).to(inputs.dtype).repeat(len(first), 1),
            torch.full((len(first),), peak, dtype=inputs.dtype),
            first,
            second,
        )
        for peak in _PAIRED
    ]
    return torch.cat(groups)


def _oppose(others_GN: Tensor, peak_G: Tensor, first_G: Tensor, second_G: Tensor) -> Tensor:
    """Returns the groups twice, with +a at the first and -a at the second position, and turned around."""
    rows_G = torch.arange(len(others_GN))
    both = []
    for sign in (1.0, -1.0):
        groups_GN = others_GN.clone()
        groups_GN[rows_G, first_G] = peak_G * sign
        groups_GN[rows_G, second_G] = -peak_G * sign
        both.append(groups_GN)
    return torch.cat(both)


def _count(tallies: Tallies, groups_GN: Tensor, a: Outcome, b: Outcome) -> None:
    tallies.has_scales &= a.scales_BR is not None and b.scales_BR is not None
    tallies.has_codes &= a.codes_BM is not None and b.codes_BM is not None
    masks = find_differences(a, b, torch.ones_like(groups_GN, dtype=torch.bool), with_codes=tallies.has_codes)
    absmax = groups_GN.abs().amax(1).tolist()
    kinds = [kind_of(value, tallies.largest, tallies.smallest) for value in absmax]
    block = as_block(groups_GN)
    for kind in set(kinds):
        rows_G = torch.tensor([k is kind for k in kinds])
        tally = tallies.of(kind)
        tally.num_pairs += int(rows_G.sum()) * groups_GN.shape[1]
        add_masks(tally, masks, rows_G, block, a, b)

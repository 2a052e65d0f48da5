"""Groups with infinities and NaN: no statistic is finite there, so they are tried by example and counted apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, BlockSection, Differing
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.identity.differences import Tallies, add_masks, find_differences
from quantaudit.identity.domain import INPUTS, Block
from quantaudit.identity.fast_reference import is_two_level
from quantaudit.identity.observe import Grouped, join, run_groups
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side
from quantaudit.identity.structured_groups import special_groups

_SPECIALS = {
    BlockKind.INFINITE: (math.inf, -math.inf),
    BlockKind.NAN: (math.nan, math.inf),
}


def compare_special(
    sides: tuple[Side, Side], scheme: Scheme, dtype: torch.dtype, out_dtype: torch.dtype, *, with_codes: bool
) -> tuple[list[BlockSection], list[str]]:
    """Compares two sides on groups that are not finite.

    Args:
        sides: Both sides.
        scheme: Says which values are a group.
        dtype: Of the inputs.
        out_dtype: Of decoded values where a side leaves it open.
        with_codes: Whether codes are of one numbering.

    Returns:
        A section for infinities and one for NaN, and sentences about sides that refuse such groups.
    """
    sections, notes = [], []
    for kind, specials in _SPECIALS.items():
        groups_GN = special_groups(scheme, dtype, specials)
        if kind is BlockKind.NAN:
            groups_GN = groups_GN[groups_GN.isnan().any(1)]
        found = [_attempt(side, groups_GN, scheme, out_dtype) for side in sides]
        refusals = [side.name for side, result in zip(sides, found, strict=True) if result is None]
        notes += [f"{name} refuses groups that hold {kind.value} values." for name in refusals]
        sections.append(_section(kind, groups_GN, found, with_codes=with_codes))
    return sections, notes


def _attempt(side: Side, groups_GN: Tensor, scheme: Scheme, out_dtype: torch.dtype) -> Grouped | None:
    """Returns the results, or `None` where the side refuses such input.

    Where a matrix shares a second level every group gets one of its own, or all would be as the worst.
    """
    try:
        if not is_two_level(scheme):
            return run_groups(side, groups_GN, scheme, out_dtype)
        parts = [run_groups(side, group_1N, scheme, out_dtype) for group_1N in groups_GN.split(1)]
    except InputError:
        return None
    return join(parts)


def _section(kind: BlockKind, groups_GN: Tensor, found: list[Grouped | None], *, with_codes: bool) -> BlockSection:
    left, right = found
    if left is None or right is None:
        num_differing = 0 if left is right else groups_GN.numel()
        differing = Differing(scales=None, codes=None, values=num_differing)
        return BlockSection(
            kind=kind,
            num_pairs=groups_GN.numel(),
            differing=differing,
            a_refuses=left is None,
            b_refuses=right is None,
        )
    a, b = as_outcome(left), as_outcome(right)
    masks = find_differences(a, b, torch.ones_like(groups_GN, dtype=torch.bool), with_codes=with_codes)
    tallies = Tallies(largest=1.0, has_codes=masks.codes_BM is not None, has_scales=masks.scales_B is not None)
    tally = tallies.of(kind)
    add_masks(tally, masks, torch.ones(len(groups_GN), dtype=torch.bool), as_block(groups_GN), a, b)
    return BlockSection(
        kind=kind,
        num_pairs=groups_GN.numel(),
        differing=tallies.differing(kind),
        zero_signs=tally.zero_signs,
        counterexample=tally.first,
    )


def as_block(groups_GN: Tensor) -> Block:
    """Returns groups as a block whose statistics are their absolute maxima (positive, or NaN)."""
    inputs = INPUTS[groups_GN.dtype]
    absmax_G = groups_GN.abs().amax(1)
    return Block(
        inputs=inputs,
        ranks_B=absmax_G.view(inputs.bits_dtype).to(torch.int64),
        is_negative=False,
        listed_BM=groups_GN.contiguous().view(inputs.bits_dtype),
        ladder=0,
    )


def as_outcome(found: Grouped) -> Outcome:
    """Returns results by group as an outcome of one row a group."""
    return Outcome(
        scales_BR=None if found.scales_G is None else found.scales_G.unsqueeze(1),
        codes_BM=found.codes_GN,
        values_BM=found.values_GN,
    )

"""Two sides run on one block and compared: where their results lie, if the block allows it, and in its order if not.

Results are taken out of groups only where they differ, which is for counting and for words. What a side makes of a
statistic itself then stands for the value of that rank wherever the sides disagree on it.

Shape suffixes: B statistics, M values of a row, R groups of a row, N members of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.identity.differences import bits_of, is_same
from quantaudit.identity.domain import Block
from quantaudit.identity.laying import LaidOut, lay_out, take_out
from quantaudit.identity.observe import observe, observe_in_place
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side


class Both(NamedTuple):
    """What two sides make of a block, in its order; where they lie if that is the same."""

    a: Outcome
    b: Outcome
    is_same: bool


def observe_both(
    sides: tuple[Side, Side], block: Block, out_dtype: torch.dtype, *, is_statistic_first: bool, with_codes: bool
) -> Both:
    """Returns what two sides make of a block, and whether that is the same.

    Args:
        sides: Both sides; those with stairs are not run.
        block: The inputs.
        out_dtype: Dtype of decoded values where a side leaves it open.
        is_statistic_first: Where in a group the statistic stands.
        with_codes: Whether codes count.
    """
    scheme = next((side.scheme for side in sides if not side.has_stairs), None)
    laid_out = None if scheme is None else lay_out(block, scheme, is_statistic_first=is_statistic_first)
    if laid_out is None or not laid_out.fills:
        a, b = (observe(side, block, None if side.has_stairs else laid_out, out_dtype) for side in sides)
        return Both(a, b, is_same(a, b, with_codes=with_codes))
    a, b = (observe_in_place(side, block, laid_out, out_dtype) for side in sides)
    if is_same(a, b, with_codes=with_codes):
        return Both(a, b, True)
    return Both(*_in_order(a, b, block, laid_out), False)


def _in_order(a: Outcome, b: Outcome, block: Block, laid_out: LaidOut) -> tuple[Outcome, Outcome]:
    """Takes both out of their groups; the results of statistics on which they disagree go where their rank is."""
    out_a, out_b = (take_out(one, block, laid_out) for one in (a, b))
    _put_statistics(a.values_BM, b.values_BM, out_a.values_BM, out_b.values_BM, block, laid_out)
    if a.codes_BM is not None and b.codes_BM is not None:
        assert out_a.codes_BM is not None and out_b.codes_BM is not None
        _put_statistics(a.codes_BM, b.codes_BM, out_a.codes_BM, out_b.codes_BM, block, laid_out)
    return out_a, out_b


def _put_statistics(
    a_BX: Tensor, b_BX: Tensor, out_a_BM: Tensor, out_b_BM: Tensor, block: Block, laid_out: LaidOut
) -> None:
    """Writes results of statistics that differ, of the first such group of a row, to the columns of their ranks."""
    own_a_BR, own_b_BR = (_of_statistics(one, laid_out) for one in (a_BX, b_BX))
    differs_BR = _differs(own_a_BR, own_b_BR)
    rows = differs_BR.any(1).nonzero().flatten()
    groups = differs_BR[rows].to(torch.uint8).argmax(1)
    at = block.ranks_B[rows] + (block.ladder if block.is_negative else 0)
    out_a_BM[rows, at] = own_a_BR[rows, groups]
    out_b_BM[rows, at] = own_b_BR[rows, groups]


def _of_statistics(results_BX: Tensor, laid_out: LaidOut) -> Tensor:
    """Returns the results of the statistics, [B, R]."""
    members_BRN = results_BX.view(len(results_BX), laid_out.groups_a_row, laid_out.places.size)
    return members_BRN[..., laid_out.places.statistic]


def _differs(a_BR: Tensor, b_BR: Tensor) -> Tensor:
    """Returns where results differ: integers, or numbers by their bits, of which all NaN are one."""
    if not a_BR.is_floating_point():
        return a_BR != b_BR
    a_BR, b_BR = a_BR.float(), b_BR.float()
    return (bits_of(a_BR) != bits_of(b_BR)) & ~(a_BR.isnan() & b_BR.isnan())

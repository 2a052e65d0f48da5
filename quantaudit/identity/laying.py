"""A block laid out as groups, and results taken out of groups again.

A group of N is the statistic and N - 1 values of the row; the statistic stands first in one block and last in the next.
Where the shape of the matrix decides the groups, a row is one group. A ladder that fills its groups exactly lies in
them by arithmetic: two outcomes of it can be compared where they lie, and need be taken out only if they differ.

Shape suffixes: B statistics, S signs of the value, M values of a row, R groups of a row, H groups of one sign of it,
N members of a group, G = B R groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.domain import Block, write_ladder
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.places import Places

_LARGEST_FILLED = 256  # members of a group; of larger ones a ladder would hold too much that is not counted


class LaidOut(NamedTuple):
    """A block as groups [G, N], and where in them its statistics and values are; `fills` if nothing else is in them."""

    groups_GN: Tensor
    groups_a_row: int
    places: Places
    fills: bool


def ladder_multiple(scheme: Scheme) -> int:
    """Returns of which a ladder should be a multiple, so that it fills the groups of a scheme; 1 for large groups."""
    size = group_size(scheme.granularity) or 1
    return size - 1 if 1 < size <= _LARGEST_FILLED else 1


def lay_out(block: Block, scheme: Scheme, *, is_statistic_first: bool) -> LaidOut:
    """Returns the groups of a block under the granularity of a scheme."""
    num_rows, num_values = block.shape
    size = group_size(scheme.granularity) or 1 + num_values
    places = Places(size, is_statistic_first)
    a_row = -(-num_values // (size - 1))
    fills = block.ladder > 0 and block.ladder % (size - 1) == 0
    groups_BRN = _ladder_groups(block, places) if fills else _listed_groups(block, places, a_row)
    groups_BRN[..., places.statistic] = block.statistics_B.unsqueeze(1)
    return LaidOut(groups_BRN.flatten(0, 1), a_row, places, fills)


def _ladder_groups(block: Block, places: Places) -> Tensor:
    """Returns the groups of a ladder without their statistics, [B, R, N].

    All rows are the same up to the smallest statistic, so one is copied; beyond it every row has its own limit.
    """
    in_half, values = block.ladder // (places.size - 1), places.values
    row_SHN = torch.zeros(2, in_half, places.size, dtype=block.inputs.bits_dtype)
    write_ladder(block.ladder, block.ranks_B[-1:], block.inputs, row_SHN.unsqueeze(0)[..., values])
    bits_BSHN = row_SHN.expand(len(block.ranks_B), *row_SHN.shape).contiguous()
    common = int(block.ranks_B[0]) // (places.size - 1)
    rest_BSHN = bits_BSHN[:, :, common:, values]
    write_ladder(block.ladder, block.ranks_B, block.inputs, rest_BSHN, first=common * (places.size - 1))
    return bits_BSHN.view(block.inputs.dtype).flatten(1, 2)


def _listed_groups(block: Block, places: Places, a_row: int) -> Tensor:
    """Returns the groups of any block without their statistics, filled up with zeros, [B, R, N]."""
    num_rows, num_values = block.shape
    groups_BRN = torch.zeros(num_rows, a_row, places.size, dtype=block.inputs.dtype)
    values_BM = torch.nn.functional.pad(block.values_BM, (0, a_row * (places.size - 1) - num_values))
    groups_BRN[..., places.values] = values_BM.view(num_rows, a_row, places.size - 1)
    return groups_BRN


def take_out(found: Outcome, block: Block, laid_out: LaidOut) -> Outcome:
    """Returns results in the order of the block, without those of the statistics and of the filling.

    Args:
        found: Codes and values where they lie in the groups, [B, R N].
        block: The block.
        laid_out: Its groups.
    """
    num_values = block.shape[1]

    def taken(results_BX: Tensor) -> Tensor:
        members_BRN = results_BX.view(len(results_BX), laid_out.groups_a_row, laid_out.places.size)
        return members_BRN[..., laid_out.places.values].flatten(1)[:, :num_values].contiguous()

    codes = None if found.codes_BM is None else taken(found.codes_BM)
    return Outcome(scales_BR=found.scales_BR, codes_BM=codes, values_BM=taken(found.values_BM))

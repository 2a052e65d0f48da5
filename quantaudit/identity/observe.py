"""A side run on a block: every row of values laid out as groups that the row's statistic dominates.

A group of N is the statistic and N - 1 values of the row; the statistic stands first in one block and last in the next.
Where the shape of the matrix decides the groups, a row is one group.

Shape suffixes: B statistics, M values of a row, R groups of a row, N members of a group, G = B R groups.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, Scheme, Statistic
from quantaudit.identity.arrangement import Arrangement, arrange, collect, group_size, spread
from quantaudit.identity.domain import BF16_INPUT, Block, InputNumbers
from quantaudit.identity.fast_reference import Staircase, build_staircase, climb
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side


class Grouped(NamedTuple):
    """Results by group: scales [G], codes and values [G, N]."""

    scales_G: Tensor | None
    codes_GN: Tensor | None
    values_GN: Tensor


class LaidOut(NamedTuple):
    """A block as groups, and where in them the statistic is."""

    groups_GN: Tensor
    groups_a_row: int
    is_statistic_first: bool


def is_signed(scheme: Scheme) -> bool:
    """Returns whether the sign of the largest value matters."""
    return isinstance(scheme.scale, LinearScale) and scheme.scale.statistic is Statistic.SIGNED_ABSMAX


def lay_out(block: Block, scheme: Scheme, *, is_statistic_first: bool) -> LaidOut:
    """Returns the groups of a block under the granularity of a scheme."""
    num_rows, num_values = block.bits_BM.shape
    size = group_size(scheme.granularity) or 1 + num_values
    a_row = -(-num_values // (size - 1))
    groups_BRN = torch.zeros(num_rows, a_row, size, dtype=block.inputs.dtype)
    where, rest = (0, slice(1, None)) if is_statistic_first else (size - 1, slice(None, -1))
    groups_BRN[..., where] = block.statistics_B.unsqueeze(1)
    num_filled = a_row * (size - 1)
    values_BM = block.values_BM
    if num_filled != num_values:
        values_BM = torch.nn.functional.pad(values_BM, (0, num_filled - num_values))
    groups_BRN[..., rest] = values_BM.view(num_rows, a_row, size - 1)
    return LaidOut(groups_BRN.flatten(0, 1), a_row, is_statistic_first)


def run_groups(side: Side, groups_GN: Tensor, scheme: Scheme, out_dtype: torch.dtype) -> Grouped:
    """Runs a side on groups.

    Args:
        side: The side.
        groups_GN: fp32 or bf16.
        scheme: Says which values of a matrix are a group.
        out_dtype: Dtype of decoded values, where the side leaves it open.
    """
    where = arrange(len(groups_GN), groups_GN.shape[1], scheme.granularity)
    parts = [_run_matrix(side, matrix, where, out_dtype) for matrix in spread(groups_GN, where)]
    if len(parts) == 1:
        return parts[0]
    scales, codes, values = zip(*parts, strict=True)
    return Grouped(_joined(scales), _joined(codes), torch.cat(values))


def observe(side: Side, block: Block, laid_out: LaidOut | None, out_dtype: torch.dtype) -> Outcome:
    """Returns what a side makes of a block: off stairs if `laid_out` is `None`, else by running it."""
    if laid_out is None:
        return climb(_stairs(side.scheme, block, out_dtype), block)
    found = run_groups(side, laid_out.groups_GN, side.scheme, out_dtype)
    num_rows = len(block.ranks_B)
    return Outcome(
        scales_BR=None if found.scales_G is None else found.scales_G.view(num_rows, laid_out.groups_a_row),
        codes_BM=None if found.codes_GN is None else _values_of(found.codes_GN, block, laid_out).to(torch.int16),
        values_BM=_values_of(found.values_GN, block, laid_out),
    )


def _run_matrix(side: Side, matrix: Tensor, where: Arrangement, out_dtype: torch.dtype) -> Grouped:
    produced = side.run(matrix, out_dtype)
    one = where._replace(num_matrices=1)
    return Grouped(
        None if produced.scales is None else produced.scales.reshape(-1),
        None if produced.codes is None else collect(produced.codes, one),
        collect(produced.values, one),
    )


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def _values_of(results_GN: Tensor, block: Block, laid_out: LaidOut) -> Tensor:
    """Returns the results of the values, without those of the statistics and of the filling."""
    num_rows, num_values = block.bits_BM.shape
    size = results_GN.shape[1]
    rest = slice(1, None) if laid_out.is_statistic_first else slice(None, -1)
    return results_GN[:, rest].reshape(num_rows, laid_out.groups_a_row * (size - 1))[:, :num_values]


def _stairs(scheme: Scheme, block: Block, out_dtype: torch.dtype) -> Staircase:
    """Returns the stairs of a block, those of a ladder cut out of the stairs of its whole binade."""
    if not block.ladder or int((block.ranks_B[-1] ^ block.ranks_B[0]) >> BF16_INPUT.mantissa_bits):
        return build_staircase(block.ranks_B, scheme, block.inputs, out_dtype, is_negative=block.is_negative)
    binade = int(block.ranks_B[0]) >> BF16_INPUT.mantissa_bits
    whole = _binade_stairs(binade, scheme, BF16_INPUT, out_dtype, block.is_negative)
    own_B = block.ranks_B - (binade << BF16_INPUT.mantissa_bits)
    return Staircase(
        scales_B=whole.scales_B[own_B],
        starts_BSK=whole.starts_BSK[own_B],
        codes_BSK=whole.codes_BSK[own_B],
        values_BSK=whole.values_BSK[own_B],
    )


@lru_cache(maxsize=8)
def _binade_stairs(
    binade: int, scheme: Scheme, inputs: InputNumbers, out_dtype: torch.dtype, is_negative: bool
) -> Staircase:
    first = binade << inputs.mantissa_bits
    ranks_B = torch.arange(first, first + (1 << inputs.mantissa_bits))
    return build_staircase(ranks_B, scheme, inputs, out_dtype, is_negative=is_negative)

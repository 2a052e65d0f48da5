"""A side run on a block: its groups quantized, or its results read off stairs.

Shape suffixes: B statistics, M values of a row, R groups of a row, N members of a group, G = B R groups.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, Scheme, Statistic
from quantaudit.identity.arrangement import Arrangement, arrange, collect, spread
from quantaudit.identity.domain import BF16_INPUT, Block, InputNumbers
from quantaudit.identity.fast_reference import Staircase, build_staircase, climb, quantize_few
from quantaudit.identity.laying import LaidOut, take_out
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side

_TOP_GROUPS = 16  # a row of a matrix of groups
_FEW = 16  # values of a row for which no stairs are built
_CHUNK_BITS = 9  # log2 of the statistics whose stairs are built at once: for a binade alone calling costs more


class Grouped(NamedTuple):
    """Results by group: scales [G], codes and values [G, N]; of two levels the scale of the matrix [1] too."""

    scales_G: Tensor | None
    codes_GN: Tensor | None
    values_GN: Tensor
    above_1: Tensor | None = None


def is_signed(scheme: Scheme) -> bool:
    """Returns whether the sign of the largest value matters."""
    return isinstance(scheme.scale, LinearScale) and scheme.scale.statistic is Statistic.SIGNED_ABSMAX


def run_groups(
    side: Side, groups_GN: Tensor, scheme: Scheme, out_dtype: torch.dtype, matrix_absmax: Tensor | None = None
) -> Grouped:
    """Runs a side on groups.

    Args:
        side: The side.
        groups_GN: fp32 or bf16.
        scheme: Says which values of a matrix are a group.
        out_dtype: Dtype of decoded values, where the side leaves it open.
        matrix_absmax: [1], for two levels: stands in groups of its own before the others.
    """
    if matrix_absmax is not None:
        return _run_below(side, groups_GN, scheme, out_dtype, matrix_absmax)
    where = arrange(len(groups_GN), groups_GN.shape[1], scheme.granularity)
    parts = [_run_matrix(side, matrix, where, out_dtype) for matrix in spread(groups_GN, where)]
    return parts[0] if len(parts) == 1 else join(parts)


def join(parts: list[Grouped]) -> Grouped:
    """Returns the results of several matrices as one; scales above those of groups are left out."""
    scales, codes, values, _ = zip(*parts, strict=True)
    return Grouped(_joined(scales), _joined(codes), torch.cat(values))


def observe(side: Side, block: Block, laid_out: LaidOut | None, out_dtype: torch.dtype) -> Outcome:
    """Returns what a side makes of a block: off stairs if `laid_out` is `None`, else by running it."""
    if laid_out is None and not block.ladder and block.shape[1] <= _FEW:
        return quantize_few(block, side.scheme, out_dtype)
    if laid_out is None:
        return climb(_stairs(side.scheme, block, out_dtype), block)
    return take_out(_run_block(side, block, laid_out, out_dtype), block, laid_out)


def observe_in_place(side: Side, block: Block, laid_out: LaidOut, out_dtype: torch.dtype) -> Outcome:
    """Returns what a side makes of a ladder, codes and values where they lie in the groups: [B, R N] for [B, M].

    Args:
        side: The side, not run if it has stairs.
        block: A ladder.
        laid_out: The groups, which it fills.
        out_dtype: Dtype of decoded values where the side leaves it open.
    """
    if side.has_stairs:
        return climb(_stairs(side.scheme, block, out_dtype), block, laid_out.places)
    return _run_block(side, block, laid_out, out_dtype)


def _run_block(side: Side, block: Block, laid_out: LaidOut, out_dtype: torch.dtype) -> Outcome:
    """Returns what a side makes of a block, codes and values where they lie in the groups: [B, R N] for [B, M]."""
    absmax = None if block.matrix_rank is None else block.matrix_absmax
    found = run_groups(side, laid_out.groups_GN, side.scheme, out_dtype, absmax)
    rows = len(block.ranks_B)
    return Outcome(
        scales_BR=_scales_of(found, laid_out),
        codes_BM=None if found.codes_GN is None else found.codes_GN.reshape(rows, -1),
        values_BM=found.values_GN.reshape(rows, -1),
    )


def _scales_of(found: Grouped, laid_out: LaidOut) -> Tensor | None:
    """Returns scales by row; for two levels lowest and highest of a row's groups, and that of the matrix."""
    if found.scales_G is None:
        return None
    scales_BR = found.scales_G.view(-1, laid_out.groups_a_row)
    if found.above_1 is None:
        return scales_BR
    above_B = found.above_1.expand(len(scales_BR))
    return torch.stack([scales_BR.amin(1), scales_BR.amax(1), above_B], dim=1)


def _run_below(side: Side, groups_GN: Tensor, scheme: Scheme, out_dtype: torch.dtype, matrix_absmax: Tensor) -> Grouped:
    """Runs groups in a matrix of that absolute maximum, which fills up its first row."""
    size = groups_GN.shape[1]
    top_KN = groups_GN.new_zeros(_TOP_GROUPS - len(groups_GN) % _TOP_GROUPS, size)
    top_KN[:, 0] = matrix_absmax
    found = run_groups(side, torch.cat([top_KN, groups_GN]), scheme, out_dtype)
    kept = slice(len(top_KN), None)
    return Grouped(
        None if found.scales_G is None else found.scales_G[kept],
        None if found.codes_GN is None else found.codes_GN[kept],
        found.values_GN[kept],
        found.above_1,
    )


def _run_matrix(side: Side, matrix: Tensor, where: Arrangement, out_dtype: torch.dtype) -> Grouped:
    produced = side.run(matrix, out_dtype)
    one = where._replace(num_matrices=1)
    return Grouped(
        None if produced.scales is None else produced.scales.reshape(-1),
        None if produced.codes is None else collect(produced.codes, one),
        collect(produced.values, one),
        None if produced.above is None else produced.above.reshape(1),
    )


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def _stairs(scheme: Scheme, block: Block, out_dtype: torch.dtype) -> Staircase:
    """Returns the stairs of a block, those of a ladder cut out of the stairs of some whole binades."""
    spans = int((block.ranks_B[-1] ^ block.ranks_B[0]) >> _CHUNK_BITS)
    if not block.ladder or block.matrix_rank is not None or spans:
        return build_staircase(
            block.ranks_B,
            scheme,
            block.inputs,
            out_dtype,
            is_negative=block.is_negative,
            matrix_rank=block.matrix_rank,
        )
    chunk = int(block.ranks_B[0]) >> _CHUNK_BITS
    whole = _stairs_of_chunk(chunk, scheme, BF16_INPUT, out_dtype, block.is_negative)
    own_B = block.ranks_B - (chunk << _CHUNK_BITS)
    return Staircase(
        scales_B=whole.scales_B[own_B],
        starts_BSK=whole.starts_BSK[own_B],
        codes_BSK=whole.codes_BSK[own_B],
        values_BSK=whole.values_BSK[own_B],
    )


@lru_cache(maxsize=8)
def _stairs_of_chunk(
    chunk: int, scheme: Scheme, inputs: InputNumbers, out_dtype: torch.dtype, is_negative: bool
) -> Staircase:
    first = chunk << _CHUNK_BITS
    ranks_B = torch.arange(first, min(first + (1 << _CHUNK_BITS), inputs.num_ranks))
    return build_staircase(ranks_B, scheme, inputs, out_dtype, is_negative=is_negative)

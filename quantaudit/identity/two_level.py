"""Both sides run over the domain of a two-level scale, factored or by its steps, and their differences counted."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind
from quantaudit.identity.differences import Tallies, add_masks, find_differences, kind_of
from quantaudit.identity.domain import Block, InputNumbers
from quantaudit.identity.enumeration import Progress
from quantaudit.identity.observe_both import Both, observe_both
from quantaudit.identity.sides import Side
from quantaudit.identity.two_level_domain import scale_blocks, value_blocks, value_matrices
from quantaudit.identity.two_level_steps import matrix_ranks, two_level_step_blocks


def enumerate_factored(
    sides: tuple[Side, Side],
    inputs: InputNumbers,
    tallies: Tallies,
    out_dtype: torch.dtype,
    progress: Progress,
    *,
    is_deep: bool,
) -> None:
    """Compares two sides of two levels: scales under every matrix absmax, then values under every scale.

    Args:
        sides: Both sides.
        inputs: A 16-bit dtype.
        tallies: Counts, which grow.
        out_dtype: Dtype of decoded values where a side leaves it open.
        progress: Told (stage, matrices done, matrices).
        is_deep: Whether groups far below the matrix absmax are tried one and all.
    """
    scheme = sides[0].scheme
    _run(sides, scale_blocks(scheme, inputs, is_deep=is_deep), "scales", inputs.num_ranks, tallies, out_dtype, progress)
    num_matrices = len(value_matrices(scheme, inputs, is_deep=is_deep))
    _run(sides, value_blocks(scheme, inputs, is_deep=is_deep), "values", num_matrices, tallies, out_dtype, progress)


def enumerate_scale_steps(
    sides: tuple[Side, Side], inputs: InputNumbers, tallies: Tallies, out_dtype: torch.dtype, progress: Progress
) -> int:
    """Compares two sides of two levels where scale or code changes, in some matrices; returns how many those are.

    Args:
        sides: Both sides.
        inputs: The input dtype.
        tallies: Counts, which grow.
        out_dtype: Dtype of decoded values where a side leaves it open.
        progress: Told (stage, matrices done, matrices).
    """
    a, b = (side.scheme for side in sides)
    schemes = (a,) if a.arithmetic_digest == b.arithmetic_digest else (a, b)
    total = len(matrix_ranks(inputs))
    _run(sides, two_level_step_blocks(schemes, inputs), "matrices", total, tallies, out_dtype, progress)
    return total


def _run(
    sides: tuple[Side, Side],
    blocks: Iterator[Block],
    stage: str,
    total: int,
    tallies: Tallies,
    out_dtype: torch.dtype,
    progress: Progress,
) -> None:
    done, matrix_rank = 0, -1
    progress(stage, 0, total)
    for number, block in enumerate(blocks):
        first = number % 2 == 0
        both = observe_both(sides, block, out_dtype, is_statistic_first=first, with_codes=tallies.has_codes)
        _count(tallies, block, both)
        if block.matrix_rank != matrix_rank:
            matrix_rank, done = block.matrix_rank or 0, done + 1
            progress(stage, done, total)


def _count(tallies: Tallies, block: Block, both: Both) -> None:
    """Counts one block, in which all groups that are not zero are of one kind."""
    kind = kind_of(float(block.matrix_absmax), tallies.largest, tallies.smallest)
    is_zero_B = block.ranks_B == 0
    counts_B = _num_counted(block)
    tallies.note_parts(both.a, both.b)
    kinds = [(BlockKind.ZERO, is_zero_B), (kind, ~is_zero_B)]
    for one, rows_B in kinds:
        tally = tallies.of(one)
        tally.num_pairs += int(counts_B[rows_B].sum())
        tally.num_statistics += int(rows_B.sum())
    if both.is_same:
        return
    masks = find_differences(both.a, both.b, block.mark_counted(), with_codes=tallies.has_codes)
    for one, rows_B in kinds:
        add_masks(tallies.of(one), masks, rows_B, block, both.a, both.b)


def _num_counted(block: Block) -> Tensor:
    """Returns how many different values a row has, [B]."""
    return 2 * (block.ranks_B + 1) if block.ladder else block.mark_counted().sum(1)

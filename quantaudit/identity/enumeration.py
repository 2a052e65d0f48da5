"""Both sides run over a domain, block by block, and their differences counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from quantaudit.core.scheme import Scheme
from quantaudit.identity.differences import Tallies, add_block
from quantaudit.identity.domain import Block
from quantaudit.identity.observe import is_signed, lay_out, observe
from quantaudit.identity.sides import Side

Progress = Callable[[str, int, int], None]


def enumerate_blocks(
    sides: tuple[Side, Side],
    blocks: Iterable[Block],
    total: int,
    tallies: Tallies,
    out_dtype: torch.dtype,
    progress: Progress,
    *,
    stage: str = "pairs",
) -> None:
    """Compares two sides over blocks.

    Args:
        sides: Both sides.
        blocks: The inputs.
        total: Pairs in all of them, for progress.
        tallies: Counts, which grow.
        out_dtype: Dtype of decoded values where a side leaves it open.
        progress: Told (stage, done, total).
        stage: Name of the stage.
    """
    done = 0
    progress(stage, 0, total)
    for number, block in enumerate(blocks):
        # A signed statistic is that of the first of +a and -a, so the statistic must stand first.
        first = number % 2 == 0 or is_signed(sides[0].scheme) or is_signed(sides[1].scheme)
        laid_out = None
        if not all(side.has_stairs for side in sides):
            laid_out = lay_out(block, _granularity_of(sides), is_statistic_first=first)
        a, b = (observe(side, block, None if side.has_stairs else laid_out, out_dtype) for side in sides)
        add_block(tallies, block, a, b)
        done += sum(block.num_counted_B)
        progress(stage, done, total)


def _granularity_of(sides: tuple[Side, Side]) -> Scheme:
    return next(side.scheme for side in sides if not side.has_stairs)

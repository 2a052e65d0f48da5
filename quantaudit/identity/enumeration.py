"""Both sides run over a domain, block by block, and their differences counted.

Shape suffixes: B statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from quantaudit.core.errors import InputError
from quantaudit.identity.differences import Tallies, add_differences, count_block, is_same, kind_of
from quantaudit.identity.domain import Block
from quantaudit.identity.observe import is_signed
from quantaudit.identity.observe_both import Both, observe_both
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
    in_statistics: bool = False,
) -> None:
    """Compares two sides over blocks.

    Args:
        sides: Both sides.
        blocks: The inputs.
        total: Pairs (or statistics) in all of them, for progress.
        tallies: Counts, which grow.
        out_dtype: Dtype of decoded values where a side leaves it open.
        progress: Told (stage, done, total).
        stage: Name of the stage.
        in_statistics: Whether progress counts statistics.

    Raises:
        InputError: If a callable does not give the same twice.
    """
    done = 0
    progress(stage, 0, total)
    for number, block in enumerate(blocks):
        # A signed statistic is that of the first of +a and -a, so the statistic must stand first.
        first = number % 2 == 0 or is_signed(sides[0].scheme) or is_signed(sides[1].scheme)
        both = observe_both(sides, block, out_dtype, is_statistic_first=first, with_codes=tallies.has_codes)
        if not both.is_same and not tallies.has_differences and any(side.user for side in sides):
            again = observe_both(sides, block, out_dtype, is_statistic_first=first, with_codes=tallies.has_codes)
            _check_repeats(sides, both, again)
        count = _add(tallies, block, both)
        done += len(block.ranks_B) if in_statistics else count
        progress(stage, done, total)


def _check_repeats(sides: tuple[Side, Side], once: Both, again: Both) -> None:
    """Refuses a callable that gives something else when it is called again on the first block that differs."""
    if not again.is_same and is_same(once.a, again.a) and is_same(once.b, again.b):
        return
    names = " or ".join(dict.fromkeys(side.name for side in sides if side.user))
    raise InputError(
        f"{names}, which is not deterministic: called again on the same matrix it gave other values",
        expected="the same bits for the same input, whatever was asked before",
        fix="turn stochastic rounding off, and keep no state between calls",
    )


def _add(tallies: Tallies, block: Block, both: Both) -> int:
    """Counts one block, all at once where its groups are of one kind; returns how many pairs it holds."""
    ends = block.inputs.numbers(torch.stack([block.ranks_B.min(), block.ranks_B.max()])).tolist()
    kinds = {kind_of(absmax, tallies.largest, tallies.smallest) for absmax in ends}
    tallies.note_parts(both.a, both.b)
    count = num_counted(block)
    if len(kinds) == 1:
        tally = tallies.of(kinds.pop())
        tally.num_pairs += count
        tally.num_statistics += len(block.ranks_B)
    else:
        count_block(tallies, block)
    if not both.is_same:
        add_differences(tallies, block, both.a, both.b)
    return count


def num_counted(block: Block) -> int:
    """Returns how many different values the rows of a block have together."""
    if block.ladder:
        return 2 * int((block.ranks_B + 1).sum())
    return int(block.mark_counted().sum())

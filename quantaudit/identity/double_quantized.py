"""Codes under double-quantized scales: elements are encoded before that, so their codes can be enumerated.

Only the codes of an outcome count here. What scales and values become depends on all scales of the matrix.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from quantaudit.core.scheme import DoubleQuantization, EncodeScale, LinearScale, Scheme
from quantaudit.identity.differences import Tallies, add_block
from quantaudit.identity.domain import InputNumbers, ladder_blocks
from quantaudit.identity.enumeration import Progress
from quantaudit.identity.laying import ladder_multiple, lay_out
from quantaudit.identity.observe import observe
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side, open_scheme


def is_double(scheme: Scheme) -> bool:
    """Returns whether scales are quantized in turn, and elements encoded with the scales before that."""
    rule = scheme.scale
    is_nested = isinstance(rule, LinearScale) and isinstance(rule.second_level, DoubleQuantization)
    return is_nested and isinstance(rule, LinearScale) and rule.encode_with is EncodeScale.COMPUTED


def enumerate_codes(
    sides: tuple[Side, Side], inputs: InputNumbers, tallies: Tallies, out_dtype: torch.dtype, progress: Progress
) -> None:
    """Compares the codes of two sides over every statistic with every value.

    Args:
        sides: Both sides, with `is_double`.
        inputs: A 16-bit dtype.
        tallies: Counts, which grow.
        out_dtype: Dtype of decoded values where a side leaves it open.
        progress: Told (stage, done, total).
    """
    done, total = 0, inputs.num_ranks * (inputs.num_ranks + 1)
    ready = [_first_level(side) if side.is_scheme else side for side in sides]
    counts = Tallies(largest=tallies.largest, smallest=tallies.smallest, has_codes=tallies.has_codes)
    progress("codes", 0, total)
    for number, block in enumerate(ladder_blocks(inputs, multiple=ladder_multiple(sides[0].scheme))):
        laid_out = lay_out(block, sides[0].scheme, is_statistic_first=number % 2 == 0)
        found = [observe(side, block, None if side.has_stairs else laid_out, out_dtype) for side in ready]
        values_BM = block.values_BM
        a, b = (Outcome(scales_BR=None, codes_BM=one.codes_BM, values_BM=values_BM) for one in found)
        add_block(counts, block, a, b)
        done += sum(block.num_counted_B)
        progress("codes", done, total)
    _merge(tallies, counts)


def _first_level(side: Side) -> Side:
    """Returns a side with stairs that gives the codes of a scheme."""
    rule = side.scheme.scale.model_copy(update={"second_level": None})
    return replace(open_scheme(side.scheme.model_copy(update={"scale": rule})), name=side.name)


def _merge(tallies: Tallies, counts: Tallies) -> None:
    tallies.has_codes &= counts.has_codes
    for kind, counted in counts.by_kind.items():
        tally = tallies.of(kind)
        tally.num_pairs += counted.num_pairs
        tally.num_statistics += counted.num_statistics
        tally.codes += counted.codes
        if counted.first is not None:
            tally.keep(counted.first)

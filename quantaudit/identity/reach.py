"""How far fp32 inputs are tried: both sides of every step, under some statistics or under all that can matter.

* Some statistics, always: those at which a scale can change, their neighbours, some others.
* On demand, for power-of-two scales: every absmax for the scale, and every ratio for the code.
* On demand, for linear scales: every statistic that no power of two leads to from another, and every absmax.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from quantaudit.core.certificate import Level
from quantaudit.core.scheme import ExponentScale, PerTensor, Scheme
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import INPUTS
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.ratio_domain import absmax_blocks, num_ratios, ratio_blocks
from quantaudit.identity.run import Run
from quantaudit.identity.step_domain import can_step_through, num_steps, step_blocks
from quantaudit.identity.treads import boundary_blocks, boundary_statistics

_STEPS = "both sides of every step of the code, both signs, under statistics where the scale can change"
_EVERY_SCALE = "the scale of every finite absmax"
_EVERY_STEP = (
    "both sides of every step of the code, both signs, under every statistic of the binade of 1, and of both ends of "
    "the range, where something may be subnormal, meet a floor or overflow"
)
_SOME_STATISTICS = "statistics: an fp32 scale changes with every one"
_OTHER_BINADES = " under statistics of the other binades, to which multiplying by a power of two leads"
_LARGEST_ALONE = 256  # members of a group that is tried for its absmax alone


class Reach(NamedTuple):
    """How far an enumeration went.

    Attributes:
        level: In a word.
        enumerated: What was tried without exception.
        sampled: What was tried by example, besides what always is.
        is_deeper: Whether asking for more made it more.
        steps_through: Whether every statistic was tried that a power of two does not lead to from another.
    """

    level: Level
    enumerated: str
    sampled: tuple[str, ...] = ()
    is_deeper: bool = False
    steps_through: bool = False


def enumerate_steps(run: Run, tallies: Tallies) -> Reach:
    """Tries both sides of every step, under some statistics or, where asked for and possible, all that can matter."""
    inputs = INPUTS[run.dtype]
    a, b = (side.scheme for side in run.sides)
    schemes = (a,) if a.arithmetic_digest == b.arithmetic_digest else (a, b)
    ranks = torch.cat([boundary_statistics(one, inputs) for one in schemes]).unique()
    blocks = boundary_blocks(schemes, ranks, inputs, signs=run.signs)
    enumerate_blocks(run.sides, blocks, 0, tallies, run.out_dtype, run.progress)
    if all(isinstance(one.scale, ExponentScale) for one in schemes):
        return _try_ratios(run, tallies) if run.is_deep else Reach(Level.BOUNDARY, _STEPS)
    if run.is_deep and all(can_step_through(one) for one in schemes):
        return _step_through(run, schemes, tallies)
    return Reach(Level.BOUNDARY, _STEPS, sampled=(_SOME_STATISTICS,))


def _try_ratios(run: Run, tallies: Tallies) -> Reach:
    inputs, scheme = INPUTS[run.dtype], run.sides[0].scheme
    _try_absmax(run, tallies)
    total, blocks = num_ratios(scheme, inputs), ratio_blocks(scheme, inputs)
    enumerate_blocks(run.sides, blocks, total, tallies, run.out_dtype, run.progress, stage="ratios")
    return Reach(Level.FACTORED, f"{_EVERY_SCALE}; the code of every value under the scale 1; {_STEPS}", is_deeper=True)


def _step_through(run: Run, schemes: tuple[Scheme, ...], tallies: Tallies) -> Reach:
    """Tries the steps under every statistic that no power of two leads to from another, and every absmax."""
    inputs, signs = INPUTS[run.dtype], run.signs
    total, blocks = num_steps(schemes, inputs) * len(signs), step_blocks(schemes, inputs, signs=signs)
    enumerate_blocks(
        run.sides, blocks, total, tallies, run.out_dtype, run.progress, stage="statistics", in_statistics=True
    )
    has_small_groups = (group_size(schemes[0].granularity) or 1) <= _LARGEST_ALONE
    every = has_small_groups and not isinstance(schemes[0].granularity, PerTensor) and not run.has_sign
    if every:
        _try_absmax(run, tallies)
    return Reach(
        Level.BOUNDARY,
        (f"{_EVERY_SCALE}; " if every else "") + _EVERY_STEP,
        sampled=("steps of the code" + ("" if every else " and scales") + _OTHER_BINADES,),
        is_deeper=True,
        steps_through=True,
    )


def _try_absmax(run: Run, tallies: Tallies) -> None:
    inputs = INPUTS[run.dtype]
    blocks = absmax_blocks(inputs)
    enumerate_blocks(run.sides, blocks, inputs.num_ranks, tallies, run.out_dtype, run.progress, stage="absmax")

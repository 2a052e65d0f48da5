"""fp32 inputs of a linear scale: both sides of every step of the code, under every statistic that can be another case.

A linear scale is another one under every statistic, and all pairs would be 2^61. But multiplying statistic and value by
a power of two multiplies scale and result by it, as long as nothing becomes subnormal, meets a floor or overflows:

    f(2^k a, 2^k x) = 2^k f(a, x)

So the 2^23 statistics of the binade of 1 stand for those of every other, and what is left are the ends of the range,
which are tried one and all. That multiplying changes nothing is a premise, and tested (see `equivariant`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from quantaudit.core.format import CodebookFormat, FloatFormat
from quantaudit.core.scheme import LinearScale, Scheme
from quantaudit.identity.domain import Block, InputNumbers
from quantaudit.identity.treads import boundary_blocks

_CHUNK = 1 << 16  # statistics
_WIDE = 8  # exponent bits of a format that has the range of the inputs
_LARGEST = 2.0**126  # of a scale whose reciprocal is a normal number
_AROUND = 8  # statistics on both sides of a floor
_LAST_BINADE = 2.0**127


def can_step_through(scheme: Scheme) -> bool:
    """Returns whether one binade and two ends stand for all statistics: one linear scale with the range of fp32."""
    rule = scheme.scale
    return isinstance(rule, LinearScale) and rule.second_level is None and rule.format.exponent_bits == _WIDE


def step_ranges(scheme: Scheme, inputs: InputNumbers) -> tuple[range, ...]:
    """Returns ranks of all statistics that must be tried one by one: the low end, the binade of 1, the high end.

    Args:
        scheme: One that can be stepped through.
        inputs: The input dtype.
    """
    one = 1 << inputs.mantissa_bits
    start = inputs.rank_of_one
    low, floor = _rank(_lowest_normal(scheme), inputs), _rank(_floor_of(scheme), inputs)
    # Below a floor the scale is one number, so the floor stands for all that lies there.
    ends = range(floor - _AROUND, floor + _AROUND) if floor > low else range(low)
    high = range(_rank(highest_scalable(scheme), inputs), inputs.num_ranks)
    return ends, range(start, start + one), high


def step_blocks(
    schemes: tuple[Scheme, ...], inputs: InputNumbers, *, signs: tuple[bool, ...] = (False,)
) -> Iterator[Block]:
    """Yields every such statistic with both sides of every step of every scheme, the binade of 1 first.

    Args:
        schemes: Schemes that can be stepped through.
        inputs: The input dtype.
        signs: Whether statistics are negative: once each.
    """
    for first, end in _merged(schemes, inputs):
        for at in range(first, end, _CHUNK):
            yield from boundary_blocks(schemes, torch.arange(at, min(at + _CHUNK, end)), inputs, signs=signs)


def num_steps(schemes: tuple[Scheme, ...], inputs: InputNumbers) -> int:
    """Returns how many statistics `step_blocks` yields for each sign."""
    return sum(end - first for first, end in _merged(schemes, inputs))


def lowest_scalable(scheme: Scheme) -> float:
    """Returns a statistic from which on no scale, reciprocal or decoded value is subnormal, and no floor is met."""
    return max(_lowest_normal(scheme), 2.0 * _floor_of(scheme))


def _lowest_normal(scheme: Scheme) -> float:
    rule = scheme.scale
    assert isinstance(rule, LinearScale)
    element, smallest = scheme.element, 1.0
    if isinstance(element, FloatFormat):
        smallest = element.smallest_positive
    elif isinstance(element, CodebookFormat):
        smallest = min(abs(value) for value in element.table if value)
    subnormal = abs(rule.divisor) * rule.format.smallest_normal / min(1.0, smallest)
    return 2.0 * math.ldexp(1.0, math.frexp(subnormal)[1])  # a binade more: scales are rounded


def highest_scalable(scheme: Scheme) -> float:
    """Returns the statistic from which on a result may overflow, or a reciprocal be subnormal."""
    return min(_LAST_BINADE, abs(scheme.scale.divisor) * _LARGEST) if can_step_through(scheme) else _LAST_BINADE


def _floor_of(scheme: Scheme) -> float:
    """Returns the statistic below which a floor decides; 0 for none."""
    rule = scheme.scale
    assert isinstance(rule, LinearScale)
    return max(rule.amax_floor, max(rule.scale_floor, rule.encode_floor) * abs(rule.divisor))


def _rank(value: float, inputs: InputNumbers) -> int:
    """Returns the rank of the number that a value rounds to."""
    return int(torch.tensor(value, dtype=inputs.dtype).view(inputs.bits_dtype))


def _merged(schemes: tuple[Scheme, ...], inputs: InputNumbers) -> list[tuple[int, int]]:
    """Returns the union of the ranges of several schemes, as (first, end), those of 1 first."""
    spans = sorted((r.start, r.stop) for scheme in schemes for r in step_ranges(scheme, inputs) if len(r))
    merged = [spans[0]]
    for first, end in spans[1:]:
        if first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return sorted(merged, key=lambda span: not span[0] <= inputs.rank_of_one < span[1])

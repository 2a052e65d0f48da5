"""Rounding to a format from the definition: list every value, find the two neighbours, compare with their midpoint.

This is the reference for the tensor code, which finds the same code from exponent bits. All of it is exact:
`fractions.Fraction` over the values that `core.format` lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from quantaudit.core.format import FP32, CodebookFormat, FloatFormat, Format, IntegerFormat, Midpoints
from quantaudit.core.scheme import CodeRange, Overflow, Scheme, Tie
from quantaudit.numerics.exact import add, round_to

_HALF = Fraction(1, 2)


class ElementRule(NamedTuple):
    """What turns a ratio into a code."""

    element: FloatFormat | IntegerFormat | CodebookFormat
    tie: Tie
    code_range: CodeRange | None = None
    overflow: Overflow = Overflow.SATURATE


def element_rule(scheme: Scheme) -> ElementRule:
    """Returns the part of a scheme that turns ratios into codes."""
    return ElementRule(scheme.element, scheme.tie, scheme.code_range, scheme.overflow)


class Rung(NamedTuple):
    """A value that a quantizer can produce, and its code."""

    value: Fraction
    code: int


@lru_cache(maxsize=256)
def rungs(rule: ElementRule) -> tuple[Rung, ...]:
    """Lists the values of a format in ascending order (a float format's magnitudes only).

    With the overflow rule `special` the first number beyond the largest is listed too, with the code that replaces it.
    """
    element = rule.element
    if isinstance(element, IntegerFormat):
        assert rule.code_range is not None
        return tuple(Rung(Fraction(c), c) for c in range(rule.code_range.low, rule.code_range.high + 1))
    if isinstance(element, CodebookFormat):
        return tuple(sorted(Rung(Fraction(v), c) for c, v in enumerate(element.table)))
    finite = tuple(Rung(Fraction(element.value_of(c)), c) for c in range(element.max_code + 1))
    if rule.overflow is Overflow.SATURATE:
        return finite
    beyond = element.inf_code if element.inf_code is not None else element.nan_code
    return (*finite, Rung(2 * finite[-1].value - finite[-2].value, finite[-1].code if beyond is None else beyond))


def round_to_code(ratio: float, rule: ElementRule) -> int:
    """Returns the code of one ratio.

    Args:
        ratio: Any float64. NaN becomes the format's NaN, or the code of zero where it has none.
        rule: Element format, tie rule, code range and overflow.
    """
    element = rule.element
    if math.isnan(ratio):
        return (element.nan_code or 0) if isinstance(element, FloatFormat) else zero_code(element)
    if rule.tie is Tie.BIASED_UP:
        return _round_biased(ratio, rule)
    if not isinstance(element, FloatFormat):
        return _nearest(ratio, rule).code
    is_negative = math.copysign(1.0, ratio) < 0
    magnitude_tie = _MIRRORED.get(rule.tie, rule.tie) if is_negative else rule.tie
    code = _nearest(abs(ratio), rule._replace(tie=magnitude_tie)).code
    return code | element.sign_code if is_negative else code


def zero_code(element: Format) -> int:
    """Returns the code that stands for +0."""
    return element.zero_code if isinstance(element, CodebookFormat) else 0


_MIRRORED = {Tie.UP: Tie.LOWER, Tie.LOWER: Tie.UP}


class _Borders(NamedTuple):
    """A ladder with the border above every rung but the last."""

    ladder: tuple[Rung, ...]
    values: tuple[float, ...]
    middles: tuple[Fraction, ...]


@lru_cache(maxsize=256)
def _borders(rule: ElementRule) -> _Borders:
    ladder = rungs(rule)
    values = tuple(float(rung.value) for rung in ladder)
    assert all(rung.value == value for rung, value in zip(ladder, values, strict=True))
    middles = [(low.value + high.value) / 2 for low, high in pairwise(ladder)]
    if isinstance(rule.element, CodebookFormat) and rule.element.midpoints is Midpoints.FLOAT32:
        middles = [Fraction(round_to(middle, FP32)) for middle in middles]
    return _Borders(ladder, values, tuple(middles))


def _nearest(ratio: float, rule: ElementRule) -> Rung:
    ladder, values, middles = _borders(rule)
    if ratio >= values[-1]:
        return ladder[-1]
    if ratio <= values[0]:
        return ladder[0]
    upper = bisect_left(values, ratio)
    low, high, middle = ladder[upper - 1], ladder[upper], middles[upper - 1]
    if ratio == middle:
        return high if _tie_goes_up(low, high, rule.tie) else low
    return high if ratio > middle else low


def _tie_goes_up(low: Rung, high: Rung, tie: Tie) -> bool:
    match tie:
        case Tie.EVEN:
            return high.code % 2 == 0
        case Tie.AWAY:
            return abs(high.value) > abs(low.value)
        case Tie.ZERO:
            return abs(high.value) < abs(low.value)
        case Tie.UP:
            return True
    return False


def _round_biased(ratio: float, rule: ElementRule) -> int:
    """Returns floor(fl32(ratio + (1/2 - low))) + low, clamped."""
    assert rule.code_range is not None
    low, high = rule.code_range.low, rule.code_range.high
    if math.isinf(ratio):
        return high if ratio > 0 else low
    biased = add(ratio, float(_HALF - low), FP32)
    return max(low, min(high, math.floor(biased) + low))

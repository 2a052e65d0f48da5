"""The scale of one group in exact arithmetic, as `core.scheme` orders the operations.

Numbers are Python floats that hold fp32 (or narrower) values; NaN as a statistic marks a group that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from quantaudit.core.format import FP32, FloatFormat
from quantaudit.core.scheme import (
    Division,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    LinearScale,
    Overflow,
    Statistic,
    StatisticTie,
    Tie,
)
from quantaudit.numerics.exact import ceil_log2, divide, floor_log2, multiply, power_of_two, round_to
from quantaudit.numerics.ladder import ElementRule, round_to_code


class LinearChoice(NamedTuple):
    """A linear scale: as computed, and as stored (a code for scale formats of at most 8 bits)."""

    computed: float
    stored: float


def measure(members: Sequence[float], rule: LinearScale | ExponentScale) -> float:
    """Returns the statistic of one group: NaN if it holds a NaN or an infinity."""
    if not all(math.isfinite(v) for v in members):
        return math.nan
    absmax = max(abs(v) for v in members)
    if isinstance(rule, ExponentScale) or rule.statistic is Statistic.ABSMAX:
        return absmax
    largest = [v for v in members if abs(v) == absmax]
    return largest[0] if rule.statistic_tie is StatisticTie.FIRST else largest[-1]


def choose_exponent(statistic: float, rule: ExponentScale) -> int:
    """Returns the stored exponent of a power-of-two scale for one absmax."""
    if math.isnan(statistic):
        assert rule.format.nan_code is not None
        return rule.format.nan_code
    absmax = Fraction(raise_to(statistic, rule.amax_floor, FP32))
    if absmax == 0:
        return rule.zero_code
    return max(0, min(rule.format.max_code, _unbounded_exponent(absmax, rule) + rule.format.bias))


def _unbounded_exponent(absmax: Fraction, rule: ExponentScale) -> int:
    divisor = Fraction(rule.divisor)
    match rule.rounding:
        case ExponentRounding.FLOOR:
            return floor_log2(absmax) - floor_log2(divisor)
        case ExponentRounding.CEIL:
            return ceil_log2(absmax) - floor_log2(divisor)
        case ExponentRounding.EVEN:
            assert rule.kept_mantissa_bits is not None
            step = power_of_two(floor_log2(absmax) - rule.kept_mantissa_bits)
            half_up = math.floor(absmax / step + Fraction(1, 2)) * step
            return floor_log2(half_up) - floor_log2(divisor)
        case ExponentRounding.RCEIL:
            return ceil_log2(absmax / divisor)
    # n = floor(log2 r + 1/2) = floor((log2 r^2 + 1) / 2), and log2 of a rational is never a half-integer.
    return (floor_log2((absmax / divisor) ** 2) + 1) // 2


def choose_linear(statistic: float, rule: LinearScale, fmt: FloatFormat, above: float | None = None) -> LinearChoice:
    """Returns the scale of one group.

    Args:
        statistic: The measured value; NaN gives a NaN scale.
        rule: The scale rule.
        fmt: Precision of the division.
        above: For two levels, the scale of the matrix.
    """
    computed = _over_divisor(raise_to(statistic, rule.amax_floor, fmt), rule, fmt)
    if above is not None:
        computed = 0.0 if above == 0 else divide(computed, above, fmt)
    computed = raise_to(computed, rule.scale_floor, fmt)
    if computed == 0 and rule.zero_scale > 0:
        computed = round_to(Fraction(rule.zero_scale), fmt)
    return LinearChoice(computed, _store(computed, rule))


def encode_factor(
    choice: LinearChoice, rule: LinearScale, division: Division, fmt: FloatFormat, above: float | None
) -> float | None:
    """Returns what elements are divided by, or multiplied by under `reciprocal`.

    None means unusable: a scale of zero, or one whose reciprocal is not finite. NaN stays NaN.
    """
    scale = choice.computed if rule.encode_with is EncodeScale.COMPUTED else decode_stored(choice.stored, rule)
    if math.isnan(scale):
        return math.nan
    scale = scale if scale == 0 else raise_to(scale, rule.encode_floor, FP32)
    if math.isfinite(scale):
        scale = round_to(Fraction(scale), fmt, is_negative=math.copysign(1.0, scale) < 0)
    if division is Division.DIVIDE:
        divisor = scale if above is None else multiply(scale, above, fmt)
        return None if divisor == 0 else divisor
    factor = divide(1.0 if above is None else divide(1.0, above, fmt), scale, fmt)
    return factor if math.isfinite(factor) else None


def decode_stored(stored: float, rule: LinearScale) -> float:
    """Returns the scale that a stored one stands for (without a second level)."""
    return rule.format.value_of(int(stored)) if rule.format.bits <= 8 else stored


def raise_to(value: float, floor: float, fmt: FloatFormat) -> float:
    """Returns a value of at least `floor` in magnitude, sign and NaN kept."""
    if floor == 0 or math.isnan(value):
        return value
    return math.copysign(max(abs(value), round_to(Fraction(floor), fmt)), value)


def _over_divisor(statistic: float, rule: LinearScale, fmt: FloatFormat) -> float:
    divisor = round_to(Fraction(rule.divisor), fmt)
    if rule.division is Division.DIVIDE:
        return divide(statistic, divisor, fmt)
    return multiply(statistic, divide(1.0, divisor, fmt), fmt)


def _store(scale: float, rule: LinearScale) -> float:
    fmt = rule.format
    if fmt.bits <= 8:
        return float(round_to_code(scale, ElementRule(fmt, Tie.EVEN, overflow=rule.overflow)))
    if not math.isfinite(scale):
        stored = scale
    else:
        stored = round_to(Fraction(scale), fmt, is_negative=math.copysign(1.0, scale) < 0)
    if math.isinf(stored) and rule.overflow is Overflow.SATURATE:
        return math.copysign(fmt.max, stored)
    return stored

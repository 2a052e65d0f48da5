"""Floating-point arithmetic from the definition: the exact rational result, rounded once.

Numbers are Python floats that hold a value of some binary format exactly, so that signed zeros, infinities and NaN
keep their IEEE meaning; every finite result goes through `fractions.Fraction`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from quantaudit.core.format import FloatFormat, Specials


def floor_log2(value: Fraction) -> int:
    """Returns the largest e with 2^e <= value, for a positive value."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value.numerator << max(-guess, 0) >= value.denominator << max(guess, 0) else guess - 1


def ceil_log2(value: Fraction) -> int:
    """Returns the smallest e with value <= 2^e, for a positive value."""
    floor = floor_log2(value)
    return floor if power_of_two(floor) == value else floor + 1


def power_of_two(exponent: int) -> Fraction:
    """Returns 2^exponent."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def round_to(value: Fraction, fmt: FloatFormat, *, is_negative: bool = False) -> float:
    """Rounds to the nearest number of an IEEE format, ties to even; overflow gives an infinity.

    Args:
        value: The exact number.
        fmt: A format with infinities.
        is_negative: Sign of a result of zero.
    """
    assert fmt.specials is Specials.IEEE
    if value == 0:
        return -0.0 if is_negative else 0.0
    sign, magnitude = (-1.0 if value < 0 else 1.0), abs(value)
    step = max(floor_log2(magnitude), fmt.min_exponent) - fmt.mantissa_bits  # numbers of the format: k * 2^step
    rounded = math.ldexp(
        _round_quotient(magnitude.numerator << max(-step, 0), magnitude.denominator << max(step, 0)), step
    )
    return sign * (math.inf if rounded > fmt.max else rounded)


def _round_quotient(numerator: int, denominator: int) -> int:
    """Returns numerator / denominator rounded to the nearest integer, ties to even."""
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1))


def multiply(a: float, b: float, fmt: FloatFormat) -> float:
    """Returns the product rounded to `fmt`."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return round_to(Fraction(a) * Fraction(b), fmt, is_negative=_is_negative(a) != _is_negative(b))


def divide(a: float, b: float, fmt: FloatFormat) -> float:
    """Returns the quotient rounded to `fmt`; x / 0 is an infinity and 0 / 0 NaN."""
    is_negative = _is_negative(a) != _is_negative(b)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else (-math.inf if is_negative else math.inf)
    if not (math.isfinite(a) and math.isfinite(b)):
        return a / b
    return round_to(Fraction(a) / Fraction(b), fmt, is_negative=is_negative)


def add(a: float, b: float, fmt: FloatFormat) -> float:
    """Returns the sum rounded to `fmt`."""
    if not (math.isfinite(a) and math.isfinite(b)) or a == -b:
        return a + b
    return round_to(Fraction(a) + Fraction(b), fmt)


def pairwise_sum(values: Sequence[float]) -> float:
    """Adds float64 numbers by halves: v[i] + v[i + half], padded with zeros to a power of two."""
    terms = list(values) + [0.0] * ((1 << (len(values) - 1).bit_length()) - len(values))
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def _is_negative(value: float) -> bool:
    return math.copysign(1.0, value) < 0

"""Rounding as a step function: the exact fp32 or bf16 numbers at which the code changes.

Derived from the exact `ladder` by bisection over the ordered bit patterns, never from code under test. The order is the
total order of IEEE numbers, in which -0 comes just before +0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from quantaudit.core.format import FP32, FloatFormat
from quantaudit.numerics.ladder import ElementRule, round_to_code, rungs


class StepTable(NamedTuple):
    """codes[0] below starts[0], then codes[i + 1] from starts[i] on (both ascending in value)."""

    keys: tuple[int, ...]
    starts: tuple[float, ...]
    codes: tuple[int, ...]

    def code_of(self, ratio: float) -> int:
        """Returns the code of a number of the table's own format (not NaN)."""
        return self.codes[bisect_right(self.keys, ordered_key(ratio, FP32))]


def ordered_key(value: float, fmt: FloatFormat) -> int:
    """Returns the rank of a number of an IEEE format: consecutive integers for neighbours, -1 for -0, 0 for +0."""
    magnitude = abs(value)
    if math.isinf(magnitude):
        rank = fmt.max_code + 1
    elif magnitude < fmt.smallest_normal:
        rank = int(magnitude / fmt.smallest_positive)
    else:
        fraction, exponent = math.frexp(magnitude)
        significand = int(fraction * (2 << fmt.mantissa_bits))
        rank = ((exponent - 1 - fmt.min_exponent) << fmt.mantissa_bits) + significand
    return rank if math.copysign(1.0, value) > 0 else -1 - rank


def value_of_key(key: int, fmt: FloatFormat) -> float:
    """Returns the number of a rank (the inverse of `ordered_key`)."""
    return fmt.value_of(key) if key >= 0 else -fmt.value_of(-1 - key)


@lru_cache(maxsize=256)
def step_table(rule: ElementRule, fmt: FloatFormat = FP32) -> StepTable:
    """Finds every number of `fmt` at which `round_to_code` changes its value, from -infinity to +infinity."""
    infinity = ordered_key(math.inf, fmt)
    codes = [round_to_code(-math.inf, rule)]
    keys: list[int] = []
    low = -1 - infinity
    for code in _ascending_codes(rule):
        first = _first_key_with(code, low, infinity, rule, fmt)
        if code == codes[-1] or first is None:
            continue
        keys.append(first)
        codes.append(code)
        low = first
    keys = [ordered_key(value_of_key(key, fmt), FP32) for key in keys]
    return StepTable(tuple(keys), tuple(value_of_key(key, FP32) for key in keys), tuple(codes))


def _ascending_codes(rule: ElementRule) -> list[int]:
    """Lists the codes in the order in which growing ratios meet them."""
    magnitudes = [rung.code for rung in rungs(rule)]
    if not isinstance(rule.element, FloatFormat):
        return magnitudes
    return [code | rule.element.sign_code for code in reversed(magnitudes)] + magnitudes


def _first_key_with(code: int, low: int, high: int, rule: ElementRule, fmt: FloatFormat) -> int | None:
    """Returns the smallest key in (low, high] whose code comes at or after `code`, if it is `code` itself."""
    rank = {c: i for i, c in enumerate(_ascending_codes(rule))}
    wanted = rank[code]
    if rank[round_to_code(value_of_key(high, fmt), rule)] < wanted:
        return None
    while low + 1 < high:
        middle = (low + high) // 2
        if rank[round_to_code(value_of_key(middle, fmt), rule)] < wanted:
            low = middle
        else:
            high = middle
    return high if round_to_code(value_of_key(high, fmt), rule) == code else None

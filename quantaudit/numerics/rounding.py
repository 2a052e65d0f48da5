"""Rounding of fp32 tensors to codes, and codes back to fp32.

A float format of m fraction bits and smallest exponent e0 has, in the binade 2^e, the step 2^(max(e, e0) - m). With
q = |y| / step rounded to an integer, the code of |y| is q + (max(e, e0) - e0) * 2^m: one formula for normal numbers,
subnormals and the carry into the next binade. Every operation is exact, so this is the rounding of `ladder` in other
words. Codebooks go through the step table that is derived from `ladder`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantaudit.core.format import CodebookFormat, FloatFormat, IntegerFormat, code_values
from quantaudit.core.scheme import Overflow, Tie
from quantaudit.numerics.bits import normal_exponent, power_of_two
from quantaudit.numerics.ladder import ElementRule, zero_code
from quantaudit.numerics.steps import step_table

_MIRRORED = {Tie.UP: Tie.LOWER, Tie.LOWER: Tie.UP}


def encode(ratio: Tensor, rule: ElementRule) -> Tensor:
    """Rounds ratios to codes.

    Args:
        ratio: fp32, any shape. NaN becomes the format's NaN, or the code of zero where it has none.
        rule: Element format, tie rule, code range and overflow.

    Returns:
        Codes of the same shape: int8 for integers, else uint8.
    """
    element = rule.element
    if isinstance(element, IntegerFormat):
        return _encode_integer(ratio, rule)
    if isinstance(element, CodebookFormat):
        return _encode_codebook(ratio, rule)
    return _encode_float(ratio, rule, element)


def decode(codes: Tensor, element: FloatFormat | IntegerFormat | CodebookFormat) -> Tensor:
    """Returns the fp32 value of every code (exact: no format here needs more than fp32)."""
    if isinstance(element, IntegerFormat):
        return codes.to(torch.float32)
    return _values(element, codes.device).index_select(0, codes.flatten().to(torch.int32)).view(codes.shape)


def round_magnitude(q: Tensor, tie: Tie) -> Tensor:
    """Rounds non-negative fp32 numbers to integers by a tie rule that does not look at the sign.

    `floor` and the remainder are exact, which adding one half would not be (.5 - 2^-25 would become 1).
    """
    if tie is Tie.EVEN:
        return q.round()
    whole = q.floor()
    rest = q - whole
    return whole + (rest >= 0.5) if tie in (Tie.AWAY, Tie.UP) else whole + (rest > 0.5)


def round_signed(y: Tensor, tie: Tie) -> Tensor:
    """Rounds fp32 numbers to integers, ties by any rule but `biased-up`; the sign of zero is kept."""
    return _round_apart(y.abs(), y, tie).copysign(y)


def _round_apart(magnitude: Tensor, y: Tensor, tie: Tie) -> Tensor:
    """Rounds the magnitudes of numbers with the signs of `y`."""
    if tie not in _MIRRORED:
        return round_magnitude(magnitude, tie)
    return torch.where(y.signbit(), round_magnitude(magnitude, _MIRRORED[tie]), round_magnitude(magnitude, tie))


def _encode_integer(y: Tensor, rule: ElementRule) -> Tensor:
    assert rule.code_range is not None
    low, high = rule.code_range.low, rule.code_range.high
    if rule.tie is Tie.BIASED_UP:
        rounded = (y + (0.5 - low)).floor() + low
    else:
        rounded = round_signed(y, rule.tie)
    return rounded.nan_to_num(nan=0.0, posinf=high, neginf=low).clamp(low, high).to(torch.int8)


def _encode_codebook(y: Tensor, rule: ElementRule) -> Tensor:
    starts, codes = _codebook_steps(rule, y.device)
    found = codes[torch.bucketize(y.nan_to_num(nan=0.0), starts, right=True)]
    return torch.where(y.isnan(), zero_code(rule.element), found).to(torch.uint8)


def _encode_float(y: Tensor, rule: ElementRule, element: FloatFormat) -> Tensor:
    # One step beyond the largest number is enough to know that a ratio overflows; what NaN gives is replaced below.
    magnitude = y.abs().clamp(max=2.0 * element.max)
    exponent = normal_exponent(magnitude.clamp(min=2.0**element.min_exponent))
    steps = magnitude * power_of_two(element.mantissa_bits - exponent)
    code = _round_apart(steps, y, rule.tie).to(torch.int32)
    code = code + ((exponent - element.min_exponent) << element.mantissa_bits)
    code = _limit(code, element, rule.overflow) | y.signbit().to(torch.int32) * element.sign_code
    return torch.where(y.isnan(), element.nan_code or 0, code).to(torch.uint8)


def _limit(code: Tensor, element: FloatFormat, overflow: Overflow) -> Tensor:
    if overflow is Overflow.SATURATE:
        return code.clamp(max=element.max_code)
    beyond = element.inf_code if element.inf_code is not None else element.nan_code
    return torch.where(code > element.max_code, element.max_code if beyond is None else beyond, code)


@lru_cache(maxsize=64)
def _values(element: FloatFormat | CodebookFormat, device: torch.device) -> Tensor:
    return torch.tensor(code_values(element), dtype=torch.float32, device=device)


@lru_cache(maxsize=64)
def _codebook_steps(rule: ElementRule, device: torch.device) -> tuple[Tensor, Tensor]:
    table = step_table(rule)
    starts = torch.tensor(table.starts, dtype=torch.float32, device=device)
    return starts, torch.tensor(table.codes, dtype=torch.int32, device=device)

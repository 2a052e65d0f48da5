"""A matrix quantized one number at a time, in exact arithmetic: the reference that everything else must equal.

Follows the order of operations in `core.scheme` literally. Meant to be read and to be compared with, not to be fast:
a 4 x 64 matrix takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from quantaudit.core.format import FP32, FloatFormat
from quantaudit.core.scheme import (
    Arithmetic,
    Division,
    DoubleQuantization,
    ExponentScale,
    FlatBlocks,
    Granularity,
    LinearScale,
    PerBlock,
    PerGroup,
    PerTensor,
    Scheme,
    TwoLevel,
)
from quantaudit.numerics.exact import add, divide, multiply, pairwise_sum, round_to
from quantaudit.numerics.ladder import ElementRule, element_rule, round_to_code, zero_code
from quantaudit.numerics.scalar_scales import choose_exponent, choose_linear, decode_stored, encode_factor, measure

Coordinate = tuple[int, int]
_Number = TypeVar("_Number", int, float)


class ScalarQuantized(NamedTuple):
    """A quantized matrix in Python numbers; fields as in `QuantizedTensor`.

    Stored scales are codes where the scale format has at most 8 bits, values otherwise, one a group in row-major order.
    """

    codes: list[list[int]]
    scales: list[float]
    second_scales: list[float]
    offset: float | None
    values: list[list[float]]


class _Scales(NamedTuple):
    """The scales of all groups: as stored, as used for encoding (see `encode_factor`), and as decoded."""

    stored: list[float]
    factors: list[float | None]
    decoded: list[float]
    second: list[float]
    offset: float | None


def quantize_matrix(
    rows: Sequence[Sequence[float]], scheme: Scheme, input_format: FloatFormat = FP32
) -> ScalarQuantized:
    """Quantizes a matrix of numbers of `input_format` and decodes it to fp32."""
    groups = group_coordinates(len(rows), len(rows[0]), scheme.granularity)
    members = [[rows[r][c] for r, c in group] for group in groups]
    fmt = input_format if scheme.arithmetic is Arithmetic.INPUT else FP32
    scales = _choose_scales(members, scheme, input_format)
    rule = element_rule(scheme)
    codes = [
        [_encode(value, factor, scheme, rule, fmt) for value in group]
        for group, factor in zip(members, scales.factors, strict=True)
    ]
    values = [
        [multiply(scheme.element.value_of(code), scale, FP32) for code in group]
        for group, scale in zip(codes, scales.decoded, strict=True)
    ]
    return ScalarQuantized(
        _scatter(codes, groups), scales.stored, scales.second, scales.offset, _scatter(values, groups)
    )


def group_coordinates(num_rows: int, num_cols: int, granularity: Granularity) -> list[list[Coordinate]]:
    """Lists the (row, column) members of every group of a matrix, groups in row-major order."""
    flat = [(r, c) for r in range(num_rows) for c in range(num_cols)]
    if isinstance(granularity, PerTensor):
        return [flat]
    if isinstance(granularity, FlatBlocks):
        return [flat[i : i + granularity.size] for i in range(0, len(flat), granularity.size)]
    tile_rows, tile_cols = 1, num_cols
    if isinstance(granularity, PerGroup):
        tile_cols = granularity.size
    if isinstance(granularity, PerBlock):
        tile_rows, tile_cols = granularity.rows, granularity.cols
    per_row = -(-num_cols // tile_cols)
    tiles: list[list[Coordinate]] = [[] for _ in range(-(-num_rows // tile_rows) * per_row)]
    for r, c in flat:
        tiles[r // tile_rows * per_row + c // tile_cols].append((r, c))
    return tiles


def _choose_scales(members: list[list[float]], scheme: Scheme, input_format: FloatFormat) -> _Scales:
    rule = scheme.scale
    statistics = [measure(group, rule) for group in members]
    if isinstance(rule, ExponentScale):
        codes = [choose_exponent(statistic, rule) for statistic in statistics]
        values = [rule.format.value_of(code) for code in codes]
        return _Scales([float(code) for code in codes], list(values), values, [], None)
    return _choose_linear_scales(statistics, scheme, rule, input_format)


def _choose_linear_scales(
    statistics: list[float], scheme: Scheme, rule: LinearScale, input_format: FloatFormat
) -> _Scales:
    level = rule.second_level
    if level is not None and any(math.isnan(s) for s in statistics):
        statistics = [math.nan] * len(statistics)
    above = None
    if isinstance(level, TwoLevel):
        above = divide(max(statistics), round_to(Fraction(level.divisor), FP32), FP32)
    scale_fmt = input_format if rule.arithmetic is Arithmetic.INPUT else FP32
    fmt = input_format if scheme.arithmetic is Arithmetic.INPUT else FP32
    choices = [choose_linear(statistic, rule, scale_fmt, above) for statistic in statistics]
    factors = [encode_factor(choice, rule, scheme.division, fmt, above) for choice in choices]
    stored = [choice.stored for choice in choices]
    if isinstance(level, DoubleQuantization):
        return _quantize_scales(stored, factors, level)
    decoded = [decode_stored(s, rule) for s in stored]
    if above is not None:
        return _Scales(stored, factors, [multiply(s, above, FP32) for s in decoded], [above], None)
    return _Scales(stored, factors, decoded, [], None)


def _quantize_scales(scales: list[float], factors: list[float | None], level: DoubleQuantization) -> _Scales:
    mean = pairwise_sum(scales) / len(scales)
    offset = round_to(Fraction(mean), FP32) if math.isfinite(mean) else mean
    inner = quantize_matrix([[add(s, -offset, FP32) for s in scales]], level.scheme)
    decoded = [add(v, offset, FP32) for v in inner.values[0]]
    return _Scales([float(code) for code in inner.codes[0]], factors, decoded, inner.scales, offset)


def _encode(value: float, factor: float | None, scheme: Scheme, rule: ElementRule, fmt: FloatFormat) -> int:
    if factor is None:
        return round_to_code(math.copysign(0.0, value), rule)
    if math.isnan(factor):
        return zero_code(rule.element)
    if isinstance(scheme.scale, ExponentScale):
        return round_to_code(value / factor, rule)  # exact in float64: fp32 by a power of two
    combine = divide if scheme.division is Division.DIVIDE else multiply
    return round_to_code(combine(value, factor, fmt), rule)


def _scatter(values: list[list[_Number]], groups: list[list[Coordinate]]) -> list[list[_Number]]:
    """Returns the matrix whose groups hold these values."""
    found = {
        where: value for row, group in zip(values, groups, strict=True) for value, where in zip(row, group, strict=True)
    }
    num_rows, num_cols = (1 + max(where[axis] for where in found) for axis in (0, 1))
    return [[found[r, c] for c in range(num_cols)] for r in range(num_rows)]

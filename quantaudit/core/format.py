"""Number formats as complete value objects: what every code of an element or a scale means, exactly.

A format knows no rounding: `numerics` rounds, a `Scheme` says how. Three kinds exist. A *float* format is
sign-magnitude: `code = sign << (bits - 1) | exponent_field << mantissa_bits | mantissa`. An *integer* format is
two's complement. A *codebook* lists the value of each code.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from quantaudit.core.serial import Frozen

MAX_TABULATED_BITS = 16


class FormatKind(StrEnum):
    """How a code becomes a number."""

    FLOAT = "float"
    INTEGER = "integer"
    CODEBOOK = "codebook"


class Specials(StrEnum):
    """Which codes of a float format are not finite numbers."""

    NONE = "none"  # every code is a finite number (OCP FP4 and FP6)
    NAN = "nan"  # the all-ones magnitude is NaN, there is no infinity (OCP E4M3, E8M0)
    IEEE = "ieee"  # the top exponent holds infinity and NaN (E5M2, FP16, BF16, FP32)


class Midpoints(StrEnum):
    """Where the border between two neighbours of a codebook lies."""

    EXACT = "exact"  # (a + b) / 2
    FLOAT32 = "float32"  # (a + b) / 2 rounded to fp32, as code that stores a table of borders does


class FloatFormat(Frozen):
    """A binary floating-point format of at most 32 bits.

    Attributes:
        name: For people; not part of the arithmetic.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the stored fraction.
        bias: Subtracted from the exponent field.
        is_signed: Whether the top bit is a sign.
        has_subnormals: Whether exponent field 0 holds zero and subnormals; otherwise it is one more binade (E8M0).
        specials: Which codes are infinite or NaN.
    """

    kind: Literal[FormatKind.FLOAT] = FormatKind.FLOAT
    name: str
    exponent_bits: int = Field(ge=1, le=8)
    mantissa_bits: int = Field(ge=0, le=23)
    bias: int
    is_signed: bool = True
    has_subnormals: bool = True
    specials: Specials = Specials.NONE

    @property
    def bits(self) -> int:
        """Returns the width of a code."""
        return int(self.is_signed) + self.exponent_bits + self.mantissa_bits

    @property
    def sign_code(self) -> int:
        """Returns the sign bit: the code of -0 (0 for an unsigned format)."""
        return 1 << (self.bits - 1) if self.is_signed else 0

    @property
    def max_code(self) -> int:
        """Returns the code of the largest finite number."""
        ones = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        if self.specials is Specials.IEEE:
            return ones - (1 << self.mantissa_bits)
        return ones - 1 if self.specials is Specials.NAN else ones

    @property
    def inf_code(self) -> int | None:
        """Returns the code of +infinity, if there is one."""
        return self.max_code + 1 if self.specials is Specials.IEEE else None

    @property
    def nan_code(self) -> int | None:
        """Returns the canonical positive NaN code (quiet where that distinction exists), if there is one."""
        if self.specials is Specials.NAN:
            return self.max_code + 1
        if self.specials is Specials.IEEE:
            return self.max_code + 1 + (1 << (self.mantissa_bits - 1))
        return None

    @property
    def min_exponent(self) -> int:
        """Returns the exponent of the smallest normal number."""
        return (1 if self.has_subnormals else 0) - self.bias

    @property
    def max_exponent(self) -> int:
        """Returns floor(log2(max))."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def max(self) -> float:
        """Returns the largest finite number."""
        return self.value_of(self.max_code)

    @property
    def smallest_normal(self) -> float:
        """Returns the smallest positive number of full precision."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_positive(self) -> float:
        """Returns the smallest positive number, subnormal where the format has such."""
        return math.ldexp(1.0, self.min_exponent - (self.mantissa_bits if self.has_subnormals else 0))

    def value_of(self, code: int) -> float:
        """Returns the exact value of a code (every value fits float64)."""
        magnitude = code & ((1 << (self.exponent_bits + self.mantissa_bits)) - 1)
        sign = -1.0 if self.sign_code & code else 1.0
        if magnitude > self.max_code:
            return sign * math.inf if magnitude == self.inf_code else math.nan
        field, fraction = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if field == 0 and self.has_subnormals:
            return sign * math.ldexp(fraction, self.min_exponent - self.mantissa_bits)
        significand = (1 << self.mantissa_bits) + fraction
        return sign * math.ldexp(significand, field - self.bias - self.mantissa_bits)


class IntegerFormat(Frozen):
    """A two's complement integer; which of its codes a quantizer uses is the scheme's code range."""

    kind: Literal[FormatKind.INTEGER] = FormatKind.INTEGER
    name: str
    bits: int = Field(ge=2, le=8)

    @property
    def min_code(self) -> int:
        """Returns the smallest integer."""
        return -(1 << (self.bits - 1))

    @property
    def max_code(self) -> int:
        """Returns the largest integer."""
        return (1 << (self.bits - 1)) - 1

    @property
    def max(self) -> float:
        """Returns the largest number."""
        return float(self.max_code)

    def value_of(self, code: int) -> float:
        """Returns the value of a (signed) code."""
        return float(code)


class CodebookFormat(Frozen):
    """A table of values; `table[code]` is the value, in any order, repeats allowed.

    Among equal values the smaller code comes first in the order from which neighbours are taken.
    """

    kind: Literal[FormatKind.CODEBOOK] = FormatKind.CODEBOOK
    name: str
    bits: int = Field(ge=1, le=8)
    table: tuple[float, ...]
    midpoints: Midpoints = Midpoints.EXACT

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if len(self.table) != 1 << self.bits or not all(math.isfinite(v) for v in self.table):
            raise ValueError(f"{self.name}: a {self.bits}-bit codebook lists {1 << self.bits} finite values")
        return self

    @property
    def max(self) -> float:
        """Returns the largest number."""
        return max(self.table)

    @property
    def zero_code(self) -> int:
        """Returns the code that stands for zero: the one nearest to it, the smaller of two."""
        return min(range(len(self.table)), key=lambda code: (abs(self.table[code]), code))

    def value_of(self, code: int) -> float:
        """Returns the value of a code."""
        return self.table[code]


Format: TypeAlias = Annotated[FloatFormat | IntegerFormat | CodebookFormat, Field(discriminator="kind")]


@lru_cache(maxsize=64)
def code_values(fmt: FloatFormat | CodebookFormat) -> tuple[float, ...]:
    """Returns the value of every code of a format of at most 16 bits, by code."""
    assert fmt.bits <= MAX_TABULATED_BITS
    return tuple(fmt.value_of(code) for code in range(1 << fmt.bits))


E2M1 = FloatFormat(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1)
E2M3 = FloatFormat(name="e2m3", exponent_bits=2, mantissa_bits=3, bias=1)
E3M2 = FloatFormat(name="e3m2", exponent_bits=3, mantissa_bits=2, bias=3)
E4M3 = FloatFormat(name="e4m3", exponent_bits=4, mantissa_bits=3, bias=7, specials=Specials.NAN)
E5M2 = FloatFormat(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, specials=Specials.IEEE)
E8M0 = FloatFormat(
    name="e8m0",
    exponent_bits=8,
    mantissa_bits=0,
    bias=127,
    is_signed=False,
    has_subnormals=False,
    specials=Specials.NAN,
)
FP16 = FloatFormat(name="fp16", exponent_bits=5, mantissa_bits=10, bias=15, specials=Specials.IEEE)
BF16 = FloatFormat(name="bf16", exponent_bits=8, mantissa_bits=7, bias=127, specials=Specials.IEEE)
FP32 = FloatFormat(name="fp32", exponent_bits=8, mantissa_bits=23, bias=127, specials=Specials.IEEE)
INT8 = IntegerFormat(name="int8", bits=8)
INT4 = IntegerFormat(name="int4", bits=4)
INT3 = IntegerFormat(name="int3", bits=3)
INT2 = IntegerFormat(name="int2", bits=2)

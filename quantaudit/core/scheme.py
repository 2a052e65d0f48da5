"""A scheme: the complete arithmetic of a quantizer, as data.

Two people who hold equal schemes compute equal bits. For one group of values the arithmetic is

    statistic   a = max |x|  (or the signed value of largest magnitude)
    scale       s = scale rule (a), stored in the scale format
    ratio       y = x / s  or  x * (1 / s), rounded to the arithmetic dtype
    code        c = y rounded to the element format by the tie rule, then clamped to the code range
    decoded     v = value(c) * s  in fp32, rounded once more to the output dtype

and what happens to groups for which this is not defined (zero, infinite, NaN) is stated too:

    * A group whose statistic is zero has scale `zero_code` (power-of-two scales) or `zero_scale` (linear scales).
    * A scale of zero, or one whose reciprocal is needed and overflows, gives every element the code of zero; float
      formats keep the sign of the element there, so -0 stays -0.
    * A group that holds a NaN or an infinity has a NaN scale (255 for E8M0), codes of zero, and decodes to NaN. With a
      second level, that is true of everything that shares the second level.
    * Subnormal numbers are numbers: nothing is flushed. A decoded value beyond the output dtype is an infinity.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from quantaudit.core.format import E8M0, FP32, FloatFormat, Format, FormatKind, IntegerFormat
from quantaudit.core.serial import Frozen, digest_of

ARITHMETIC_VERSION = 1  # raised when the meaning of a field changes: old digests then no longer match


class PerTensor(Frozen):
    """One group: the whole matrix (of a stack of matrices, each its own)."""

    kind: Literal["tensor"] = "tensor"


class PerChannel(Frozen):
    """One group a row: weights, output channel by output channel."""

    kind: Literal["channel"] = "channel"


class PerToken(Frozen):
    """One group a row: activations, token by token. The same function as `PerChannel`, another intent."""

    kind: Literal["token"] = "token"


class PerGroup(Frozen):
    """Groups of `size` consecutive values of the last axis, which the size must divide."""

    kind: Literal["group"] = "group"
    size: int = Field(ge=1)


class PerBlock(Frozen):
    """Tiles of `rows` x `cols`; tiles at the lower and right edge may be partial."""

    kind: Literal["block"] = "block"
    rows: int = Field(ge=1)
    cols: int = Field(ge=1)


class FlatBlocks(Frozen):
    """Blocks of `size` consecutive values of the flattened matrix; the last may be partial."""

    kind: Literal["flat"] = "flat"
    size: int = Field(ge=1)


Granularity: TypeAlias = Annotated[
    PerTensor | PerChannel | PerToken | PerGroup | PerBlock | FlatBlocks, Field(discriminator="kind")
]


class Tie(StrEnum):
    """Where a ratio goes that lies exactly between two neighbours of the element format."""

    EVEN = "even"  # to the even code
    AWAY = "away"  # away from zero
    ZERO = "toward-zero"
    UP = "up"  # to the larger value
    LOWER = "lower"  # to the smaller value
    BIASED_UP = "biased-up"  # floor(y + (1/2 - code_min)), the sum rounded to fp32: up, and so is what is just below


class ExponentRounding(StrEnum):
    """How a power-of-two scale is chosen from a = absmax and d = divisor; e(.) is floor(log2(.))."""

    FLOOR = "floor"  # e(a) - e(d)
    CEIL = "ceil"  # ceil(log2 a) - e(d)
    EVEN = "even"  # e(a rounded half up to `kept_mantissa_bits`) - e(d)
    RCEIL = "rceil"  # the smallest X with d * 2^X >= a
    NEAREST = "nearest"  # log2(a / d) rounded to the nearest integer


class Statistic(StrEnum):
    """What is measured of a group."""

    ABSMAX = "absmax"
    SIGNED_ABSMAX = "signed-absmax"  # the value of largest magnitude with its sign


class StatisticTie(StrEnum):
    """Which value a signed statistic takes when +a and -a are both in the group."""

    FIRST = "first"
    LAST = "last"


class Division(StrEnum):
    """Whether one divides, or multiplies by the rounded reciprocal."""

    DIVIDE = "divide"
    RECIPROCAL = "reciprocal"


class Arithmetic(StrEnum):
    """To which precision constants, operands and every intermediate result are rounded."""

    FLOAT32 = "float32"
    INPUT = "input"  # the dtype of the tensor: bf16 weights are then divided in bf16


class EncodeScale(StrEnum):
    """Which scale the elements are divided by when the stored one is a rounded copy."""

    STORED = "stored"
    COMPUTED = "computed"


class Overflow(StrEnum):
    """What becomes of a number beyond the largest finite one of its format (after rounding)."""

    SATURATE = "saturate"
    SPECIAL = "special"  # infinity where the format has it, else NaN


class Layout(StrEnum):
    """How codes lie in memory; no part of the arithmetic."""

    BYTES = "bytes"  # one code a byte; 6-bit codes stay like this
    LOW_NIBBLE_FIRST = "low-nibble-first"  # byte j = code 2j | code 2j+1 << 4
    HIGH_NIBBLE_FIRST = "high-nibble-first"  # byte j = code 2j << 4 | code 2j+1
    GGML_SPLIT = "ggml-split"  # in blocks of 32: byte j = code j | code j+16 << 4
    INT32_WORDS = "int32-words"  # word j = sum over k < 8 of (code 8j+k) + 8 << 4k


class MeanRule(StrEnum):
    """How a mean is computed so that its bits do not depend on threads or device."""

    PAIRWISE_FLOAT64 = "pairwise-float64"  # halves added element by element in float64, divided, rounded to fp32


class CodeRange(Frozen):
    """The integers that a quantizer uses, both ends included."""

    low: int
    high: int


class ExponentScale(Frozen):
    """A power of two per group, stored as its biased exponent and clamped to the finite codes of `format`.

    Attributes:
        rounding: How the exponent is chosen.
        divisor: Largest value of the element format, or what the rule takes for it.
        kept_mantissa_bits: Fraction bits to which EVEN rounds the statistic (its threshold is 2 - 2^-(bits + 1)).
        amax_floor: The statistic is at least this.
        zero_code: Stored for a statistic of zero.
    """

    kind: Literal["exponent"] = "exponent"
    format: FloatFormat = E8M0
    rounding: ExponentRounding
    divisor: float = Field(gt=0)
    kept_mantissa_bits: int | None = Field(default=None, ge=0, le=22)
    amax_floor: float = Field(default=0.0, ge=0)
    zero_code: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kept_mantissa_bits is not None) != (self.rounding is ExponentRounding.EVEN):
            raise ValueError("kept_mantissa_bits belongs to the rounding 'even' and to no other")
        if self.format.model_copy(update={"name": E8M0.name}) != E8M0:
            raise ValueError("a power-of-two scale is stored as E8M0")
        return self


class TwoLevel(Frozen):
    """A scale for the whole matrix above the scales of the groups: t = absmax(matrix) / divisor.

    The group scale is (a / divisor of the rule) / t, the ratio x * ((1 / t) / s) or x / (s * t), and the decoded value
    value(c) * (s * t), every operation rounded to fp32. A matrix whose t is zero has group scales of `scale_floor` and
    codes of zero.
    """

    kind: Literal["two-level"] = "two-level"
    divisor: float = Field(gt=0)


class DoubleQuantization(Frozen):
    """The scales, less their mean, are quantized in turn: s' = decode(quantize(s - m)) + m, in fp32.

    Attributes:
        mean: How m is computed.
        scheme: Complete arithmetic of the second quantizer, applied to the row of all scales of a matrix.
    """

    kind: Literal["double"] = "double"
    mean: MeanRule = MeanRule.PAIRWISE_FLOAT64
    scheme: Scheme


class LinearScale(Frozen):
    """A real-valued scale per group: s = a / divisor.

    Attributes:
        statistic: What is measured.
        statistic_tie: Which of +a and -a a signed statistic takes.
        divisor: Usually the largest value of the element format.
        division: a / divisor, or a * (1 / divisor).
        arithmetic: Precision of that division.
        amax_floor: The statistic is at least this (in magnitude).
        scale_floor: The computed scale is at least this (in magnitude), before it is stored.
        zero_scale: Replaces a computed scale of zero.
        encode_floor: The scale used for encoding is at least this (in magnitude); the stored one is not.
        format: Number format in which the scale is stored, to nearest even.
        overflow: What becomes of a scale beyond that format.
        encode_with: Whether elements see the stored or the computed scale.
        second_level: What lies above the scales.
    """

    kind: Literal["linear"] = "linear"
    statistic: Statistic = Statistic.ABSMAX
    statistic_tie: StatisticTie = StatisticTie.FIRST
    divisor: float
    division: Division = Division.DIVIDE
    arithmetic: Arithmetic = Arithmetic.FLOAT32
    amax_floor: float = Field(default=0.0, ge=0)
    scale_floor: float = Field(default=0.0, ge=0)
    zero_scale: float = Field(default=0.0, ge=0)
    encode_floor: float = Field(default=0.0, ge=0)
    format: FloatFormat = FP32
    overflow: Overflow = Overflow.SATURATE
    encode_with: EncodeScale = EncodeScale.STORED
    second_level: Annotated[TwoLevel | DoubleQuantization, Field(discriminator="kind")] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.divisor == 0 or (self.divisor < 0 and self.statistic is Statistic.ABSMAX):
            raise ValueError(f"divisor {self.divisor}: an absmax is divided by a positive number")
        if isinstance(self.second_level, DoubleQuantization) and self.encode_with is not EncodeScale.COMPUTED:
            raise ValueError("double quantization stores a rounded scale; elements are encoded with the computed one")
        if isinstance(self.second_level, TwoLevel) and self.scale_floor == 0:
            raise ValueError("a two-level scale needs a scale_floor: a group scale of zero would have no reciprocal")
        return self


ScaleRule: TypeAlias = Annotated[ExponentScale | LinearScale, Field(discriminator="kind")]


class Scheme(Frozen):
    """The complete arithmetic of a quantizer (see the module docstring for the order of operations).

    Attributes:
        name: Catalogue name; in no digest.
        element: Number format of the codes.
        granularity: Which values share a scale.
        scale: How the scale is chosen and stored.
        division: How elements are divided by the scale (exact, so without meaning, for power-of-two scales).
        arithmetic: Precision of that division.
        tie: Element tie rule.
        code_range: For integers, the codes in use.
        overflow: What becomes of ratios beyond the element format; integers and codebooks saturate.
        layout: Packing of the codes.
        source: Where this arithmetic is specified; in no digest.
    """

    schema_version: int = 1
    name: str
    element: Format
    granularity: Granularity
    scale: ScaleRule
    division: Division = Division.DIVIDE
    arithmetic: Arithmetic = Arithmetic.FLOAT32
    tie: Tie = Tie.EVEN
    code_range: CodeRange | None = None
    overflow: Overflow = Overflow.SATURATE
    layout: Layout = Layout.BYTES
    source: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.element, IntegerFormat):
            if self.code_range is None:
                raise ValueError(f"{self.name}: an integer scheme states its code range")
            if not self.element.min_code <= self.code_range.low <= 0 < self.code_range.high <= self.element.max_code:
                raise ValueError(f"{self.name}: code range {self.code_range} does not lie in {self.element.name}")
        elif self.code_range is not None:
            raise ValueError(f"{self.name}: only integers have a code range")
        if self.element.kind is not FormatKind.INTEGER and self.tie is Tie.BIASED_UP:
            raise ValueError(f"{self.name}: the tie rule 'biased-up' is defined for integers")
        if self.element.kind is not FormatKind.FLOAT and self.overflow is not Overflow.SATURATE:
            raise ValueError(f"{self.name}: integers and codebooks saturate")
        if isinstance(self.element, FloatFormat) and not (self.element.is_signed and self.element.bits <= 8):
            raise ValueError(f"{self.name}: elements are signed and of at most 8 bits")
        return self

    @model_validator(mode="after")
    def _check_two_level(self) -> Self:
        is_two_level = isinstance(self.scale, LinearScale) and isinstance(self.scale.second_level, TwoLevel)
        if is_two_level and self.arithmetic is not Arithmetic.FLOAT32:
            raise ValueError(f"{self.name}: two-level arithmetic is fp32")
        return self

    @property
    def arithmetic_digest(self) -> str:
        """Returns the digest of everything that determines scales, codes and decoded values."""
        return digest_of([ARITHMETIC_VERSION, _without(self.model_dump(mode="json"), _NOT_ARITHMETIC)])

    @property
    def encoding_digest(self) -> str:
        """Returns the digest of the arithmetic and of how the codes are packed."""
        return digest_of([ARITHMETIC_VERSION, _without(self.model_dump(mode="json"), _NOT_ENCODING)])


_NOT_ENCODING = frozenset({"name", "source", "schema_version"})
_NOT_ARITHMETIC = _NOT_ENCODING | {"layout"}


def _without(value: object, keys: frozenset[str]) -> object:
    """Returns `value` with these keys removed from every mapping in it."""
    if isinstance(value, dict):
        return {k: _without(v, keys) for k, v in value.items() if k not in keys}
    return [_without(v, keys) for v in value] if isinstance(value, list) else value


DoubleQuantization.model_rebuild()
LinearScale.model_rebuild()
Scheme.model_rebuild()

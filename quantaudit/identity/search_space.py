"""The rule space: every scale rule and every code rule that a scheme can be put together from, the usual ones first.

A scheme is a format, a granularity, a scale rule and a code rule. The scale depends on the statistic of a group alone,
so scale rules are tried first and code rules only with those that fit. Order is preference: where a tensor does not
tell two schemes apart, the earlier one is named and the other is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from quantaudit.core.errors import InputError
from quantaudit.core.format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP16,
    FP32,
    INT2,
    INT3,
    INT4,
    INT8,
    CodebookFormat,
    FloatFormat,
    Format,
    FormatKind,
    IntegerFormat,
)
from quantaudit.core.scheme import (
    Arithmetic,
    CodeRange,
    Division,
    DoubleQuantization,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    FlatBlocks,
    Granularity,
    Layout,
    LinearScale,
    Overflow,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    ScaleRule,
    Scheme,
    Statistic,
    Tie,
)
from quantaudit.identity.rule import explain
from quantaudit.numerics.catalogue import bundled_schemes, get_scheme
from quantaudit.numerics.codebooks import BNB_FP4, NF4
from quantaudit.numerics.grouping import plan

FLOORS = (2.0**-126, 1e-10, 1e-8, 1e-5, 1e-4)
ZERO_SCALES = (1.0, 2.0**-7, 2.0**-23)  # one, and the machine epsilon of bf16 and fp32
_BNB_FLOOR = 1e-38
_ROUNDINGS = (
    ExponentRounding.FLOOR,
    ExponentRounding.EVEN,
    ExponentRounding.RCEIL,
    ExponentRounding.CEIL,
    ExponentRounding.NEAREST,
)
_TWO_LEVEL_FLOORS = (2.0**-6, 2.0**-9)  # smallest normal and subnormal E4M3
_SOURCE = "found by search over the rule space"

# What a tensor of plain numbers may have been quantized to.
ELEMENTS: tuple[Format, ...] = (E2M1, INT4, E4M3, INT8, NF4, BNB_FP4, E5M2, E2M3, E3M2, INT3, INT2)
_GROUP_SIZES = (32, 128, 16, 64)


def granularities(shape: tuple[int, int], element: Format) -> Iterator[Granularity]:
    """Yields the ways in which a matrix of plain numbers may have been cut."""
    rows, cols = shape
    if isinstance(element, CodebookFormat):
        yield FlatBlocks(size=64)
        return
    yield from (PerGroup(size=size) for size in _GROUP_SIZES if cols % size == 0)
    if element.bits == 8:
        yield PerBlock(rows=128, cols=128)
        yield PerTensor()
    yield PerChannel()


def scale_rules(element: Format, container: FloatFormat | None) -> Iterator[ScaleRule]:
    """Yields scale rules without floors, the usual ones first.

    Args:
        element: Format of the codes.
        container: Format in which scales are stored; `None` where that is not known.
    """
    is_exponent = container is not None and container.mantissa_bits == 0
    if isinstance(element, FloatFormat) or is_exponent:
        yield from _exponent_rules(element)
    if not is_exponent:
        yield from _linear_rules(element, container)


def floored_rules(rule: ScaleRule, smallest: float) -> Iterator[ScaleRule]:
    """Yields a scale rule with every floor that a group as small as `smallest` would show."""
    for floor in FLOORS:
        if smallest < floor:
            yield rule.model_copy(update={"amax_floor": floor})
        if isinstance(rule, LinearScale) and smallest / abs(rule.divisor) < floor:
            yield rule.model_copy(update={"scale_floor": floor})
    if smallest == 0 and isinstance(rule, LinearScale):
        yield from (rule.model_copy(update={"zero_scale": scale}) for scale in ZERO_SCALES)


def base_schemes(element: Format, granularity: Granularity) -> Iterator[Scheme]:
    """Yields one scheme for every scale rule that plain numbers tell apart at a glance."""
    for rule in scale_rules(element, FP32):
        is_usual = isinstance(rule, ExponentScale) or (
            rule.arithmetic is Arithmetic.FLOAT32 and rule.division is Division.DIVIDE
        )
        if is_usual:
            yield make_scheme(element, granularity, rule)
    if element == E2M1 and isinstance(granularity, PerGroup):
        yield from two_level_schemes(granularity)


def two_level_schemes(granularity: Granularity) -> Iterator[Scheme]:
    """Yields NVFP4 with its usual and its smallest floor of scales, computed in fp32 and in the dtype of the master."""
    base = get_scheme("nvfp4")
    for precision, floor in product(Arithmetic, _TWO_LEVEL_FLOORS):
        rule = base.scale.model_copy(update={"scale_floor": floor, "arithmetic": precision})
        yield base.model_copy(update={"granularity": granularity, "scale": rule})


def double_schemes() -> Iterator[Scheme]:
    """Yields the bundled schemes whose scales are quantized in turn."""
    for scheme in bundled_schemes():
        rule = scheme.scale
        if isinstance(rule, LinearScale) and isinstance(rule.second_level, DoubleQuantization):
            yield scheme


def can_group(shape: tuple[int, int], granularity: Granularity) -> bool:
    """Says whether a granularity fits a shape."""
    try:
        plan(shape, granularity)
    except InputError:
        return False
    return True


def scale_variants(scheme: Scheme) -> Iterator[Scheme]:
    """Yields the scheme with every other order of operations and stored format of its linear scale."""
    if isinstance(scheme.scale, ExponentScale) or scheme.scale.second_level is not None:
        yield scheme
        return
    for rule in _linear_rules(scheme.element, None):
        if rule.divisor == scheme.scale.divisor:
            yield scheme.model_copy(update={"scale": rule})


def arithmetic_variants(scheme: Scheme, *, is_narrow: bool) -> Iterator[Scheme]:
    """Yields the scheme with every way of dividing by its scale.

    Args:
        scheme: Format, granularity and scale rule.
        is_narrow: Whether the master is narrower than fp32, so that arithmetic in its own dtype is something else.
    """
    rule = scheme.scale
    if isinstance(rule, ExponentScale):
        yield scheme
        return
    precisions = tuple(Arithmetic) if is_narrow and rule.second_level is None else (Arithmetic.FLOAT32,)
    is_rounded = rule.second_level is None and rule.format != FP32
    for which, precision, division in product(EncodeScale if is_rounded else (rule.encode_with,), precisions, Division):
        update = {
            "arithmetic": precision,
            "division": division,
            "scale": rule.model_copy(update={"encode_with": which}),
        }
        yield scheme.model_copy(update=update)


def rounding_variants(scheme: Scheme) -> Iterator[Scheme]:
    """Yields the scheme with every tie rule and code range."""
    for codes, tie in product(_code_ranges(scheme), _ties(scheme.element)):
        yield scheme.model_copy(update={"code_range": codes, "tie": tie})


def is_bundled(scheme: Scheme) -> bool:
    """Says whether the arithmetic of a scheme has a name in the catalogue."""
    digest = scheme.arithmetic_digest
    return any(known.arithmetic_digest == digest for known in _relatives(scheme.element.bits))


def make_scheme(element: Format, granularity: Granularity, rule: ScaleRule) -> Scheme:
    """Returns the scheme of a scale rule with the usual code rules."""
    is_codebook = isinstance(element, CodebookFormat)
    return Scheme(
        name="candidate",
        element=element,
        granularity=granularity,
        scale=rule,
        division=Division.RECIPROCAL if is_codebook else Division.DIVIDE,
        tie=Tie.LOWER if is_codebook else Tie.EVEN,
        code_range=CodeRange(low=element.min_code, high=element.max_code)
        if isinstance(element, IntegerFormat)
        else None,
        layout=Layout.LOW_NIBBLE_FIRST if element.bits == 4 else Layout.BYTES,
        source=_SOURCE,
    )


def name_scheme(scheme: Scheme) -> Scheme:
    """Returns the scheme under its catalogue name, or that of its nearest relative and what differs from it."""
    digest = scheme.arithmetic_digest
    relatives = _relatives(scheme.element.bits)
    for known in relatives:
        if known.arithmetic_digest == digest:
            return known
    if not relatives:
        return scheme.model_copy(update={"name": scheme.element.name})
    found = [(explain(known, scheme, None), known.name) for known in relatives]
    differences, name = min(found, key=lambda pair: len(pair[0]))
    words = ", ".join(f"{d.field} = {d.b_value}" for d in differences)
    return scheme.model_copy(update={"name": f"{name} with {words}"})


@lru_cache(maxsize=16)
def _relatives(bits: int) -> tuple[Scheme, ...]:
    return tuple(scheme for scheme in bundled_schemes() if scheme.element.bits == bits)


def _exponent_rules(element: Format) -> Iterator[ExponentScale]:
    largest = max(element.table) if isinstance(element, CodebookFormat) else element.max
    kept = element.mantissa_bits if isinstance(element, FloatFormat) else 1
    for rounding in _ROUNDINGS:
        for bits in sorted({kept, 1}, reverse=True) if rounding is ExponentRounding.EVEN else [None]:
            yield ExponentScale(rounding=rounding, divisor=largest, kept_mantissa_bits=bits)


def _linear_rules(element: Format, container: FloatFormat | None) -> Iterator[LinearScale]:
    formats = (FP32, BF16, FP16) if container is None or container == FP32 else (container,)
    for divisor, fmt, precision, division in product(_divisors(element), formats, Arithmetic, Division):
        yield LinearScale(
            divisor=divisor,
            statistic=Statistic.SIGNED_ABSMAX if divisor < 0 else Statistic.ABSMAX,
            division=division,
            arithmetic=precision,
            encode_floor=_BNB_FLOOR if isinstance(element, CodebookFormat) else 0.0,
            format=fmt,
            overflow=Overflow.SPECIAL if divisor < 0 else Overflow.SATURATE,
        )


def _divisors(element: Format) -> tuple[float, ...]:
    if isinstance(element, IntegerFormat):
        top = float(element.max_code)
        return (top, top + 0.5, top + 1.0, -(top + 1.0))
    if isinstance(element, CodebookFormat):
        return (1.0,)
    return (element.max, 240.0) if element == E4M3 else (element.max,)


def _code_ranges(scheme: Scheme) -> tuple[CodeRange | None, ...]:
    element = scheme.element
    if not isinstance(element, IntegerFormat):
        return (None,)
    return tuple(CodeRange(low=low, high=element.max_code) for low in (element.min_code, -element.max_code))


def _ties(element: Format) -> tuple[Tie, ...]:
    usual = tuple(tie for tie in Tie if tie is not Tie.BIASED_UP or element.kind is FormatKind.INTEGER)
    if isinstance(element, CodebookFormat):
        return (Tie.LOWER, *(tie for tie in usual if tie is not Tie.LOWER))
    return usual

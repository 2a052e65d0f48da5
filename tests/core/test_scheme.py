"""What a scheme's digests cover, what they leave out, and which contradictions a scheme refuses."""

from __future__ import annotations

import pytest

from quantaudit.core.format import BF16, E2M1, E2M3, E4M3, FP32, INT4, CodebookFormat, IntegerFormat
from quantaudit.core.scheme import (
    Arithmetic,
    CodeRange,
    Division,
    DoubleQuantization,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    FlatBlocks,
    Layout,
    LinearScale,
    Overflow,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    PerToken,
    Scheme,
    Statistic,
    StatisticTie,
    Tie,
    TwoLevel,
)
from quantaudit.core.serial import Frozen

MX = Scheme(
    name="mx",
    element=E2M1,
    granularity=PerGroup(size=32),
    scale=ExponentScale(rounding=ExponentRounding.FLOOR, divisor=6.0),
    source="here",
)
INT = Scheme(
    name="int",
    element=INT4,
    granularity=PerGroup(size=32),
    scale=LinearScale(divisor=7.0),
    code_range=CodeRange(low=-8, high=7),
    source="here",
)
INNER = MX.model_copy(update={"name": "inner", "granularity": FlatBlocks(size=256)})


def changed(scheme: Scheme, **update: object) -> Scheme:
    """Returns a validated copy with other fields."""
    return Scheme.model_validate(scheme.model_dump() | {k: _plain(v) for k, v in update.items()})


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, Frozen) else value


def rule(**update: object) -> LinearScale:
    """Returns the linear rule of `INT` with other fields."""
    assert isinstance(INT.scale, LinearScale)
    return LinearScale.model_validate(INT.scale.model_dump() | {k: _plain(v) for k, v in update.items()})


def test_a_scheme_survives_json() -> None:
    nested = changed(INT, scale=rule(encode_with=EncodeScale.COMPUTED, second_level=DoubleQuantization(scheme=INNER)))
    for scheme in (MX, INT, nested):
        assert Scheme.from_json(scheme.to_json()) == scheme


def test_name_and_source_are_in_no_digest() -> None:
    other = changed(MX, name="other", source="there", element=E2M1.model_copy(update={"name": "fp4"}))
    assert other.arithmetic_digest == MX.arithmetic_digest
    assert other.encoding_digest == MX.encoding_digest


def test_names_of_nested_schemes_are_in_no_digest() -> None:
    def nested(name: str) -> Scheme:
        level = DoubleQuantization(scheme=INNER.model_copy(update={"name": name, "source": name}))
        return changed(INT, scale=rule(encode_with=EncodeScale.COMPUTED, second_level=level))

    assert nested("one").arithmetic_digest == nested("two").arithmetic_digest


def test_layout_is_encoding_and_not_arithmetic() -> None:
    packed = changed(MX, layout=Layout.LOW_NIBBLE_FIRST)
    assert packed.arithmetic_digest == MX.arithmetic_digest
    assert packed.encoding_digest != MX.encoding_digest


def exponent(**update: object) -> ExponentScale:
    """Returns the power-of-two rule of `MX` with other fields."""
    return ExponentScale.model_validate({"rounding": "floor", "divisor": 6.0} | update)


def mx_variants() -> list[Scheme]:
    """Lists power-of-two schemes that differ from `MX`, and from each other, in one field."""
    granularities = [PerGroup(size=16), PerTensor(), PerChannel(), PerToken(), FlatBlocks(size=32)]
    scales = [
        exponent(rounding="ceil"),
        exponent(divisor=4.0),
        exponent(zero_code=127),
        exponent(amax_floor=1e-10),
        exponent(rounding="even", kept_mantissa_bits=1),
        exponent(rounding="even", kept_mantissa_bits=3),
    ]
    return [
        MX,
        changed(MX, element=E2M3),
        *(changed(MX, granularity=g) for g in [*granularities, PerBlock(rows=1, cols=32)]),
        *(changed(MX, scale=scale) for scale in scales),
        changed(MX, division=Division.RECIPROCAL),
        changed(MX, arithmetic=Arithmetic.INPUT),
        *(changed(MX, tie=tie) for tie in Tie if tie not in (Tie.EVEN, Tie.BIASED_UP)),
        changed(MX, overflow=Overflow.SPECIAL),
    ]


def linear_variants() -> list[Scheme]:
    """Lists linear schemes that differ from `INT`, and from each other, in one field of the scale or second level."""
    fields = {
        "statistic": Statistic.SIGNED_ABSMAX,
        "statistic_tie": StatisticTie.LAST,
        "divisor": 7.5,
        "division": Division.RECIPROCAL,
        "arithmetic": Arithmetic.INPUT,
        "amax_floor": 1e-5,
        "scale_floor": 1e-5,
        "zero_scale": 1.0,
        "encode_floor": 1e-38,
        "format": BF16,
        "overflow": Overflow.SPECIAL,
        "encode_with": EncodeScale.COMPUTED,
    }
    two_levels = [TwoLevel(divisor=2688.0), TwoLevel(divisor=448.0)]
    doubles = [DoubleQuantization(scheme=changed(INNER, granularity=FlatBlocks(size=size))) for size in (64, 256)]
    scales = [rule(**{field: value}) for field, value in fields.items()]
    scales += [rule(second_level=level, scale_floor=2.0**-6) for level in two_levels]
    scales += [rule(second_level=level, encode_with=EncodeScale.COMPUTED) for level in doubles]
    return [INT, changed(INT, code_range=CodeRange(low=-7, high=7)), *(changed(INT, scale=scale) for scale in scales)]


def test_every_other_field_is_in_the_arithmetic_digest() -> None:
    variants = mx_variants() + linear_variants()
    assert len({scheme.arithmetic_digest for scheme in variants}) == len(variants)


def test_no_field_is_forgotten_above() -> None:
    """A new field has to be varied here, or be named among those that no digest covers."""
    shown = {"kind", "format"}
    assert set(Scheme.model_fields) - {"schema_version", "name", "source", "layout"} == {
        *("element", "granularity", "scale", "division", "arithmetic", "tie", "code_range", "overflow"),
    }
    assert set(ExponentScale.model_fields) - shown == {
        *("rounding", "divisor", "kept_mantissa_bits", "amax_floor", "zero_code"),
    }
    assert set(LinearScale.model_fields) - shown == {
        *("statistic", "statistic_tie", "divisor", "division", "arithmetic", "amax_floor", "scale_floor"),
        *("zero_scale", "encode_floor", "overflow", "encode_with", "second_level"),
    }


def test_the_digest_of_a_known_scheme_does_not_move() -> None:
    """Digests are stored in manifests: whoever changes this one raises ARITHMETIC_VERSION and says so."""
    assert MX.arithmetic_digest.startswith("bd2284622f15e34e")
    assert INT.arithmetic_digest.startswith("55c1b113711c3acf")


@pytest.mark.parametrize(
    ("message", "update"),
    [
        ("states its code range", {"element": INT4}),
        ("only integers have a code range", {"code_range": CodeRange(low=-8, high=7)}),
        ("defined for integers", {"tie": Tie.BIASED_UP}),
        ("signed and of at most 8 bits", {"element": FP32}),
        ("even", {"scale": {"kind": "exponent", "rounding": "even", "divisor": 6.0}}),
        ("even", {"scale": {"kind": "exponent", "rounding": "floor", "divisor": 6.0, "kept_mantissa_bits": 1}}),
        ("E8M0", {"scale": {"kind": "exponent", "rounding": "floor", "divisor": 6.0, "format": E4M3.model_dump()}}),
        ("positive number", {"scale": {"kind": "linear", "divisor": -8.0}}),
        ("saturate", {"element": CodebookFormat(name="c", bits=1, table=(0.0, 1.0)), "overflow": Overflow.SPECIAL}),
        ("scale_floor", {"scale": {"kind": "linear", "divisor": 6.0, "second_level": TwoLevel(divisor=1.0)}}),
        ("unknown", {"unknown": 1}),
    ],
)
def test_contradictions_are_refused(message: str, update: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=message):
        changed(MX, **update)


def test_a_code_range_lies_in_its_format_and_holds_zero() -> None:
    for low, high in ((-9, 7), (-8, 8), (1, 7), (-8, 0)):
        with pytest.raises(ValueError, match="does not lie in"):
            changed(INT, code_range=CodeRange(low=low, high=high))
    assert IntegerFormat(name="int4", bits=4) == INT4


def test_double_quantization_encodes_with_the_computed_scale() -> None:
    with pytest.raises(ValueError, match="computed one"):
        rule(second_level=DoubleQuantization(scheme=INNER))


def test_two_levels_compute_in_fp32() -> None:
    with pytest.raises(ValueError, match="fp32"):
        changed(INT, scale=rule(second_level=TwoLevel(divisor=1.0), scale_floor=1.0), arithmetic=Arithmetic.INPUT)

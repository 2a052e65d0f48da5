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


def test_every_other_field_is_in_the_arithmetic_digest() -> None:
    variants = [
        MX,
        INT,
        changed(MX, element=E2M3),
        changed(MX, granularity=PerGroup(size=16)),
        changed(MX, granularity=PerTensor()),
        changed(MX, granularity=PerChannel()),
        changed(MX, granularity=PerToken()),
        changed(MX, granularity=FlatBlocks(size=32)),
        changed(MX, granularity=PerBlock(rows=1, cols=32)),
        changed(MX, scale=ExponentScale(rounding=ExponentRounding.CEIL, divisor=6.0)),
        changed(MX, scale=ExponentScale(rounding=ExponentRounding.FLOOR, divisor=4.0)),
        changed(MX, scale=ExponentScale(rounding=ExponentRounding.FLOOR, divisor=6.0, zero_code=127)),
        changed(MX, scale=ExponentScale(rounding=ExponentRounding.FLOOR, divisor=6.0, amax_floor=1e-10)),
        *(
            changed(MX, scale=ExponentScale(rounding=ExponentRounding.EVEN, divisor=6.0, kept_mantissa_bits=b))
            for b in (1, 3)
        ),
        changed(MX, division=Division.RECIPROCAL),
        changed(MX, arithmetic=Arithmetic.INPUT),
        *(changed(MX, tie=tie) for tie in Tie if tie not in (Tie.EVEN, Tie.BIASED_UP)),
        changed(MX, overflow=Overflow.SPECIAL),
        changed(INT, code_range=CodeRange(low=-7, high=7)),
        *(
            changed(INT, scale=rule(**{field: value}))
            for field, value in {
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
            }.items()
        ),
        changed(INT, scale=rule(second_level=TwoLevel(divisor=2688.0), scale_floor=2.0**-6)),
        changed(INT, scale=rule(second_level=TwoLevel(divisor=448.0), scale_floor=2.0**-6)),
        changed(INT, scale=rule(encode_with=EncodeScale.COMPUTED, second_level=DoubleQuantization(scheme=INNER))),
        changed(
            INT,
            scale=rule(
                encode_with=EncodeScale.COMPUTED,
                second_level=DoubleQuantization(scheme=changed(INNER, granularity=FlatBlocks(size=64))),
            ),
        ),
    ]
    assert len({scheme.arithmetic_digest for scheme in variants}) == len(variants)


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

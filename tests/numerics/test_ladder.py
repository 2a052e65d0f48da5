"""The definition of rounding on cases that can be checked by hand, and its shape over all bf16 numbers."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.format import E2M1, E4M3, E5M2, INT4, CodebookFormat, FloatFormat, Midpoints
from quantaudit.core.scheme import CodeRange, Overflow, Tie
from quantaudit.numerics.codebooks import BNB_FP4, NF4
from quantaudit.numerics.ladder import ElementRule, round_to_code
from tests.numerics.bits import all_bf16
from tests.numerics.rules import ALL_RULES, rule_id

TIES = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]


@pytest.mark.parametrize(
    ("tie", "expected"),
    [
        (Tie.EVEN, [6, 0, 1, 1, 2, 2, 4, 4]),
        (Tie.AWAY, [6, 0.5, 1, 1.5, 2, 3, 4, 6]),
        (Tie.ZERO, [6, 0, 0.5, 1, 1.5, 2, 3, 4]),
        (Tie.UP, [6, 0.5, 1, 1.5, 2, 3, 4, 6]),
        (Tie.LOWER, [6, 0, 0.5, 1, 1.5, 2, 3, 4]),
    ],
)
def test_the_ties_of_fp4_go_where_the_rule_says(tie: Tie, expected: list[float]) -> None:
    rule = ElementRule(E2M1, tie)
    assert [E2M1.value_of(round_to_code(t, rule)) for t in TIES] == expected
    mirrored = {Tie.UP: Tie.LOWER, Tie.LOWER: Tie.UP}.get(tie, tie)
    negative = [E2M1.value_of(round_to_code(-t, ElementRule(E2M1, mirrored))) for t in TIES]
    assert [-v for v in negative] == expected


def test_integer_ties_look_at_the_signed_value() -> None:
    codes = CodeRange(low=-8, high=7)
    halves = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    expected = {
        Tie.EVEN: [-2, -2, 0, 0, 2, 2],
        Tie.AWAY: [-3, -2, -1, 1, 2, 3],
        Tie.ZERO: [-2, -1, 0, 0, 1, 2],
        Tie.UP: [-2, -1, 0, 1, 2, 3],
        Tie.LOWER: [-3, -2, -1, 0, 1, 2],
        Tie.BIASED_UP: [-2, -1, 0, 1, 2, 3],
    }
    for tie, want in expected.items():
        assert [round_to_code(h, ElementRule(INT4, tie, codes)) for h in halves] == want


def test_a_biased_sum_takes_what_is_just_below_a_tie_with_it() -> None:
    rule = ElementRule(INT4, Tie.BIASED_UP, CodeRange(low=-8, high=7))
    # y + 8.5 lies in [8, 16), where fp32 steps by 2^-20: within half a step below 1.5 the sum is 10.
    assert round_to_code(1.5 - 2.0**-22, rule) == 2
    assert round_to_code(1.5 - 2.0**-20, rule) == 1
    assert round_to_code(1.5 - 2.0**-22, rule._replace(tie=Tie.UP)) == 1


def test_numbers_beyond_the_largest_saturate_or_become_special() -> None:
    # 464 lies halfway between 448 and 480, the first number that E4M3 does not have; 448 has the even code.
    for value, saturated, special in (
        (448.0, 0x7E, 0x7E),
        (464.0, 0x7E, 0x7E),
        (464.001, 0x7E, 0x7F),
        (1e9, 0x7E, 0x7F),
    ):
        assert round_to_code(value, ElementRule(E4M3, Tie.EVEN)) == saturated
        assert round_to_code(-value, ElementRule(E4M3, Tie.EVEN, overflow=Overflow.SPECIAL)) == special | 0x80
    assert round_to_code(61440.0, ElementRule(E5M2, Tie.EVEN, overflow=Overflow.SPECIAL)) == 0x7C
    assert round_to_code(math.inf, ElementRule(E2M1, Tie.EVEN, overflow=Overflow.SPECIAL)) == 7


def test_signs_of_zero_survive_in_float_formats_only() -> None:
    assert round_to_code(-0.0, ElementRule(E2M1, Tie.EVEN)) == 8
    assert round_to_code(-1e-30, ElementRule(E2M1, Tie.EVEN)) == 8
    assert round_to_code(-0.0, ElementRule(NF4, Tie.LOWER)) == 7
    assert round_to_code(-0.3, ElementRule(INT4, Tie.EVEN, CodeRange(low=-8, high=7))) == 0


def test_nan_has_the_nan_code_or_the_code_of_zero() -> None:
    assert round_to_code(math.nan, ElementRule(E4M3, Tie.EVEN)) == 0x7F
    assert round_to_code(math.nan, ElementRule(E2M1, Tie.EVEN)) == 0
    assert round_to_code(math.nan, ElementRule(NF4, Tie.LOWER)) == 7


def test_equal_values_of_a_codebook_share_the_line_at_themselves() -> None:
    rule = ElementRule(BNB_FP4, Tie.LOWER)
    assert BNB_FP4.table[8] == BNB_FP4.table[0] == 0
    assert [round_to_code(v, rule) for v in (-1e-40, 0.0, 1e-40)] == [0, 0, 8]


def test_midpoints_may_be_rounded_to_fp32() -> None:
    table = (0.0, 1.0, 1.0 + 2.0**-23, 2.0)
    middle = 1.0 + 2.0**-24  # not an fp32 number; rounded, it is 1
    for midpoints, code in ((Midpoints.EXACT, 1), (Midpoints.FLOAT32, 2)):
        rule = ElementRule(CodebookFormat(name="close", bits=2, table=table, midpoints=midpoints), Tie.LOWER)
        assert round_to_code(middle, rule) == code


@pytest.mark.parametrize("rule", ALL_RULES, ids=rule_id)
def test_decoded_codes_never_fall_as_the_ratio_rises(rule: ElementRule) -> None:
    finite = all_bf16().float()
    ordered = finite[finite.isfinite()].sort().values[::7].tolist()
    values = [rule.element.value_of(round_to_code(v, rule)) for v in ordered]
    ranks = [math.copysign(math.inf, r) if math.isnan(v) else v for r, v in zip(ordered, values, strict=True)]
    assert all(a <= b for a, b in zip(ranks, ranks[1:], strict=False))


@pytest.mark.parametrize(("element", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_torch_casts_finite_numbers_in_range_alike(element: FloatFormat, dtype: torch.dtype) -> None:
    x = all_bf16()
    x = x[x.float().abs() <= element.max]
    theirs = x.to(dtype).view(torch.uint8).tolist()
    assert theirs == [round_to_code(v, ElementRule(element, Tie.EVEN)) for v in x.float().tolist()]

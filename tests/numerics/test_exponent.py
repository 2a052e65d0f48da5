"""Power-of-two scales: bits of tensors against exact comparison, over every bf16 absmax and every fp32 binade."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.scheme import ExponentRounding, ExponentScale
from quantaudit.numerics import scalar_scales
from quantaudit.numerics.bits import decode_e8m0, inverse_e8m0, power_of_two, split
from quantaudit.numerics.exponent import ExponentBump, choose_exponent, exponent_bump
from tests.numerics.bits import all_bf16

DIVISORS = {6.0: 1, 7.5: 3, 28.0: 2, 448.0: 3, 57344.0: 2}


def make_rule(rounding: ExponentRounding, divisor: float) -> ExponentScale:
    """Returns a rule; EVEN keeps the fraction bits of the element format whose largest value is the divisor."""
    kept = DIVISORS[divisor] if rounding is ExponentRounding.EVEN else None
    return ExponentScale(rounding=rounding, divisor=divisor, kept_mantissa_bits=kept)


RULES = [make_rule(rounding, divisor) for divisor in DIVISORS for rounding in ExponentRounding]


@pytest.mark.parametrize("rule", RULES[:5], ids=lambda r: f"{r.rounding}-{r.divisor:g}")
def test_every_bf16_absmax_gets_the_exponent_of_the_scalar_reference(rule: ExponentScale) -> None:
    absmax = all_bf16()
    absmax = absmax[(absmax.view(torch.int16) >= 0) & absmax.float().isfinite()]
    assert len(absmax) == 32_640
    expected = [scalar_scales.choose_exponent(v, rule) for v in absmax.float().tolist()]
    assert choose_exponent(absmax, rule).tolist() == expected


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.rounding}-{r.divisor:g}")
def test_the_exponent_changes_at_the_threshold_of_every_binade(rule: ExponentScale) -> None:
    threshold = exponent_bump(rule).threshold
    fractions = {min(max(f, 0), (1 << 23) - 1) for t in (threshold, 0, 1 << 23) for f in (t - 1, t, t + 1)}
    fields = torch.arange(255, dtype=torch.int32).unsqueeze(1) << 23
    absmax = (fields + torch.tensor(sorted(fractions), dtype=torch.int32)).view(torch.float32).flatten()
    expected = [scalar_scales.choose_exponent(v, rule) for v in absmax.tolist()]
    assert choose_exponent(absmax, rule).tolist() == expected


def test_thresholds_are_the_significands_of_the_rules() -> None:
    def fraction(significand: float) -> int:
        return math.ceil((significand - 1) * 2**23)

    def bump(rounding: ExponentRounding, divisor: float = 6.0) -> ExponentBump:
        return exponent_bump(make_rule(rounding, divisor))

    assert bump(ExponentRounding.FLOOR) == (-2, 1 << 23)
    assert bump(ExponentRounding.CEIL) == (-2, 1)
    assert bump(ExponentRounding.EVEN) == (-2, fraction(1.75))
    assert bump(ExponentRounding.EVEN, 448.0) == (-8, fraction(1.9375))
    assert bump(ExponentRounding.RCEIL) == (-2, fraction(1.5) + 1)
    assert bump(ExponentRounding.RCEIL, 448.0) == (-8, fraction(1.75) + 1)
    # nearest: 1.5 sqrt(2) > 2, so below 1.5 / sqrt(2) one less
    assert bump(ExponentRounding.NEAREST) == (-3, fraction(1.5 / math.sqrt(2)))


@pytest.mark.parametrize(
    ("absmax", "floor", "even", "rceil", "ceil"),
    [
        (1.0, 125, 125, 125, 125),
        (math.nextafter(8.0, 0.0) * (1 - 2.0**-24), 127, 128, 128, 128),  # 8 less an ulp: float32 log2 says 3.0
        (6.0, 127, 127, 127, 128),
        (6.0 * (1 + 2.0**-23), 127, 127, 128, 128),
        (7.0, 127, 128, 128, 128),
        (2.0**-126, 0, 0, 0, 0),
        (2.0**-149, 0, 0, 0, 0),
        (0.0, 0, 0, 0, 0),
        (torch.finfo(torch.float32).max, 252, 253, 253, 253),
        (math.nan, 255, 255, 255, 255),
    ],
)
def test_known_absmax_values_get_known_scale_bytes(absmax: float, floor: int, even: int, rceil: int, ceil: int) -> None:
    value = torch.tensor([absmax], dtype=torch.float32)
    names = ExponentRounding
    for rounding, code in ((names.FLOOR, floor), (names.EVEN, even), (names.RCEIL, rceil), (names.CEIL, ceil)):
        assert choose_exponent(value, make_rule(rounding, 6.0)).item() == code


def test_floors_and_the_code_of_zero_are_obeyed() -> None:
    rule = ExponentScale(rounding=ExponentRounding.FLOOR, divisor=6.0, amax_floor=1.0, zero_code=127)
    assert choose_exponent(torch.tensor([0.0, 0.5, 4.0]), rule).tolist() == [125, 125, 127]
    rule = ExponentScale(rounding=ExponentRounding.FLOOR, divisor=6.0, zero_code=127)
    assert choose_exponent(torch.tensor([0.0, 2.0**-149]), rule).tolist() == [127, 0]


def test_no_rule_reaches_a_scale_without_a_normal_inverse() -> None:
    largest = torch.tensor([torch.finfo(torch.float32).max])
    assert all(choose_exponent(largest, rule).item() <= 253 for rule in RULES)


def test_scales_and_inverses_are_exact_powers_of_two() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = decode_e8m0(codes).double()
    assert torch.equal(values[:255], torch.exp2(torch.arange(255, dtype=torch.float64) - 127))
    assert values[255].isnan()
    assert torch.equal(inverse_e8m0(codes)[:254].double() * values[:254], torch.ones(254, dtype=torch.float64))


def test_numbers_are_split_into_exponent_and_fraction() -> None:
    magnitude = all_bf16().float().abs()
    magnitude = magnitude[magnitude.isfinite() & (magnitude > 0)]
    parts = split(magnitude)
    rebuilt = (1 + parts.fraction.double() / 2**23) * torch.exp2(parts.exponent.double())
    assert torch.equal(rebuilt, magnitude.double())
    assert torch.equal(
        power_of_two(torch.tensor([-126, 0, 127], dtype=torch.int32)), torch.tensor([2.0**-126, 1.0, 2.0**127])
    )

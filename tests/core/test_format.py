"""Every code of every format of 8 bits or fewer, and of the 16-bit ones, against the standards and against torch."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    INT2,
    INT3,
    INT4,
    INT8,
    CodebookFormat,
    FloatFormat,
    IntegerFormat,
    code_values,
)

TORCH_TWINS = [
    (E4M3, torch.float8_e4m3fn, torch.uint8),
    (E5M2, torch.float8_e5m2, torch.uint8),
    (E8M0, torch.float8_e8m0fnu, torch.uint8),
    (FP16, torch.float16, torch.int16),
    (BF16, torch.bfloat16, torch.int16),
]


@pytest.mark.parametrize(("fmt", "dtype", "container"), TORCH_TWINS, ids=lambda v: getattr(v, "name", ""))
def test_every_code_has_the_value_that_torch_gives_it(
    fmt: FloatFormat, dtype: torch.dtype, container: torch.dtype
) -> None:
    codes = torch.arange(1 << fmt.bits, dtype=torch.int32).to(container)
    theirs = codes.view(dtype).to(torch.float64)
    ours = torch.tensor(code_values(fmt), dtype=torch.float64)
    assert torch.equal(theirs.isnan(), ours.isnan())
    finite = ~ours.isnan()
    assert torch.equal(theirs[finite].view(torch.int64), ours[finite].view(torch.int64))


def test_e2m1_is_the_table_of_the_standard() -> None:
    # OCP MX v1.0, table 5 (FP4): the eight magnitudes, sign in bit 3.
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert list(code_values(E2M1)) == magnitudes + [-m for m in magnitudes]
    assert math.copysign(1.0, E2M1.value_of(8)) == -1.0


def test_six_bit_formats_count_up_in_their_steps() -> None:
    # OCP MX v1.0, tables 3 and 4 (FP6): e2m3 has step 1/8 up to 2, then 1/4, then 1/2; e3m2 starts at 1/16.
    eighths = [k / 8 for k in range(16)] + [2 + k / 4 for k in range(8)] + [4 + k / 2 for k in range(8)]
    assert list(code_values(E2M3)[:32]) == eighths
    e3m2 = [k / 16 for k in range(4)] + [2.0**e * (1 + k / 4) for e in range(-2, 5) for k in range(4)]
    assert list(code_values(E3M2)[:32]) == e3m2
    for fmt in (E2M3, E3M2):
        assert [-v for v in code_values(fmt)[:32]] == list(code_values(fmt)[32:])


def test_derived_numbers_are_those_of_the_standards() -> None:
    # OCP MX v1.0, tables 2 to 7; OCP OFP8 v1.0, table 1; IEEE 754-2019, table 3.5.
    expected = {
        # format: (bits, max, floor(log2 max), smallest normal, smallest positive)
        E2M1: (4, 6.0, 2, 1.0, 0.5),
        E2M3: (6, 7.5, 2, 1.0, 0.125),
        E3M2: (6, 28.0, 4, 0.25, 0.0625),
        E4M3: (8, 448.0, 8, 2.0**-6, 2.0**-9),
        E5M2: (8, 57344.0, 15, 2.0**-14, 2.0**-16),
        E8M0: (8, 2.0**127, 127, 2.0**-127, 2.0**-127),
        FP16: (16, 65504.0, 15, 2.0**-14, 2.0**-24),
        BF16: (16, (2 - 2.0**-7) * 2.0**127, 127, 2.0**-126, 2.0**-133),
        FP32: (32, (2 - 2.0**-23) * 2.0**127, 127, 2.0**-126, 2.0**-149),
    }
    for fmt, row in expected.items():
        assert (fmt.bits, fmt.max, fmt.max_exponent, fmt.smallest_normal, fmt.smallest_positive) == row


def test_special_codes_are_where_the_standards_put_them() -> None:
    assert (E4M3.nan_code, E4M3.inf_code) == (0x7F, None)
    assert (E5M2.nan_code, E5M2.inf_code) == (0x7E, 0x7C)
    assert (E8M0.nan_code, E8M0.inf_code, E8M0.sign_code) == (0xFF, None, 0)
    assert (E2M1.nan_code, E2M1.inf_code) == (None, None)
    assert math.isnan(E5M2.value_of(0x7D)) and math.isnan(E5M2.value_of(0xFF))
    assert E5M2.value_of(0xFC) == -math.inf


@pytest.mark.parametrize("fmt", [INT2, INT3, INT4, INT8], ids=lambda f: f.name)
def test_integers_are_twos_complement(fmt: IntegerFormat) -> None:
    assert (fmt.min_code, fmt.max_code) == (-(2 ** (fmt.bits - 1)), 2 ** (fmt.bits - 1) - 1)
    assert [fmt.value_of(c) for c in (fmt.min_code, 0, fmt.max_code)] == [fmt.min_code, 0.0, fmt.max]


def test_a_codebook_lists_one_finite_value_a_code() -> None:
    with pytest.raises(ValueError, match="4 finite values"):
        CodebookFormat(name="short", bits=2, table=(0.0, 1.0, 2.0))
    with pytest.raises(ValueError, match="4 finite values"):
        CodebookFormat(name="infinite", bits=2, table=(0.0, 1.0, 2.0, math.inf))


def test_the_zero_of_a_codebook_is_the_smaller_of_two_nearest_codes() -> None:
    assert CodebookFormat(name="two zeros", bits=2, table=(1.0, 0.0, -1.0, 0.0)).zero_code == 1


def test_formats_are_equal_and_hash_by_value() -> None:
    again = FloatFormat(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1)
    assert again == E2M1 and hash(again) == hash(E2M1)
    assert FloatFormat.from_json(E2M1.to_json()) == E2M1

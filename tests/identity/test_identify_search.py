"""The search names the scheme that made a matrix, on and off the catalogue, from one telling group if need be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.format import BF16
from quantaudit.core.scheme import (
    Arithmetic,
    Division,
    EncodeScale,
    LinearScale,
    PerGroup,
    Scheme,
    Tie,
)
from quantaudit.identity.search import Found, is_related, search
from quantaudit.identity.search_sample import Served, global_ratio, served_codes, served_values
from quantaudit.numerics import dequantize, get_scheme, quantize


def hard_master(dtype: torch.dtype, rows: int = 96, cols: int = 256) -> Tensor:
    """Gaussian rows of many scales, a zero group, a tiny one, and values that are quantized already."""
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(rows, cols, generator=generator) * torch.randn(rows, 1, generator=generator).exp()
    master[1, :128] = 0
    master[2, :128] *= 1e-5
    master[3] = dequantize(quantize(master[3:4], get_scheme("mxfp4-floor")))[0]
    return master.to(dtype)


def names_it(found: Found | None, scheme: Scheme) -> bool:
    """Whether the scheme was named, or is among those that the matrix does not tell apart."""
    assert found is not None and found.is_exact
    return found.scheme.arithmetic_digest == scheme.arithmetic_digest or scheme.name in {
        one.scheme for one in found.alternatives
    }


ON_THE_CATALOGUE = [
    *(f"mxfp4-{rule}{tie}" for rule in ("floor", "even", "rceil", "ceil") for tie in ("", "-away", "-zero")),
    *("mxfp8-e4m3-even", "nvfp4", "int4-g32-div7", "int4-g32-div7.5", "int4-g128-div8-narrow", "int8-channel"),
    *("fp8-channel", "fp8-block128", "fp8-block128-ue8m0", "gguf-q4_0"),
]


@pytest.mark.parametrize("name", ON_THE_CATALOGUE)
def test_codes_name_the_scheme(name: str) -> None:
    master, scheme = hard_master(torch.bfloat16), get_scheme(name)
    found = search(master, served_codes(quantize(master, scheme)))
    assert names_it(found, scheme)
    assert found is not None and found.misses == (0, 0, 0)


@pytest.mark.parametrize("name", ["mxfp4-even", "mxfp4-rceil-zero", "int4-g32-div7.5", "fp8-block128"])
def test_fake_quantized_numbers_name_the_scheme(name: str) -> None:
    master, scheme = hard_master(torch.bfloat16), get_scheme(name)
    assert names_it(search(master, served_values(dequantize(quantize(master, scheme)))), scheme)


def linear(**changes: object) -> Scheme:
    """INT4 in groups of 32 with changes to its scale rule."""
    base = get_scheme("int4-g32-div7")
    return base.model_copy(update={"scale": LinearScale(divisor=7.0).model_copy(update=changes)})


OFF_THE_CATALOGUE = {
    "ties up": get_scheme("mxfp4-floor").model_copy(update={"tie": Tie.UP}),
    "a group of 64": get_scheme("int4-g32-div7").model_copy(update={"granularity": PerGroup(size=64)}),
    "bf16 scales, by reciprocal": linear(format=BF16, division=Division.RECIPROCAL),
    "encoded with the scale before rounding": linear(format=BF16, encode_with=EncodeScale.COMPUTED),
    "all in bf16": linear(arithmetic=Arithmetic.INPUT, format=BF16).model_copy(
        update={"arithmetic": Arithmetic.INPUT, "division": Division.RECIPROCAL}
    ),
    "a floor": linear(amax_floor=1e-4),
}


@pytest.mark.parametrize("what", OFF_THE_CATALOGUE)
def test_rules_without_a_name_are_found_exactly(what: str) -> None:
    master, scheme = hard_master(torch.bfloat16), OFF_THE_CATALOGUE[what]
    served = served_codes(quantize(master, scheme))
    found = search(master, served)
    assert found is not None and found.misses == (0, 0, 0)
    again = quantize(master, found.scheme)
    assert torch.equal(again.codes, quantize(master, scheme).codes)
    assert torch.equal(again.scales, quantize(master, scheme).scales)


def test_one_tie_outside_every_sample_names_the_tie_rule() -> None:
    generator = torch.Generator().manual_seed(5)
    master = torch.randn(512, 1024, generator=generator) + 0.1  # fp32: no ties by chance
    served = quantize(master, get_scheme("mxfp4-even"))
    even = search(master, served_codes(served))
    assert even is not None and "mxfp4-even-away" in {one.scheme for one in even.alternatives}
    # A group like any other, so no sample looks for it: 2.5 quarters lie between codes 4 (2) and 5 (3).
    master[301, 32:64] = torch.tensor([6.0, 2.5] + [1.0] * 30) / 4
    away = search(master, served_codes(quantize(master, get_scheme("mxfp4-even-away"))))
    assert away is not None and away.is_exact
    assert away.scheme.name == "mxfp4-even-away"
    assert "mxfp4-even" not in {one.scheme for one in away.alternatives}


def test_what_no_rule_gives_is_counted() -> None:
    master = hard_master(torch.bfloat16)
    quantized = quantize(master, get_scheme("mxfp4-even"))
    quantized.codes[7, 3] ^= 1
    found = search(master, served_codes(quantized))
    assert found is not None and not found.is_exact
    assert found.scheme.name == "mxfp4-even" and found.misses == (1, 0, 1)


def test_other_codes_of_equal_values_are_no_misses_of_value() -> None:
    master = hard_master(torch.bfloat16)
    quantized = quantize(master, get_scheme("mxfp4-floor"))
    num_negative_zeros = int(quantized.codes.eq(8).sum())
    quantized.codes[quantized.codes == 8] = 0
    found = search(master, served_codes(quantized))
    assert found is not None and found.is_exact and found.scheme.name == "mxfp4-floor"
    assert found.misses == (0, 0, num_negative_zeros) and num_negative_zeros > 0


@pytest.mark.parametrize("name", ["mxfp4-ceil", "int2-g32", "nvfp4", "fp8-tensor"])
def test_a_quantization_is_related_to_its_master_and_to_no_other(name: str) -> None:
    master = hard_master(torch.bfloat16)
    served = served_codes(quantize(master, get_scheme(name)))
    assert is_related(master, served)
    assert not is_related(master.flip(0), served)


def with_global(name: str, factor: float, *, slack: float) -> Served:
    """What NVFP4 serves of the hard master, its global scale times a factor."""
    served = served_codes(quantize(hard_master(torch.bfloat16), get_scheme(name)))
    assert served.global_scale is not None
    return replace(served, global_scale=served.global_scale * factor, slack=slack)


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.25, 1 + 2**-9])
@pytest.mark.parametrize("slack", [0.0, 2**-21])
def test_another_global_scale_gives_no_value(factor: float, slack: float) -> None:
    master, served = hard_master(torch.bfloat16), with_global("nvfp4", factor, slack=slack)
    found = search(master, served)
    assert found is not None and not found.is_exact
    # A code of zero is zero under any scale, and nothing else is equal.
    assert served.codes_RC is not None and served.scales_TT is not None
    zero_scales = served.scales_TT.repeat_interleave(16, dim=1) == 0
    num_zeros = int(((served.codes_RC & 7 == 0) | zero_scales).sum())
    assert found.misses == (master.numel() - num_zeros, 1, 0)
    assert global_ratio(master, served, found.scheme) == pytest.approx(factor, rel=2**-23)


def test_a_rounded_divisor_is_the_same_global_scale_and_a_rounded_multiplier_is_not() -> None:
    master = hard_master(torch.bfloat16)
    by_divisor, by_multiplier = (with_global("nvfp4", 1 + 2**-22, slack=slack) for slack in (2**-21, 0.0))
    divided, multiplied = search(master, by_divisor), search(master, by_multiplier)
    assert divided is not None and divided.misses == (0, 0, 0)
    assert multiplied is not None and not multiplied.is_exact


def test_scales_that_undo_another_global_scale_are_another_encoding() -> None:
    master, served = hard_master(torch.bfloat16), with_global("nvfp4", 0.5, slack=0.0)
    assert served.scales_TT is not None
    served = replace(served, scales_TT=served.scales_TT * 2)
    found = search(master, served)
    assert found is not None and found.is_exact and found.misses.scales > 0

"""The restated rules: twins in numpy, every sentence about where they depart, and figures measured elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.backends import Origin, load_backend
from quantaudit.backends.conventions import BACKEND
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import PerGroup
from quantaudit.numerics import get_scheme
from tests.backends.parting import DTYPES, agrees, assert_clear, every_matrix, part, rows_of, weights
from tests.numerics.structured import COLUMNS

OFFERS = BACKEND.schemes()
SAME = (
    *("ocp-mxfp4", "triton-mxfp4-up", "triton-mxfp4-down", "triton-old-mxfp4-up", "triton-old-mxfp4-down"),
    *("quark-mxfp4-even", *(f"skyrl-int4-g{size}-div{divisor}" for size in (32, 128) for divisor in ("7", "7.5"))),
)
CAST = "transformers-mxfp4"
LOGARITHMIC = ("microxcaling-mxfp4-nearest", "microxcaling-mxfp4-even", "autoround-mxfp4")
INT4 = tuple(name for name in OFFERS if "int4" in name)
FP8 = tuple(name for name in OFFERS if "fp8" in name)
F32 = np.float32
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def like(name: str) -> str:
    return OFFERS[name].catalogue


def to_bf16(x: Array) -> Array:
    """Rounds to bf16 by the bits: half an ulp added, ties to even."""
    bits = np.ascontiguousarray(x, dtype=F32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(F32)


def same(x: Array) -> Array:
    return x


def int4_twin(name: str, groups: Array, *, is_bf16: bool) -> tuple[Array, Array]:
    """Returns codes and stored scales of groups [G, N], in plain numpy."""
    store = to_bf16 if is_bf16 else same
    absmax = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        if name.startswith("slime"):
            seven = F32(1) / F32(7)
            scale = np.maximum(absmax / F32(7) if name.endswith("train") else absmax * seven, F32(1e-5))
            return np.rint(groups / scale).clip(-7, 7), scale if name.endswith("train") else store(scale)
        low, divisor = (-7, F32(7)) if name.endswith("div7") else (-8, F32(7.5))
        scale = store(absmax / divisor)
        ratio = np.where(scale == 0, F32(0), store(groups / scale))
    return np.rint(ratio).clip(low, 7), scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", INT4)
def test_int4_rules_equal_their_twins_in_numpy(name: str, dtype: torch.dtype) -> None:
    granularity = get_scheme(like(name)).granularity
    assert isinstance(granularity, PerGroup)
    for x in every_matrix(dtype):
        groups = x.float().reshape(-1, granularity.size)
        finite = groups.isfinite().all(-1)
        codes, scales = int4_twin(name, groups[finite].numpy(), is_bf16=dtype == torch.bfloat16)
        stored = BACKEND.quantize(x, name)
        assert np.array_equal(stored.codes.reshape(groups.shape)[finite].numpy(), codes)
        assert np.array_equal(stored.scales.flatten()[finite].numpy(), scales.flatten())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SAME)
def test_rules_without_departures_are_their_catalogue_scheme(name: str, dtype: torch.dtype) -> None:
    assert OFFERS[name].departs == ()
    assert_clear(BACKEND, name, get_scheme(like(name)), dtype)


def test_a_cast_comes_before_the_quantizer_and_changes_fp32_weights_alone() -> None:
    x = weights(400)
    cast = BACKEND.quantize(x, CAST)
    first = BACKEND.quantize(x.bfloat16(), "triton-mxfp4-up")
    assert torch.equal(cast.codes, first.codes) and torch.equal(cast.scales, first.scales)
    assert cast.dtype == torch.float32 == BACKEND.dequantize(cast).dtype
    p = part(BACKEND, CAST, x, get_scheme(like(CAST)))
    assert p.scales_G.any() and p.values_GN.any()
    assert_clear(BACKEND, CAST, get_scheme(like(CAST)), torch.bfloat16)


def test_the_cast_parts_from_fp32_as_measured() -> None:
    p = part(BACKEND, CAST, weights(4000), get_scheme(like(CAST)))
    assert agrees(p.scales_G.unsqueeze(1), 0.00384, 1e-5, num_stated=32_000)
    assert agrees(p.values_GN, 0.00685, 1e-5)


def logarithm_errs(absmax: Tensor) -> Tensor:
    """Groups whose float32 logarithm is beyond the exponent that float64 finds."""
    positive = torch.where(absmax > 0, absmax, 1.0)
    return positive.log2().floor().double() != positive.double().log2().floor()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOGARITHMIC)
def test_rules_by_logarithm_depart_where_they_say(name: str, dtype: torch.dtype) -> None:
    below_quarter = torch.tensor(0.25).nextafter(torch.tensor(0.0)).item()
    for x in every_matrix(dtype):
        p = part(BACKEND, name, x, get_scheme(like(name)))
        scale = torch.exp2(p.absmax_G.nan_to_num(posinf=1.0).double().clamp(min=2.0**-125).log2().floor() - 2)
        is_below = ((p.groups_GN.abs().double() / scale.unsqueeze(-1)) == below_quarter).any(-1)
        special = logarithm_errs(p.absmax_G) | is_below
        is_stored_126 = (p.absmax_G == 0) & (name == "autoround-mxfp4")
        assert not (p.scales_G & ~special & ~is_stored_126).any()
        assert not (p.values_GN.any(-1) & ~special).any()
        is_lost_sign = (p.their_values_GN == 0) & p.groups_GN.signbit()
        assert not (p.codes_GN & ~is_lost_sign & ~special.unsqueeze(-1)).any()


@pytest.mark.parametrize("name", LOGARITHMIC)
def test_logarithm_takes_the_next_exponent_just_below_a_power_of_two(name: str) -> None:
    below_eight = torch.tensor(8.0).nextafter(torch.tensor(0.0)).item()
    x = rows_of(32, [below_eight, 1.0], [8.0, 1.0], [7.999, 1.0])
    assert BACKEND.quantize(x, name).scales.flatten().tolist() == [128, 128, 127]


@pytest.mark.parametrize("name", LOGARITHMIC)
def test_one_half_is_added_in_fp32(name: str) -> None:
    below = torch.tensor(0.25).nextafter(torch.tensor(0.0)).item()
    values = BACKEND.dequantize(BACKEND.quantize(rows_of(32, [4.0, below, below - 2.0**-25]), name))
    assert values[0, :3].tolist() == [4.0, 0.5, 0.0]


@pytest.mark.parametrize("name", LOGARITHMIC)
def test_the_sign_of_a_zero_is_lost(name: str) -> None:
    codes = BACKEND.quantize(rows_of(32, [4.0, -0.0, -0.1]), name).codes
    assert codes[0, :3].tolist() == [6, 0, 8]


def test_blocks_of_zeros_are_stored_as_126_by_one_of_them() -> None:
    stored = {name: int(BACKEND.quantize(torch.zeros(1, 32), name).scales) for name in LOGARITHMIC}
    assert stored == {name: 126 if name == "autoround-mxfp4" else 0 for name in LOGARITHMIC}


def nowhere(absmax: Tensor) -> Tensor:
    return torch.zeros_like(absmax, dtype=torch.bool)


FP8_SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "deepseek-v3-fp8-block128": lambda absmax: absmax == 0,
    "slime-fp8-block128": lambda absmax: absmax < 1e-10,
    "deepseek-v4-fp8-block128-ue8m0": lambda absmax: absmax < 1e-4,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FP8_SPECIAL)
def test_fp8_rules_depart_in_blocks_of_small_maxima_only(name: str, dtype: torch.dtype) -> None:
    scheme = get_scheme(like(name))
    assert_clear(BACKEND, name, scheme, dtype, lambda p: FP8_SPECIAL[name](p.absmax_G))
    small = part(BACKEND, name, torch.zeros(128, 128).to(dtype), scheme)
    assert small.anywhere_G.all()


def fp8_blocks(rows: int = 256) -> Tensor:
    """Blocks of Gaussian weights, from 1e-3 to 1e3 in size."""
    sizes = torch.logspace(-3, 3, rows // 128).repeat_interleave(128).unsqueeze(-1)
    return torch.randn(rows, 512) * sizes


def test_the_zero_block_is_nan_in_one_rule() -> None:
    zero = torch.zeros(128, 128)
    is_nan = {name: BACKEND.dequantize(BACKEND.quantize(zero, name)).isnan().all().item() for name in FP8}
    assert is_nan == {name: name == "deepseek-v3-fp8-block128" for name in FP8}


def test_areal_scales_are_rounded_after_the_elements() -> None:
    p = part(BACKEND, "areal-fp8-block128", fp8_blocks(), get_scheme("fp8-block128"))
    assert not p.codes_GN.any() and p.scales_G.float().mean() > 0.9
    exact = (p.absmax_G.numpy() / F32(448)).astype(F32)
    assert np.array_equal(p.their_scales_G.numpy(), to_bf16(exact))
    one = BACKEND.dequantize(BACKEND.quantize(rows_of(128, [1.0]), "areal-fp8-block128"))
    assert one[0, 0] == 0.998046875


def test_deepseek_v4_multiplies_by_the_reciprocal() -> None:
    p = part(BACKEND, "deepseek-v4-fp8-block128", fp8_blocks(2048), get_scheme("fp8-block128"))
    assert np.array_equal(p.their_scales_G.numpy(), p.absmax_G.numpy() * (F32(1) / F32(448)))
    assert p.scales_G.any() and not p.scales_G.all()


def test_the_reciprocal_leaves_the_power_of_two_above_it_alone() -> None:
    # absmax * fp32(1/448) > 2^k exactly where absmax > 448 * 2^k, so rounding up gives one exponent under both.
    bf16 = np.arange(1, 0x7F80, dtype=np.uint32) << 16
    near = (np.arange(-64, 65) + np.array(448.0, dtype=F32).view(np.int32)).astype(np.uint32)
    absmax = np.concatenate((bf16.astype(np.uint32), near)).view(F32)
    absmax = absmax[absmax > 1e-30]
    product = (absmax * (F32(1) / F32(448))).astype(np.float64)
    assert np.array_equal(np.ceil(np.log2(product)), np.ceil(np.log2(absmax.astype(np.float64) / 448)))


def test_late_scales_keep_the_codes_of_fp32_scales() -> None:
    x = fp8_blocks()
    late = BACKEND.quantize(x, "late-fp8-block128-ue8m0")
    early = BACKEND.quantize(x, "deepseek-v3-fp8-block128")
    right = BACKEND.quantize(x, "deepseek-v4-fp8-block128-ue8m0")
    assert torch.equal(late.codes, early.codes)
    assert torch.equal(late.scales, right.scales)
    ratio = BACKEND.dequantize(late) / BACKEND.dequantize(early)
    assert 1.0 < float(ratio.nan_to_num(1.0).max()) <= 2.0


@pytest.mark.parametrize(("name", "floor"), [("slime-int4-g32-train", 7e-5), ("slime-int4-g128-train", 7e-5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_slime_trains_on_the_catalogue_scheme_above_its_floor(name: str, floor: float, dtype: torch.dtype) -> None:
    assert_clear(BACKEND, name, get_scheme(like(name)), dtype, lambda p: p.absmax_G / 7 < 1e-5)
    below = part(BACKEND, name, rows_of(COLUMNS, [5e-5, 3e-5]).to(dtype), get_scheme(like(name)))
    assert below.scales_G[0]


def clustered_interval(is_different_GN: Tensor) -> tuple[float, float]:
    """Returns the mean of groups and the 99 % half-width of its normal interval: values of a group share a scale."""
    mean_G = is_different_GN.double().mean(-1)
    return float(mean_G.mean()), float(2.576 * mean_G.std() / len(mean_G) ** 0.5)


@pytest.mark.parametrize(
    ("other", "values", "half_a_digit", "codes"),
    [
        ("slime-int4-g32-pack", 0.069, 0.0005, 0.0018),
        ("skyrl-int4-g32-div7", 0.071, 0.0005, 0.0051),
        ("skyrl-int4-g32-div7.5", 0.88, 0.005, None),
    ],
)
def test_trainer_and_server_differ_as_measured_on_640_000_bf16_values(
    other: str, values: float, half_a_digit: float, codes: float | None
) -> None:
    x = (torch.randn(2500, 256) * 0.02).bfloat16()
    a, b = BACKEND.quantize(x, "slime-int4-g32-train"), BACKEND.quantize(x, other)
    different = (BACKEND.dequantize(a) != BACKEND.dequantize(b)).reshape(-1, 32)
    found, width = clustered_interval(different)
    assert abs(found - values) < width + half_a_digit  # of the published figure
    if codes is not None:
        found, width = clustered_interval((a.codes != b.codes).reshape(-1, 32))
        assert abs(found - codes) < width + 0.00005


def test_half_of_the_groups_are_touched() -> None:
    x = (torch.randn(2500, 256) * 0.02).bfloat16()
    trained, packed = (BACKEND.quantize(x, f"slime-int4-g32-{side}") for side in ("train", "pack"))
    touched = (BACKEND.dequantize(trained) != BACKEND.dequantize(packed)).reshape(-1, 32).any(-1)
    width = 2.576 * (0.46 * 0.54 / len(touched)) ** 0.5  # 99 % binomial
    assert abs(float(touched.float().mean()) - 0.46) < width + 0.005  # 46 %, given to two digits


def test_two_tie_rules_differ_as_measured() -> None:
    x = weights(4000).bfloat16()
    for name, other, measured in (
        ("triton-old-mxfp4-up", "triton-mxfp4-up", 0.00634),
        ("microxcaling-mxfp4-nearest", "ocp-mxfp4", 0.00692),
    ):
        a, b = (BACKEND.dequantize(BACKEND.quantize(x, which)) for which in (name, other))
        width = 2.576 * (measured / x.numel()) ** 0.5
        assert abs(float((a != b).float().mean()) - measured) < width


def test_every_offer_is_restated_and_says_whose_rule_it_is() -> None:
    assert load_backend("conventions") is BACKEND
    assert BACKEND.origin is Origin.RESTATED
    assert set(OFFERS) == {*SAME, CAST, *LOGARITHMIC, *INT4, *FP8} and len(OFFERS) == 24
    for name, offer in OFFERS.items():
        assert offer.name == name and offer.source and offer.dtypes == tuple(DTYPES)
        stored = BACKEND.quantize(torch.randn(2, 128, 256), name)
        assert stored.scheme == get_scheme(offer.catalogue)
        assert BACKEND.dequantize(stored).shape == (2, 128, 256)


def test_unknown_rules_and_other_dtypes_are_refused() -> None:
    with pytest.raises(InputError, match="slime-int4-g32-train"):
        BACKEND.quantize(torch.randn(2, 32), "slime-int4-g32-trian")
    with pytest.raises(InputError, match="cast it first"):
        BACKEND.quantize(torch.randn(2, 32).half(), "ocp-mxfp4")
    with pytest.raises(InputError, match="reshape it"):
        BACKEND.quantize(torch.randn(32), "ocp-mxfp4")
    with pytest.raises(InputError, match="multiple of 32"):
        BACKEND.quantize(torch.randn(2, 33), "ocp-mxfp4")

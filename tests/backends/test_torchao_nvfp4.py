"""torchao's NVFP4 is the catalogue's, but for zero, tiny, infinite and NaN matrices; and what it is with one level."""

from __future__ import annotations

import math

import pytest
import torch
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.quantization import quantize_

from quantaudit.backends import load_backend
from quantaudit.backends import torchao_departures as d
from quantaudit.backends.torchao_offers import OFFERS
from quantaudit.numerics import dequantize, get_scheme, quantize
from quantaudit.numerics.reference import decode_scales
from tests.backends.comparison import DTYPE_NAMES, DTYPES, compare, grouped, row_of, structured
from tests.numerics.bits import assert_same_bits

TORCHAO = load_backend("torchao")
SCHEME = get_scheme("nvfp4")
NAMES = ["nvfp4", "nvfp4-single-level"]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES)


@each_dtype
def test_two_levels_depart_only_where_the_offer_says(dtype: torch.dtype) -> None:
    compared = 0
    for row in structured(dtype):
        x = row.view(2, 128)
        if not x.isfinite().all():
            continue
        q = quantize(x, SCHEME)
        assert q.second_scales is not None
        has_no_reciprocal = torch.minimum(decode_scales(q).flatten(), q.second_scales) <= 2.0**-128
        assert torch.equal(compare("torchao", "nvfp4", x, SCHEME).codes, has_no_reciprocal)
        assert not compare("torchao", "nvfp4", x, SCHEME).anywhere[~has_no_reciprocal].any()
        compared += int((~has_no_reciprocal).sum())
    assert compared > 75 * 16


@each_dtype
def test_one_level_is_its_scheme(dtype: torch.dtype) -> None:
    x, scheme = structured(dtype), get_scheme("nvfp4-single-level")
    parting = compare("torchao", "nvfp4-single-level", x, scheme)
    assert not parting.anywhere[grouped(x, scheme).isfinite().all(-1)].any()


def test_one_level_is_bounded_by_the_ends_of_its_scale() -> None:
    x = row_of(10_000.0, 1e-3)
    x[0, 16], x[0, 17] = 6 * 2.0**-6, 2.0**-8  # the second block
    values = TORCHAO.dequantize(TORCHAO.quantize(x, "nvfp4-single-level"))
    assert values[0, 0] == 2688 and values[0, 16] == 6 * 2.0**-6
    tiny = row_of(2.0**-8)
    assert not TORCHAO.dequantize(TORCHAO.quantize(tiny, "nvfp4-single-level")).any()
    assert dequantize(quantize(tiny, SCHEME))[0, 0] == 2.0**-8


@each_dtype
def test_a_zero_matrix_becomes_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 32, dtype=dtype)
    q, ours = TORCHAO.quantize(x, "nvfp4"), quantize(x, SCHEME)
    assert (q.scales & 0x7F == 0x7F).all() and TORCHAO.dequantize(q).isnan().all()
    assert not dequantize(ours).any()
    assert not TORCHAO.dequantize(TORCHAO.quantize(x, "nvfp4-single-level")).any()


@each_dtype
def test_a_zero_expert_harms_no_other(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 64).to(dtype)
    x[1] = 0
    whole = TORCHAO.dequantize(TORCHAO.quantize(x, "nvfp4"))
    assert whole[1].isnan().all()
    for expert in (0, 2):
        assert_same_bits(whole[expert], dequantize(quantize(x[expert], SCHEME)))


@each_dtype
def test_a_tiny_matrix_has_no_reciprocal(dtype: torch.dtype) -> None:
    x = row_of(2.0**-117, 2.0**-119, dtype=dtype)  # over 2688 the first is less than 2^-128
    q, ours = TORCHAO.quantize(x, "nvfp4"), quantize(x, SCHEME)
    values = TORCHAO.dequantize(q)
    assert q.codes[0, :2].tolist() == [7, 7] and (q.codes[0, 2:] & 7 != 0).all() and not ours.codes.any()
    assert values[0, 0] == values[0, 1] > 0 and (values[0, 2:] != 0).all()
    large_enough = row_of(2.0**-110, 2.0**-118, dtype=dtype)
    assert not compare("torchao", "nvfp4", large_enough, SCHEME).anywhere.any()


def test_a_zero_block_of_a_small_matrix_is_not_zero() -> None:
    x = row_of(2.0**-112)
    values = TORCHAO.dequantize(TORCHAO.quantize(x, "nvfp4"))
    assert values[0, 0] == 2.0**-112 and not values[0, 1:16].any()
    assert (values[0, 16:] != 0).all() and not dequantize(quantize(x, SCHEME))[0, 16:].any()


@each_dtype
@pytest.mark.parametrize("special", [math.inf, math.nan])
def test_two_levels_with_what_is_not_finite(special: float, dtype: torch.dtype) -> None:
    x = row_of(1.0, special, dtype=dtype)
    q, ours = TORCHAO.quantize(x, "nvfp4"), quantize(x, SCHEME)
    assert q.codes.any() and not ours.codes.any()
    assert (q.scales & 0x7F == 0x7F).all() == math.isnan(special)
    assert TORCHAO.dequantize(q).isnan().all() and dequantize(ours).isnan().all()


@each_dtype
def test_one_level_with_what_is_not_finite(dtype: torch.dtype) -> None:
    values = TORCHAO.dequantize(TORCHAO.quantize(row_of(1.0, math.inf, dtype=dtype), "nvfp4-single-level"))
    assert values[0, 1] == 2688 and not values[0, 2:].any()
    q = TORCHAO.quantize(row_of(1.0, math.nan, dtype=dtype), "nvfp4-single-level")
    values = TORCHAO.dequantize(q)
    assert q.codes[0, :16].any() and values[0, :16].isnan().all() and not values[0, 16:].any()


@each_dtype
def test_one_level_decodes_as_the_library_does(dtype: torch.dtype) -> None:
    x = structured(dtype)
    theirs = NVFP4Tensor.to_nvfp4(x).dequantize()
    assert_same_bits(TORCHAO.dequantize(TORCHAO.quantize(x, "nvfp4-single-level")), theirs)


@each_dtype
def test_the_quantizer_of_the_configuration_is_this_one(dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(256, 64, bias=False, dtype=dtype)
    weight = linear.weight.detach().clone()
    quantize_(linear, NVFP4WeightOnlyConfig())
    stored = linear.weight
    assert isinstance(stored, NVFP4Tensor)
    name = "nvfp4" if stored.per_tensor_scale is not None else "nvfp4-single-level"
    assert_same_bits(TORCHAO.dequantize(TORCHAO.quantize(weight, name)), stored.dequantize())


def test_every_departure_is_tested_here() -> None:
    said = {sentence for name in NAMES for sentence in OFFERS[name].departs}
    tested = {d.ZERO_MATRIX, d.OVERFLOWING_RECIPROCAL, d.NVFP4_INFINITY, d.NAN_CODES, d.SINGLE_INFINITY}
    assert said == tested

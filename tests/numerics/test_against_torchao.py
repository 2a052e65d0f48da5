"""torchao agrees bit for bit: MX on normal blocks in all four modes, NVFP4, and INT4 in the dtype of the weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, nvfp4_quantize, per_tensor_amax_to_scale
from torchao.quantization.quant_primitives import (
    MappingType,
    _choose_scale_float8,
    _dequantize_affine_float8,
    _quantize_affine_float8,
)
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor

from quantaudit.core.scheme import Arithmetic, Division, LinearScale, Scheme
from quantaudit.numerics import dequantize, get_scheme, pack, quantize
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import already_quantized, gaussian, opposite_maxima, saturating, ties

ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6-e2m3": DTYPE_FP6_E2M3,
    "mxfp6-e3m2": DTYPE_FP6_E3M2,
    "mxfp8-e4m3": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
}
MODES = {
    "floor": ScaleCalculationMode.FLOOR,
    "even": ScaleCalculationMode.EVEN,
    "rceil": ScaleCalculationMode.RCEIL,
    "ceil": ScaleCalculationMode.CEIL,
}


def normal_blocks() -> Tensor:
    """Stacks the structured rows whose group maxima are far from both ends of fp32, and more Gaussian ones."""
    rows = [gaussian(), ties(), already_quantized(), opposite_maxima(), saturating()[:3], torch.randn(200, 256)]
    return torch.cat(rows)


def off_the_float_logarithm(x: Tensor, name: str) -> Tensor:
    """Drops rows in which torchao's RCEIL, which takes a float32 log2, is one off: absmax an ulp above 6 * 2^k."""
    if not name.endswith("rceil"):
        return x
    absmax = x.view(len(x), -1, 32).float().abs().amax(-1)
    ratio = absmax.double() / quantize(x, get_scheme(name)).scheme.element.max
    near = (torch.log2(ratio) - torch.log2(ratio).round()).abs()
    return x[((near > 1e-6) | (near == 0)).all(1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("stem", list(ELEMENTS))
def test_to_mx_has_the_same_scales_and_codes(stem: str, mode: str, dtype: torch.dtype) -> None:
    x = off_the_float_logarithm(normal_blocks().to(dtype), f"{stem}-{mode}")
    assert len(x) > 150
    q = quantize(x, get_scheme(f"{stem}-{mode}"))
    scales, data = to_mx(x, ELEMENTS[stem], 32, MODES[mode])
    codes = pack(q.codes, q.scheme.layout)
    assert torch.equal(q.scales, scales.view(torch.uint8))
    assert torch.equal(codes, data.view(torch.uint8).view_as(codes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_nvfp4_has_the_same_scales_codes_and_values(dtype: torch.dtype) -> None:
    x = normal_blocks().to(dtype)
    top = per_tensor_amax_to_scale(x.abs().max())
    q = quantize(x, get_scheme("nvfp4"))
    scales, data = nvfp4_quantize(x, 16, top)
    assert q.second_scales is not None
    assert_same_bits(q.second_scales, top.float().view(1))
    assert torch.equal(q.scales, scales.view(torch.uint8).view_as(q.scales))
    assert torch.equal(pack(q.codes, q.scheme.layout), data.view(torch.uint8).view(len(x), -1))
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=top).dequantize(torch.float32)
    assert_same_bits(dequantize(q, torch.float32), theirs)


BLOCKS = {"fp8-tensor": (256, 384), "fp8-channel": (1, 384), "fp8-block128": (128, 128)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(BLOCKS))
def test_fp8_scales_are_chosen_in_the_dtype_of_the_weight_and_divide_in_fp32(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(256, 384) * torch.linspace(0.01, 3, 256).unsqueeze(1)).to(dtype)
    scale = _choose_scale_float8(x, list(BLOCKS[name]))
    codes = _quantize_affine_float8(x, scale)
    rule = LinearScale(divisor=448.0, arithmetic=Arithmetic.INPUT)
    q = quantize(x, get_scheme(name).model_copy(update={"scale": rule}))
    assert_same_bits(q.scales, scale)
    assert torch.equal(q.codes, codes.view(torch.uint8))
    assert_same_bits(dequantize(q, torch.float32), _dequantize_affine_float8(codes, scale))
    if dtype == torch.float32:
        assert torch.equal(quantize(x, get_scheme(name)).codes, q.codes)


def torchao_int4() -> Scheme:
    """Returns torchao's symmetric int4: absmax / 7.5 and a reciprocal multiply, all in the dtype of the weight."""
    scheme = get_scheme("int4-g32-div7.5")
    scale = LinearScale(divisor=7.5, arithmetic=Arithmetic.INPUT, scale_floor=torch.finfo(torch.float32).tiny)
    update = {"scale": scale, "division": Division.RECIPROCAL, "arithmetic": Arithmetic.INPUT}
    return scheme.model_copy(update=update)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_intx_weights_are_a_scheme_in_the_dtype_of_the_weight(dtype: torch.dtype) -> None:
    x = normal_blocks().to(dtype)
    int4 = torch.int4  # type: ignore[attr-defined]
    theirs = IntxUnpackedToInt8Tensor.from_hp(x, (1, 32), int4, mapping_type=MappingType.SYMMETRIC)
    q = quantize(x, torchao_int4())
    assert_same_bits(q.scales, theirs.scale.float())
    assert torch.equal(q.codes, theirs.qdata)


def test_dividing_and_multiplying_by_the_reciprocal_part_on_the_largest_weight() -> None:
    x = torch.zeros(1, 32)
    x[0, 0] = -2.6133224964141846
    assert quantize(x, torchao_int4()).codes[0, 0] == -7
    assert quantize(x, get_scheme("int4-g32-div7.5")).codes[0, 0] == -8

"""compressed-tensors agrees bit for bit: MXFP4 (EVEN), MXFP8, NVFP4, INT4 in both dtypes, FP8 blocks, and packing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.format import E4M3
from quantaudit.core.scheme import Arithmetic, ExponentRounding, ExponentScale, Layout, LinearScale
from quantaudit.numerics import dequantize, get_scheme, pack, quantize
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import already_quantized, gaussian, opposite_maxima, ties

pytest.importorskip("compressed_tensors")
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8  # noqa: E402
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs  # noqa: E402
from compressed_tensors.quantization.lifecycle.forward import fake_quantize as their_fake  # noqa: E402
from compressed_tensors.quantization.lifecycle.forward import quantize as their_quantize  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam  # noqa: E402


def weights(dtype: torch.dtype) -> Tensor:
    """Stacks structured rows without special blocks, and more Gaussian ones."""
    return torch.cat([gaussian(), ties(), already_quantized(), opposite_maxima(), torch.randn(118, 256)]).to(dtype)


def grouped(x: Tensor, args: QuantizationArgs, global_scale: Tensor | None = None) -> Tensor:
    """Returns its scales for groups along the last axis."""
    groups = x.view(len(x), -1, args.group_size)
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale)
    assert isinstance(scale, Tensor)
    return scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_mxfp4_is_the_even_rule(dtype: torch.dtype) -> None:
    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    x = weights(dtype)
    q = quantize(x, get_scheme("mxfp4-even"))
    scale = grouped(x, args)
    assert torch.equal(torch.log2(scale.float()) + 127, q.scales.float())
    assert_same_bits(dequantize(q).abs(), their_fake(x, scale, torch.zeros_like(scale), args).abs())
    theirs = pack_fp4_to_uint8(their_quantize(x, scale, torch.zeros_like(scale), args))
    low, high = (theirs & 0xF), (theirs >> 4)
    ours = pack(torch.where(q.codes == 8, 0, q.codes), Layout.LOW_NIBBLE_FIRST)
    assert torch.equal(ours, torch.where(low == 8, 0, low) | torch.where(high == 8, 0, high) << 4)


def test_mxfp8_is_an_even_rule_that_keeps_one_bit() -> None:
    args = QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    x = torch.cat([weights(torch.float32), torch.full((1, 256), 448.0)])
    scale = ExponentScale(rounding=ExponentRounding.EVEN, divisor=E4M3.max, kept_mantissa_bits=1)
    ours = quantize(x, get_scheme("mxfp8-e4m3-even").model_copy(update={"scale": scale})).scales
    theirs = torch.log2(grouped(x, args)) + 127
    assert torch.equal(ours.float(), theirs)
    differs = theirs != quantize(x, get_scheme("mxfp8-e4m3-rceil")).scales
    absmax = x.view(len(x), -1, 32).abs().amax(-1)
    assert torch.equal(differs, torch.log2(absmax / 448) % 1 == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("size", [32, 128])
def test_int4_divides_in_the_dtype_of_the_weight(size: int, dtype: torch.dtype) -> None:
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=size, symmetric=True)
    rule = LinearScale(divisor=7.5, arithmetic=Arithmetic.INPUT, zero_scale=torch.finfo(dtype).eps)
    scheme = get_scheme(f"int4-g{size}-div7.5").model_copy(update={"scale": rule, "arithmetic": Arithmetic.INPUT})
    x = weights(dtype)
    x[0, :128] = 0
    q = quantize(x, scheme)
    scale = grouped(x, args)
    theirs = their_quantize(x, scale, torch.zeros_like(scale), args, dtype=torch.int8)
    assert_same_bits(q.scales, scale.float())
    assert torch.equal(q.codes, theirs)
    assert torch.equal(pack(q.codes, Layout.INT32_WORDS), pack_to_int32(theirs, 4))
    if dtype == torch.float32:
        assert torch.equal(quantize(x, get_scheme(f"int4-g{size}-div7.5")).codes, theirs)


def test_nvfp4_has_the_same_scales_and_codes_in_fp32() -> None:
    args = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn
    )
    x = torch.cat([torch.randn(118, 256), gaussian()[:1]])
    q = quantize(x, get_scheme("nvfp4"))
    top = generate_gparam(x.min(), x.max())
    scale = grouped(x, args, top)
    theirs = their_quantize(x, scale, torch.zeros_like(scale), args, global_scale=top)
    assert torch.equal(q.scales, scale.to(torch.float8_e4m3fn).view(torch.uint8))
    assert torch.equal(pack(q.codes, Layout.LOW_NIBBLE_FIRST), pack_fp4_to_uint8(theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_fp8_blocks_divide_in_the_dtype_of_the_weight(dtype: torch.dtype) -> None:
    args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128], symmetric=True)
    rule = LinearScale(divisor=448.0, arithmetic=Arithmetic.INPUT)
    scheme = get_scheme("fp8-block128").model_copy(update={"scale": rule, "arithmetic": Arithmetic.INPUT})
    x = torch.randn(256, 384).to(dtype)
    blocks = x.view(2, 128, 3, 128)
    scale, _ = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), args)
    theirs = their_quantize(x, scale, torch.zeros_like(scale), args, dtype=torch.float8_e4m3fn)
    q = quantize(x, scheme)
    assert_same_bits(q.scales, scale.float())
    assert torch.equal(q.codes, theirs.view(torch.uint8))

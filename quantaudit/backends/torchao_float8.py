"""torchao's FP8 weights: `Float8Tensor`, one scale a tensor, a row or a 128 x 128 block.

The scale is absmax / 448 in the dtype of the weight, kept in an fp32 container; elements are divided in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchao.quantization.granularity import PerBlock as BlockGranularity
from torchao.quantization.granularity import PerRow, PerTensor
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
from torchao.quantization.quantize_.workflows.float8.float8_tensor import Float8Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import PerBlock, PerChannel, Scheme
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import QuantizedTensor

_ELEMENT = torch.float8_e4m3fn


def quantize_float8(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes with the granularity that the scheme names.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: The scheme.

    Raises:
        InputError: If the blocks do not divide the matrix: torchao has no partial blocks.
    """
    stored = Float8Tensor.from_hp(x, _ELEMENT, granularity(x, scheme), kernel_preference=KernelPreference.TORCH)
    return carry_float8(x, stored.scale, stored.qdata, scheme)


def granularity(x: Tensor, scheme: Scheme) -> PerTensor | PerRow | BlockGranularity:
    """Returns torchao's word for the granularity of a scheme.

    Raises:
        InputError: If it is blocks, and they do not divide the matrix.
    """
    grain = scheme.granularity
    if isinstance(grain, PerBlock):
        if x.shape[-2] % grain.rows or x.shape[-1] % grain.cols:
            raise InputError(
                f"a weight of shape {list(x.shape)} in blocks of {grain.rows} x {grain.cols}",
                expected="rows and columns that the blocks divide: torchao has no partial blocks",
                fix="pad it, or take a row-wise scheme",
            )
        return BlockGranularity([grain.rows, grain.cols])
    return PerRow() if isinstance(grain, PerChannel) else PerTensor()


def carry_float8(x: Tensor, scale: Tensor, data: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Returns what torchao stores, in the catalogue's conventions.

    Args:
        x: [..., R, C], the weight.
        scale: fp32; one number for a whole stack is repeated for each expert.
        data: [..., R, C] float8_e4m3fn.
        scheme: The scheme.
    """
    return QuantizedTensor(
        codes=data.view(torch.uint8),
        scales=scale.expand(plan(tuple(x.shape), scheme.granularity).grid).contiguous(),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def dequantize_float8(q: QuantizedTensor) -> Tensor:
    """Decodes with `Float8Tensor.dequantize`: element * scale in fp32, then one rounding."""
    stored = Float8Tensor(q.codes.view(_ELEMENT), q.scales, dtype=q.dtype)
    values: Tensor = stored.dequantize()
    return values

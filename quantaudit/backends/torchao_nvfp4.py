"""torchao's NVFP4: `NVFP4Tensor.to_nvfp4`, with a scale for each matrix above the block scales, or without one.

Without one the block scales carry everything, so weights below 2^-6 * 6 lose their scale to the clamp at 2^-6.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

from quantaudit.core.scheme import Layout, Scheme
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

_BLOCK = 16


def quantize_two_level(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes with a scale a matrix; in a stack every expert has its own.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous; 16 divides C.
        scheme: The scheme that the result carries.
    """
    top = per_tensor_amax_to_scale(x.abs().amax((-2, -1), keepdim=True))
    return carry_nvfp4(x, NVFP4Tensor.to_nvfp4(x, _BLOCK, per_tensor_scale=_as_library(top)), scheme)


def quantize_single_level(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes without a scale above those of the blocks.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous; 16 divides C.
        scheme: The scheme that the result carries.
    """
    return carry_nvfp4(x, NVFP4Tensor.to_nvfp4(x, _BLOCK), scheme)


def carry_nvfp4(x: Tensor, stored: NVFP4Tensor, scheme: Scheme) -> QuantizedTensor:
    """Returns what torchao stores, in the catalogue's conventions.

    Args:
        x: [..., R, C], the weight.
        stored: Its NVFP4 tensor, scales not swizzled.
        scheme: The scheme.
    """
    top = stored.per_tensor_scale
    return QuantizedTensor(
        codes=unpack(stored.qdata.view(torch.uint8), Layout.LOW_NIBBLE_FIRST),
        scales=stored.scale.view(torch.uint8),
        second_scales=None if top is None else top.reshape(*x.shape[:-2], 1),
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def dequantize_nvfp4(q: QuantizedTensor) -> Tensor:
    """Decodes with `NVFP4Tensor.dequantize`: element * (top * block scale) in fp32, then one rounding."""
    top = None if q.second_scales is None else _as_library(q.second_scales.unsqueeze(-1))
    data = pack(q.codes, Layout.LOW_NIBBLE_FIRST)
    stored = NVFP4Tensor(data, q.scales.view(torch.float8_e4m3fn), _BLOCK, q.dtype, per_tensor_scale=top)
    values: Tensor = stored.dequantize()
    return values


def _as_library(top: Tensor) -> Tensor:
    """Returns scales [..., 1, 1] in the shape that torchao takes: none for a matrix, [E, 1, 1] for a stack."""
    return top.reshape(()) if top.dim() == 2 else top

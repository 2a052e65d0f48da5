"""torchao's integer weights: `IntxUnpackedToInt8Tensor` and `Int8Tensor`.

Both choose the scale in the dtype of the weight, as absmax / 7.5 (int4) or absmax / 127.5 (int8), and multiply by its
reciprocal. The first keeps the scale in that dtype and multiplies in it; the second keeps it in fp32 and multiplies in
fp32. A stack of experts is quantized row by row, as one matrix: torchao's configurations refuse it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchao.quantization.granularity import PerGroup as GroupGranularity
from torchao.quantization.granularity import PerRow
from torchao.quantization.quant_primitives import MappingType, dequantize_affine
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor

from quantaudit.core.format import INT4, INT8, Format
from quantaudit.core.scheme import PerGroup, Scheme
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import QuantizedTensor

TARGETS: dict[Format, torch.dtype] = {INT4: torch.int4, INT8: torch.int8}  # type: ignore[attr-defined]


def quantize_intx(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes as `IntxWeightOnlyConfig` does.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the integer format and the groups.
    """
    return _intx(x, scheme, MappingType.SYMMETRIC)


def quantize_no_clipping(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes with the mapping SYMMETRIC_NO_CLIPPING_ERR: the scale is the larger of max / 7 and min / -8.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the integer format and the groups.
    """
    return _intx(x, scheme, MappingType.SYMMETRIC_NO_CLIPPING_ERR)


def quantize_int8(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes as `Int8WeightOnlyConfig` does.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the groups.
    """
    grain = scheme.granularity
    stored = Int8Tensor.from_hp(x, GroupGranularity(grain.size) if isinstance(grain, PerGroup) else PerRow())
    return carry_integers(x, stored.scale, stored.qdata, scheme)


def carry_integers(x: Tensor, scale: Tensor, codes: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Returns what torchao stores, in the catalogue's conventions: scales as fp32 numbers.

    Args:
        x: [..., R, C], the weight.
        scale: One a group, any float dtype.
        codes: As many as the weight has values, int8.
        scheme: The scheme.
    """
    shape = tuple(x.shape)
    return QuantizedTensor(
        codes=codes.reshape(shape),
        scales=scale.float().reshape(plan(shape, scheme.granularity).grid),
        second_scales=None,
        offset=None,
        shape=shape,
        dtype=x.dtype,
        scheme=scheme,
    )


def group_size(x: Tensor, scheme: Scheme) -> int:
    """Returns how many values share a scale: those of a group, or of a row."""
    return scheme.granularity.size if isinstance(scheme.granularity, PerGroup) else x.shape[-1]


def dequantize_integers(q: QuantizedTensor) -> Tensor:
    """Decodes with `dequantize_affine`, from scales in fp32 as `Int8Tensor` does.

    Scales in bf16, as `IntxUnpackedToInt8Tensor` keeps them, give the same values: a code of 8 bits times a scale of 8
    bits is exact in fp32, so both round the same product once.
    """
    codes_RC = q.codes.reshape(-1, q.shape[-1])
    scales_RG = q.scales.reshape(len(codes_RC), -1)
    zero_RG = torch.zeros_like(scales_RG, dtype=torch.int8)
    block = (1, group_size(codes_RC, q.scheme))
    values: Tensor = dequantize_affine(codes_RC, block, scales_RG, zero_RG, torch.int8, output_dtype=q.dtype)
    return values.view(q.shape)


def _intx(x: Tensor, scheme: Scheme, mapping: MappingType) -> QuantizedTensor:
    rows_RC = x.view(-1, x.shape[-1])
    block = (1, group_size(x, scheme))
    stored = IntxUnpackedToInt8Tensor.from_hp(rows_RC, block, TARGETS[scheme.element], mapping_type=mapping)
    return carry_integers(x, stored.scale, stored.qdata, scheme)

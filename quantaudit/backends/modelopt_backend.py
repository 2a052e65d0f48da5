"""nvidia-modelopt: the quantized tensors that it exports, on their paths without a GPU kernel.

It packs low nibbles first, but INT4 high nibbles first. INT4 holds the multiplier 7 / absmax in the dtype of the weight
in the place of a scale. Matrices of a stack are quantized one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.protocol import Offer
from quantaudit.core.format import E4M3, IntegerFormat
from quantaudit.core.scheme import ExponentScale, Layout, PerBlock, PerGroup, PerTensor, Scheme
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

if TYPE_CHECKING:
    from modelopt.torch.quantization.qtensor import BaseQuantizedTensor

_BOTH = (torch.float32, torch.bfloat16)
_OFFSET = 8
_QTENSOR = "modelopt.torch.quantization.qtensor"


ALL_ZEROS_NEGATIVE = "A ratio of zero, of either sign, gets the code of -0."
LOGARITHM = "fp32: the exponent is a float32 log2, so a group maximum some ulps above 6 * 2^k gets the scale 2^k."
NOT_NAN = "A group with an infinity or a NaN is not NaN: it gets the scale 2^-127 and decodes to zeros."
ORDER = (
    "A block scale is absmax / (6 * upper scale), not (absmax / 6) / upper scale: on a rounding border the "
    "neighbouring one."
)
ZERO_BLOCK = "The block scale of a zero block is 1."
NO_NEGATIVE_ZERO = "A value of -0, and one that vanishes against its scale, gets the code of +0."
ZERO_MATRIX = "A zero matrix decodes to NaN."
NVFP4_SPECIAL = (
    "A matrix with an infinity or a NaN has block scales or codes that are not all NaN and zero; its values are NaN as "
    "in the catalogue."
)
MULTIPLIER = (
    "The multiplier 7 / absmax is stored, in the dtype of the weight; values are multiplied by it in that dtype, and "
    "decoded by dividing."
)
ZERO_GROUP = "The codes of a group whose 7 / absmax is infinite, a zero one too, are not all zero; its values are zero."
INT4_SPECIAL = (
    "A group with an infinity has a multiplier of 0, an infinite scale, and decodes to NaN and infinities; the codes "
    "of a group with a NaN are not all zero."
)
DIVIDES_BY_ZERO = "A scale of zero is divided by: zeros become NaN, other values get the largest code and decode to 0."
FP8_SPECIAL = (
    "A group with an infinity has an infinite scale, not NaN; its codes, and those of a NaN's, are not all zero; its "
    "values are NaN as in the catalogue."
)


def _offer(name: str, catalogue: str, called: str, *departs: str) -> Offer:
    return Offer(name=name, catalogue=catalogue, dtypes=_BOTH, departs=departs, source=f"{_QTENSOR}.{called}")


_NVFP4 = (ORDER, ZERO_BLOCK, NO_NEGATIVE_ZERO, ZERO_MATRIX, NVFP4_SPECIAL)
_INT4 = (MULTIPLIER, ZERO_GROUP, INT4_SPECIAL)
_FP8 = (DIVIDES_BY_ZERO, FP8_SPECIAL)
OFFERS = {
    offer.name: offer
    for offer in (
        _offer("mxfp4", "mxfp4-rceil-zero", "MXFP4QTensor", ALL_ZEROS_NEGATIVE, LOGARITHM, NOT_NAN),
        _offer("nvfp4", "nvfp4-divide", "NVFP4QTensor", *_NVFP4),
        _offer("int4-g32", "int4-g32-div7", "INT4QTensor", *_INT4),
        _offer("int4-g128", "int4-g128-div7", "INT4QTensor", *_INT4),
        _offer("fp8-tensor", "fp8-tensor-native", "FP8QTensor", *_FP8),
        _offer("fp8-channel", "fp8-channel-native", "FP8QTensor", *_FP8),
        _offer("fp8-block128", "fp8-block128-native", "FP8QTensor", *_FP8),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inverted(QuantizedTensor):
    """An INT4 tensor with the multipliers that its file holds, of which `scales` are the rounded reciprocals.

    Attributes:
        multipliers: In the dtype of the weight, of the shape of `scales`.
    """

    multipliers: Tensor


def _quantize_mxfp4(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    from modelopt.torch.quantization.qtensor import MXFP4QTensor

    quantized, scales = MXFP4QTensor.quantize(x, _group(scheme))
    return _carry(x, scheme, unpack(quantized._quantized_data, Layout.LOW_NIBBLE_FIRST), scales)


def _quantize_nvfp4(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    quantized, scales, tops = zip(*(NVFP4QTensor.quantize(m, _group(scheme)) for m in _matrices(x)), strict=True)
    codes = torch.stack([unpack(part._quantized_data, Layout.LOW_NIBBLE_FIRST) for part in quantized])
    second = torch.stack(tops).reshape(*x.shape[:-2], 1)
    return _carry(x, scheme, codes, torch.stack(scales).view(torch.uint8), second)


def _quantize_int4(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    from modelopt.torch.quantization.qtensor import INT4QTensor

    quantized, multipliers = INT4QTensor.quantize(x, _group(scheme))
    codes = unpack(quantized._quantized_data, Layout.HIGH_NIBBLE_FIRST).to(torch.int8) - _OFFSET
    q = _carry(x, scheme, codes, 1 / multipliers.float())
    return Inverted(
        codes=q.codes,
        scales=q.scales,
        second_scales=None,
        offset=None,
        shape=q.shape,
        dtype=q.dtype,
        scheme=scheme,
        multipliers=multipliers.reshape(q.scales.shape),
    )


def _quantize_fp8(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    from modelopt.torch.quantization.qtensor import FP8QTensor

    grain = scheme.granularity
    axis = None if isinstance(grain, PerTensor | PerBlock) else 0
    parts = [FP8QTensor.quantize(m, axis=axis, block_sizes=_blocks(scheme)) for m in _matrices(x)]
    codes = torch.stack([part[0]._quantized_data for part in parts]).view(torch.uint8)
    return _carry(x, scheme, codes, torch.stack([part[1] for part in parts]).float())


def _carry(x: Tensor, scheme: Scheme, codes: Tensor, scales: Tensor, second: Tensor | None = None) -> QuantizedTensor:
    shape = tuple(x.shape)
    return QuantizedTensor(
        codes=codes.reshape(shape),
        scales=scales.reshape(plan(shape, scheme.granularity).grid),
        second_scales=second,
        offset=None,
        shape=shape,
        dtype=x.dtype,
        scheme=scheme,
    )


def _dequantize(q: QuantizedTensor) -> Tensor:
    """Decodes matrix by matrix to the dtype of the tensor."""
    return torch.stack([_decode(q, index) for index in range(math.prod(q.shape[:-2]))]).reshape(q.shape)


def _decode(q: QuantizedTensor, index: int) -> Tensor:
    from modelopt.torch.quantization.qtensor import FP8QTensor, INT4QTensor, MXFP4QTensor, NVFP4QTensor

    codes_RC, scales = _of_matrix(q.codes, q, index), _of_matrix(_stored(q), q, index)
    shape = codes_RC.shape

    def decoded(kind: type[BaseQuantizedTensor], data: Tensor, **settings: object) -> Tensor:
        values: Tensor = kind(shape, q.dtype, data).dequantize(**settings)
        return values.reshape(shape)

    if q.scheme.element == E4M3:
        data = codes_RC.view(torch.float8_e4m3fn)
        return decoded(FP8QTensor, data, scale=scales.to(q.dtype), block_sizes=_blocks(q.scheme))
    sizes = {-1: _group(q.scheme)}
    if isinstance(q.scheme.element, IntegerFormat):
        packed = pack((codes_RC + _OFFSET).to(torch.uint8), Layout.HIGH_NIBBLE_FIRST)
        return decoded(INT4QTensor, packed, scale=scales, block_sizes=sizes)
    packed = pack(codes_RC, Layout.LOW_NIBBLE_FIRST)
    if isinstance(q.scheme.scale, ExponentScale):
        return decoded(MXFP4QTensor, packed, scale=scales, block_sizes=sizes)
    assert q.second_scales is not None
    top = _of_matrix(q.second_scales, q, index).squeeze()
    return decoded(NVFP4QTensor, packed, scale=scales.view(torch.float8_e4m3fn), double_scale=top, block_sizes=sizes)


def _stored(q: QuantizedTensor) -> Tensor:
    """Returns what the file holds: multipliers for INT4, the reciprocals where the tensor came from elsewhere."""
    if not isinstance(q.scheme.element, IntegerFormat):
        return q.scales
    if isinstance(q, Inverted) and torch.equal((1 / q.multipliers.float()).nan_to_num(), q.scales.nan_to_num()):
        return q.multipliers
    return (1 / q.scales).to(q.dtype)


def _of_matrix(stored: Tensor, q: QuantizedTensor, index: int) -> Tensor:
    leading = len(q.shape) - 2
    return stored.reshape(-1, *stored.shape[leading:])[index]


def _matrices(x: Tensor) -> list[Tensor]:
    return list(x.reshape(-1, *x.shape[-2:]))


def _group(scheme: Scheme) -> int:
    assert isinstance(scheme.granularity, PerGroup)
    return scheme.granularity.size


def _blocks(scheme: Scheme) -> dict[int, int] | None:
    grain = scheme.granularity
    return {-1: grain.cols, -2: grain.rows} if isinstance(grain, PerBlock) else None


def _open() -> Code:
    int4 = dict.fromkeys(("int4-g32", "int4-g128"), _quantize_int4)
    fp8 = dict.fromkeys(("fp8-tensor", "fp8-channel", "fp8-block128"), _quantize_fp8)
    return Code(quantizers={"mxfp4": _quantize_mxfp4, "nvfp4": _quantize_nvfp4, **int4, **fp8}, dequantize=_dequantize)


BACKEND = LibraryBackend(
    name="modelopt",
    distribution="nvidia-modelopt",
    extra="modelopt",
    tested="0.47.",
    offers=OFFERS,
    open_code=_open,
)

"""torchao's MX formats: `to_mx` in its four scale modes, and `to_dtype`.

Bit tricks on the exponent for floor, ceil and even; a float32 `log2` for rceil.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

from quantaudit.core.format import E2M1, E2M3, E3M2, E4M3, E5M2, Format
from quantaudit.core.scheme import ExponentRounding, ExponentScale, PerGroup, Scheme
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

ELEMENTS: dict[Format, torch.dtype | str] = {
    E2M1: torch.float4_e2m1fn_x2,
    E2M3: DTYPE_FP6_E2M3,
    E3M2: DTYPE_FP6_E3M2,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
MODES = {
    ExponentRounding.FLOOR: ScaleCalculationMode.FLOOR,
    ExponentRounding.EVEN: ScaleCalculationMode.EVEN,
    ExponentRounding.RCEIL: ScaleCalculationMode.RCEIL,
    ExponentRounding.CEIL: ScaleCalculationMode.CEIL,
}


def quantize_mx(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes with the element format, group size and scale mode that the scheme names.

    Args:
        x: [..., C] fp32 or bf16, contiguous; the group size divides C.
        scheme: A power-of-two scheme.
    """
    element, size, mode = parameters(scheme)
    scales, data = to_mx(x, element, size, mode)
    return carry_mx(x, scales, data, scheme)


def parameters(scheme: Scheme) -> tuple[torch.dtype | str, int, ScaleCalculationMode]:
    """Returns torchao's words for the element format, the group size and the scale mode of a scheme."""
    assert isinstance(scheme.scale, ExponentScale) and isinstance(scheme.granularity, PerGroup)
    return ELEMENTS[scheme.element], scheme.granularity.size, MODES[scheme.scale.rounding]


def carry_mx(x: Tensor, scales: Tensor, data: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Returns what torchao stores, in the catalogue's conventions: unpacked codes, E8M0 as bytes.

    Args:
        x: [..., C], the weight.
        scales: [..., C / size] float8_e8m0fnu.
        data: [..., C / 2] uint8 for FP4, else [..., C] of one byte.
        scheme: The scheme.
    """
    return QuantizedTensor(
        codes=unpack(data.view(torch.uint8), scheme.layout),
        scales=scales.view(torch.uint8),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def dequantize_mx(q: QuantizedTensor) -> Tensor:
    """Decodes with `to_dtype`: element and scale are both cast to the target dtype, then multiplied."""
    element, size, _ = parameters(q.scheme)
    packed = pack(q.codes, q.scheme.layout)
    data = packed.view(element) if q.scheme.element.bits == 8 and isinstance(element, torch.dtype) else packed
    values: Tensor = to_dtype(data, q.scales.view(torch.float8_e8m0fnu), element, size, q.dtype)
    return values.view(q.shape)

"""torchao's fake quantizers for training: what a weight becomes in the forward pass of QAT.

`IntxFakeQuantizer` is run itself, and its codes are read off its values. The others have no scale to read: what their
forward calls is called here in the same order, and the tests hold it against the modules.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization.granularity import PerAxis
from torchao.quantization.granularity import PerGroup as GroupGranularity
from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer
from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
from torchao.quantization.utils import get_block_size

from quantaudit.backends.library import Code
from quantaudit.backends.torchao_float8 import carry_float8, granularity
from quantaudit.backends.torchao_intx import TARGETS, carry_integers
from quantaudit.backends.torchao_library import dequantize, power_of_two_names
from quantaudit.backends.torchao_mx import carry_mx, parameters
from quantaudit.backends.torchao_nvfp4 import quantize_single_level, quantize_two_level
from quantaudit.backends.torchao_offers import QAT_OFFERS
from quantaudit.core.scheme import CodeRange, PerGroup, Scheme
from quantaudit.numerics.reference import QuantizedTensor


def fake_intx(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Fake-quantizes as `QATConfig(IntxWeightOnlyConfig(...), step="prepare")` does: scales in the weight's dtype.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the integer format and the groups.
    """
    return _fake_integers(x, scheme, None)


def fake_intx_fp32_scale(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Fake-quantizes as a hand-made `IntxFakeQuantizeConfig` does by default: scales in fp32.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the integer format and the groups.
    """
    return _fake_integers(x, scheme, torch.float32)


def _fake_integers(x: Tensor, scheme: Scheme, scale_precision: torch.dtype | None) -> QuantizedTensor:
    grain = scheme.granularity
    module = IntxFakeQuantizer(
        IntxFakeQuantizeConfig(
            TARGETS[scheme.element],
            GroupGranularity(grain.size) if isinstance(grain, PerGroup) else PerAxis(0),
            scale_precision=scale_precision,  # None: the dtype of the weight
        )
    )
    rows_RC = x.view(-1, x.shape[-1])
    values_RC = module(rows_RC)
    scale_RG = module.scale
    codes_RC = _read_codes(values_RC, scale_RG, _code_range(scheme))
    return carry_integers(x, scale_RG, codes_RC, scheme)


def _code_range(scheme: Scheme) -> CodeRange:
    """Returns all codes of the format, which torchao uses whatever the catalogue scheme does."""
    bits = scheme.element.bits
    return CodeRange(low=-(1 << bits - 1), high=(1 << bits - 1) - 1)


def _read_codes(values_RC: Tensor, scale_RG: Tensor, codes: CodeRange) -> Tensor:
    """Returns the codes, int8, of values that are code * scale rounded to bf16 or fp32.

    Such a value is off by at most 128 * 2^-9 = 1/4 of a scale, and scales are normal numbers, so rounding finds the
    code. A value that overflowed is that of the lowest code; a NaN has no code, and gets zero.
    """
    ratio_RGN = values_RC.float().view(*scale_RG.shape, -1) / scale_RG.float().unsqueeze(-1)
    return ratio_RGN.round().nan_to_num(0.0).clamp(codes.low, codes.high).to(torch.int8).view(values_RC.shape)


def fake_float8(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Fake-quantizes as `Float8FakeQuantizer` does.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: Names the granularity.
    """
    block = get_block_size(x.shape, granularity(x, scheme))
    scale = _choose_scale_float8(x, block, torch.float8_e4m3fn)
    return carry_float8(x, scale, _quantize_affine_float8(x, scale, torch.float8_e4m3fn), scheme)


def fake_mx(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Fake-quantizes as the weight in the forward of `MXFakeQuantizedLinear`.

    Args:
        x: [..., R, C] bf16, contiguous; the group size divides C.
        scheme: A power-of-two scheme.
    """
    element, size, mode = parameters(scheme)
    stored = MXTensor.to_mx(x, element, size, mode, KernelPreference.EMULATED)
    return carry_mx(x, stored.scale, stored.qdata, scheme)


CODE = Code(
    quantizers={
        **dict.fromkeys(power_of_two_names(QAT_OFFERS), fake_mx),
        **dict.fromkeys(("int4-g32", "int4-g128", "intx-int8-channel", "intx-int8-g32"), fake_intx),
        **dict.fromkeys(
            ("int4-g32-fp32-scale", "int4-g128-fp32-scale", "int8-channel", "int8-g32"), fake_intx_fp32_scale
        ),
        **dict.fromkeys(("fp8-tensor", "fp8-channel"), fake_float8),
        # The forward of NVFP4FakeQuantizedLinear calls what the stored weight is made with, and then needs sm100.
        "nvfp4": quantize_two_level,
        "nvfp4-single-level": quantize_single_level,
    },
    dequantize=dequantize,
)

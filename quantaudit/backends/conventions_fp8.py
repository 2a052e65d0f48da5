"""FP8 (E4M3) in blocks of 128 x 128, with fp32 scales and with scales that are powers of two.

What differs between the public rules is the floor of absmax, whether absmax is divided by 448 or multiplied by the fp32
number 1 / 448, in which format the scale is stored, and whether the elements have seen the stored scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.backends.conventions_restated import Convention, by_scheme, convention
from quantaudit.core.format import BF16, E4M3
from quantaudit.core.scheme import Division, EncodeScale, ExponentRounding, ExponentScale, Scheme
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.exponent import choose_exponent
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.reference import QuantizedTensor, quantize

_FP32, _UE8M0 = "fp8-block128", "fp8-block128-ue8m0"
_ROUNDED_UP = ExponentScale(rounding=ExponentRounding.RCEIL, divisor=1.0)  # the smallest power of two not below a scale


def fp8_conventions() -> Iterator[Convention]:
    """Yields the FP8 rules: first those with fp32 scales, then those with powers of two."""
    yield convention(
        "deepseek-v3-fp8-block128",
        _FP32,
        _divide_by_zero,
        departs=("A block of zeros has the scale 0 and codes of NaN: zero is divided by zero.",),
        source="DeepSeek-V3 (arXiv 2412.19437, section 3.3), the weight cast of its inference code",
    )
    yield convention(
        "slime-fp8-block128",
        _FP32,
        by_scheme(_linear(amax_floor=1e-10)),
        departs=("An absmax below 1e-10 is raised to it.",),
        source="slime and Miles, block-wise cast to FP8 in the export",
    )
    yield convention(
        "areal-fp8-block128",
        _FP32,
        by_scheme(_linear(format=BF16, encode_with=EncodeScale.COMPUTED)),
        departs=("The stored scale is rounded to bf16 after the elements were divided by the fp32 one.",),
        source="AReaL, FP8 export (read in code)",
    )
    reciprocal = "Absmax is multiplied by the fp32 number 1/448 in place of a division by 448."
    floor = "An absmax below 1e-4 is raised to it."
    yield convention(
        "deepseek-v4-fp8-block128",
        _FP32,
        by_scheme(_linear(division=Division.RECIPROCAL, amax_floor=1e-4)),
        departs=(reciprocal, floor),
        source="DeepSeek-V3.2 and later, inference kernels, without rounding of scales",
    )
    yield convention(
        "deepseek-v4-fp8-block128-ue8m0",
        _UE8M0,
        by_scheme(_floored(_UE8M0, 1e-4)),
        departs=(floor,),
        source="DeepSeek-V3.2 and later, inference kernels, scales rounded up to a power of two",
    )
    yield convention(
        "late-fp8-block128-ue8m0",
        _UE8M0,
        _round_scale_late,
        departs=("Elements are divided by absmax / 448, and the scale is rounded up to a power of two afterwards.",),
        source="exports and kernels that rounded the scale after the elements (transformers 46763, sglang 28418)",
    )


def _linear(**fields: object) -> Scheme:
    scheme = get_scheme(_FP32)
    return scheme.model_copy(update={"scale": scheme.scale.model_copy(update=fields)})


def _floored(name: str, amax_floor: float) -> Scheme:
    scheme = get_scheme(name)
    return scheme.model_copy(update={"scale": scheme.scale.model_copy(update={"amax_floor": amax_floor})})


def _divide_by_zero(x: Tensor) -> QuantizedTensor:
    """Quantizes by absmax / 448; where that is zero, every code is NaN."""
    stored = quantize(x, get_scheme(_FP32))
    cut = plan(stored.shape, stored.scheme.granularity)
    is_zero = stored.scales.reshape(-1, cut.num_groups, 1) == 0
    codes = torch.where(is_zero, E4M3.nan_code or 0, to_groups(stored.codes, cut))
    return replace(stored, codes=from_groups(codes.to(torch.uint8), cut, stored.shape))


def _round_scale_late(x: Tensor) -> QuantizedTensor:
    """Takes the codes of the fp32 scale and stores the power of two above it."""
    stored = quantize(x, get_scheme(_FP32))
    return replace(stored, scales=choose_exponent(stored.scales, _ROUNDED_UP))

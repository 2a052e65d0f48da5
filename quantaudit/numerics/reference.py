"""Quantize, dequantize and fake-quantize a tensor under any scheme: plain eager operations, equal bits everywhere.

Every operation here is either exact or one correctly rounded IEEE operation, so a CPU and a GPU give the same bits, and
so does the scalar reference. Nothing is differentiable: gradients of fake quantization are the trainer's business.

Shape suffixes: S stack, G groups of a matrix, N members of a group, K groups of the second level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import DoubleQuantization, ExponentScale, LinearScale, Scheme, TwoLevel
from quantaudit.numerics import scales
from quantaudit.numerics.exponent import choose_exponent
from quantaudit.numerics.grouping import Plan, from_groups, plan, to_groups
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.rounding import decode, encode

INPUT_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedTensor:
    """Codes and scales of a tensor, not packed.

    Invariants: `codes.shape == shape`; `scales.shape == plan(shape, scheme.granularity).grid`; `second_scales` is there
    exactly with a second level, `offset` exactly with double quantization.

    Attributes:
        codes: int8 for integer elements, else uint8.
        scales: uint8 codes (E8M0, E4M3, or codes of double-quantized scales), else fp32 values.
        second_scales: fp32, leading axes + [1] for two levels, + [blocks of scales] for double quantization.
        offset: fp32, leading axes + [1]: the mean that double quantization took away.
        shape: Shape of the tensor.
        dtype: Its dtype, and the default of `dequantize`.
        scheme: The arithmetic.
    """

    codes: Tensor
    scales: Tensor
    second_scales: Tensor | None
    offset: Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    scheme: Scheme


class _Scaled(NamedTuple):
    """Scales of all groups as stored, and what the elements are divided by."""

    stored_SG: Tensor
    second: Tensor | None
    offset: Tensor | None
    factor: scales.Factor
    is_nan_SG: Tensor


@torch.no_grad()
def quantize(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes a tensor.

    Args:
        x: [..., R, C] fp32 or bf16, any device. Axes before the last two are a stack of independent matrices; groups
            run along the last axis.
        scheme: Complete arithmetic.

    Raises:
        InputError: If the dtype is another, or the groups do not fit the shape.
    """
    if x.dtype not in INPUT_DTYPES:
        raise InputError(f"a tensor of {x.dtype}", expected="float32 or bfloat16", fix="cast it first")
    shape = tuple(x.shape)
    cut = plan(shape, scheme.granularity)
    groups_SGN = to_groups(x, cut)
    scaled = _scale_groups(groups_SGN, scheme)
    codes_SGN = encode(_ratios(groups_SGN, scaled, scheme), element_rule(scheme))
    return QuantizedTensor(
        codes=from_groups(codes_SGN, cut, shape),
        scales=scaled.stored_SG.reshape(cut.grid),
        second_scales=_unstacked(scaled.second, cut),
        offset=_unstacked(scaled.offset, cut),
        shape=shape,
        dtype=x.dtype,
        scheme=scheme,
    )


@torch.no_grad()
def dequantize(q: QuantizedTensor, dtype: torch.dtype | None = None) -> Tensor:
    """Decodes: value(code) * scale in fp32, then one rounding to `dtype` (default: that of the original tensor)."""
    cut = plan(q.shape, q.scheme.granularity)
    values_SGN = decode(to_groups(q.codes, cut), q.scheme.element)
    decoded = from_groups(values_SGN * decode_scales(q).unsqueeze(-1), cut, q.shape)
    return decoded.to(dtype or q.dtype)


@torch.no_grad()
def fake_quantize(x: Tensor, scheme: Scheme) -> Tensor:
    """Returns `dequantize(quantize(x, scheme))`: what a quantized tensor becomes, in the dtype of `x`."""
    return dequantize(quantize(x, scheme))


def decode_scales(q: QuantizedTensor) -> Tensor:
    """Returns the complete scale of every group, [S, G] fp32, second level included."""
    cut = plan(q.shape, q.scheme.granularity)
    stack = math.prod(cut.leading)
    stored_SG = q.scales.reshape(stack, cut.num_groups)
    rule = q.scheme.scale
    if isinstance(rule, ExponentScale) or rule.second_level is None:
        return scales.decode_stored(stored_SG, rule)
    assert q.second_scales is not None
    second_SK = q.second_scales.reshape(stack, q.second_scales.shape[-1])
    if isinstance(rule.second_level, TwoLevel):
        return scales.decode_stored(stored_SG, rule) * second_SK
    assert q.offset is not None
    inner = _inner(stored_SG, second_SK, rule.second_level)
    return dequantize(inner).squeeze(1) + q.offset.reshape(stack, 1)


def _unstacked(second_SK: Tensor | None, cut: Plan) -> Tensor | None:
    return None if second_SK is None else second_SK.reshape(*cut.leading, second_SK.shape[-1])


def _scale_groups(groups_SGN: Tensor, scheme: Scheme) -> _Scaled:
    statistic_SG = scales.measure(groups_SGN, scheme.scale)
    if isinstance(scheme.scale, ExponentScale):
        stored_SG = choose_exponent(statistic_SG, scheme.scale)
        return _Scaled(stored_SG, None, None, scales.exponent_factor(stored_SG), statistic_SG.isnan())
    return _scale_linear(statistic_SG, scheme, scheme.scale)


def _scale_linear(statistic_SG: Tensor, scheme: Scheme, rule: LinearScale) -> _Scaled:
    level = rule.second_level
    if level is not None:
        # A NaN spreads to everything that shares the second level.
        statistic_SG = torch.where(statistic_SG.isnan().any(-1, keepdim=True), torch.nan, statistic_SG)
    above_S1 = scales.matrix_scale(statistic_SG, level) if isinstance(level, TwoLevel) else None
    computed_SG = scales.choose_linear(statistic_SG, rule, above_S1)
    stored_SG = scales.store(computed_SG, rule)
    dtype = scales.arithmetic_dtype(scheme.arithmetic, statistic_SG.dtype)
    visible_SG = scales.visible_scale(computed_SG, stored_SG, rule)
    factor = scales.linear_factor(visible_SG, rule, scheme.division, dtype, above_S1)
    if isinstance(level, DoubleQuantization):
        offset_S1 = scales.pairwise_mean(stored_SG)
        inner = quantize((stored_SG - offset_S1).unsqueeze(1), level.scheme)
        return _Scaled(inner.codes.squeeze(1), inner.scales, offset_S1, factor, statistic_SG.isnan())
    return _Scaled(stored_SG, above_S1, None, factor, statistic_SG.isnan())


def _ratios(groups_SGN: Tensor, scaled: _Scaled, scheme: Scheme) -> Tensor:
    """Returns what is rounded to the element format, fp32: zeros where the scale is unusable or NaN."""
    values_SGN = groups_SGN.to(scales.arithmetic_dtype(scheme.arithmetic, groups_SGN.dtype))
    factor_SG1 = scaled.factor.value_SG.unsqueeze(-1)
    ratio_SGN = values_SGN * factor_SG1 if scaled.factor.is_multiplier else values_SGN / factor_SG1
    signed_zero_SGN = torch.zeros_like(values_SGN).copysign(values_SGN)
    ratio_SGN = torch.where(scaled.factor.is_usable_SG.unsqueeze(-1), ratio_SGN, signed_zero_SGN)
    return torch.where(scaled.is_nan_SG.unsqueeze(-1), 0.0, ratio_SGN).float()


def _inner(codes_SG: Tensor, second_SK: Tensor, level: DoubleQuantization) -> QuantizedTensor:
    """Returns the quantized row of scales of every matrix as a stack of one-row matrices."""
    stack, count = codes_SG.shape
    return QuantizedTensor(
        codes=codes_SG.unsqueeze(1),
        scales=second_SK,
        second_scales=None,
        offset=None,
        shape=(stack, 1, count),
        dtype=torch.float32,
        scheme=level.scheme,
    )

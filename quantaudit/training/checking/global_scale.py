"""Quantization under a scale of the whole matrix that is given, not measured.

That is what an engine or an exporter does that keeps the global scale of two-level schemes (NVFP4) from the first step
of a run. It is the arithmetic of `numerics.reference` with t, the scale above the scales, taken from elsewhere.

Legend: E experts, O out, I in, S stack, G groups, N members of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, Scheme, TwoLevel
from quantaudit.numerics import QuantizedTensor, scales
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.rounding import encode


@torch.no_grad()
def quantize_under(x: Tensor, scheme: Scheme, second_scales: Tensor) -> QuantizedTensor:
    """Returns codes and group scales of `x` [E, O, I] under given scales of the matrices.

    Args:
        x: Finite, fp32 or bf16.
        scheme: A two-level scheme.
        second_scales: [E, 1] fp32, as `quantize` stores them.
    """
    rule = scheme.scale
    assert isinstance(rule, LinearScale) and isinstance(rule.second_level, TwoLevel)
    shape = tuple(x.shape)
    cut = plan(shape, scheme.granularity)
    groups_SGN = to_groups(x, cut).float()
    above_S1 = second_scales.reshape(-1, 1)
    computed_SG = scales.choose_linear(scales.measure(groups_SGN, rule), rule, above_S1)
    stored_SG = scales.store(computed_SG, rule)
    visible_SG = scales.visible_scale(computed_SG, stored_SG, rule)
    factor = scales.linear_factor(visible_SG, rule, scheme.division, torch.float32, above_S1)
    factor_SG1 = factor.value_SG.unsqueeze(-1)
    ratio_SGN = groups_SGN * factor_SG1 if factor.is_multiplier else groups_SGN / factor_SG1
    zero_SGN = torch.zeros_like(groups_SGN).copysign(groups_SGN)
    ratio_SGN = torch.where(factor.is_usable_SG.unsqueeze(-1), ratio_SGN, zero_SGN)
    return QuantizedTensor(
        codes=from_groups(encode(ratio_SGN, element_rule(scheme)), cut, shape),
        scales=stored_SG.reshape(cut.grid),
        second_scales=second_scales,
        offset=None,
        shape=shape,
        dtype=x.dtype,
        scheme=scheme,
    )

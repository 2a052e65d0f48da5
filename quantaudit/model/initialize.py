"""Initial weights for training, drawn from one seeded generator in the order of the module tree.

Matrices are normal(0, initializer_range), scaled down by sqrt(2 * layers) where they write to the residual stream. The
routed experts and the projection into their latent space keep the scale of their input, normal(0, 1 / sqrt(inputs)): at
a small width the product of gate and up would otherwise vanish below the epsilon of the latent norm, and the experts
would never learn. A_log is 0; dt_bias is the inverse softplus of a log-uniform step in [1e-3, 0.1]; pseudo-queries are
zero, so that every mixture starts uniform.

Source: Kimi K3 report, section 2; Attention Residuals (arXiv:2603.15031).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantaudit.model.lm import LanguageModel

_RESIDUAL_WRITERS = (".o_proj.weight", ".down_proj.weight", ".routed_expert_up_proj.weight")

_UNIT_GAIN = (".routed_expert_down_proj.weight", ".experts.w1.weight", ".experts.w2.weight", ".experts.w3.weight")


@torch.no_grad()
def initialize(model: LanguageModel, seed: int) -> None:
    """Overwrites every parameter of `model`."""
    generator = torch.Generator().manual_seed(seed)
    residual_scale = (2 * model.config.num_hidden_layers) ** -0.5
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            parameter.copy_(_inverse_softplus_steps(parameter.shape[0], generator))
        elif name.endswith(("norm.weight", "layernorm.weight")):
            parameter.fill_(1.0)
        elif name.endswith(("A_log", "e_score_correction_bias", "res_proj.weight")):
            parameter.zero_()
        elif name.endswith("conv1d.weight"):
            bound = parameter.shape[-1] ** -0.5
            parameter.uniform_(-bound, bound, generator=generator)
        elif name.endswith(_UNIT_GAIN):
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
        else:
            scale = residual_scale if name.endswith(_RESIDUAL_WRITERS) else 1.0
            parameter.normal_(0.0, model.config.initializer_range * scale, generator=generator)


def _inverse_softplus_steps(size: int, generator: torch.Generator) -> Tensor:
    """Returns softplus^-1(dt) for dt log-uniform in [1e-3, 0.1], clamped below at 1e-4."""
    u = torch.rand(size, generator=generator)
    dt = torch.exp(u * (math.log(0.1) - math.log(1e-3)) + math.log(1e-3)).clamp(min=1e-4)
    return dt + torch.log(-torch.expm1(-dt))

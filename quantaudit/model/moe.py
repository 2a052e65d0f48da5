"""Stable LatentMoE: a full-width router, experts in a latent space, a norm on what they return.

Scores are sigmoids of fp32 logits; the correction bias selects and never weights. The weighted sum over a
token's experts is fp32; its RMSNorm comes before the projection back up. Shared experts see the full width.

Legend: N tokens, D hidden, Z latent, F expert width, E experts, K experts per token, R = N * K routed rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from quantaudit.core.site import Point, Site
from quantaudit.model.activation import situ_glu
from quantaudit.model.config import ModelConfig
from quantaudit.model.linear import GroupedLinear, Linear
from quantaudit.model.norm import RMSNorm
from quantaudit.model.precision import widen
from quantaudit.model.tap import Tap


class Mlp(nn.Module):
    """A dense SiTU-GLU: the first layers' MLP and the fused shared experts."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.beta, self.linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta
        self.gate_proj = Linear(config.hidden_size, width)
        self.up_proj = Linear(config.hidden_size, width)
        self.down_proj = Linear(width, config.hidden_size)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Returns `[N, D]`."""
        hidden = situ_glu(self.gate_proj(x_ND), self.up_proj(x_ND), beta=self.beta, linear_beta=self.linear_beta)
        out_ND: Tensor = self.down_proj(hidden)
        return out_ND


class Routing(NamedTuple):
    """Which experts a token goes to, ids ascending, and with what weights."""

    ids_NK: Tensor
    weights_NK: Tensor


class Router(Linear):
    """The gate: its weight is multiplied in fp32, its bias (fp32, frozen at inference) enters the selection only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, config.num_experts)
        self.e_score_correction_bias = nn.Parameter(torch.zeros(config.num_experts), requires_grad=False)


def select_experts(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Tensor:
    """Returns the ids `[N, K]`, ascending, of the largest score + bias; ties go to the lowest index.

    Args:
        score_NE: Sigmoid scores, fp32.
        bias_E: Correction bias, fp32.
        top_k: Experts per token.
    """
    ranked_NE = torch.sort(score_NE + bias_E, dim=-1, descending=True, stable=True).indices
    return ranked_NE[:, :top_k].sort(-1).values


def weigh_experts(score_NE: Tensor, ids_NK: Tensor, config: ModelConfig) -> Tensor:
    """Returns the weights `[N, K]` of chosen experts: their scores, without the bias that chose them.

    Args:
        score_NE: Sigmoid scores, fp32.
        ids_NK: Chosen experts.
        config: Gives renormalisation (only for more than one expert per token) and the scaling factor.
    """
    weights_NK = score_NE.gather(-1, ids_NK)
    if config.moe_renormalize and config.num_experts_per_token > 1:
        weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
    return weights_NK * config.routed_scaling_factor


class Experts(nn.Module):
    """The routed experts, stacked: w1 gate and w3 up `[E, F, Z]`, w2 down `[E, Z, F]`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
        self.beta, self.linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta
        self.w1 = GroupedLinear(config.num_experts, latent, width)
        self.w2 = GroupedLinear(config.num_experts, width, latent)
        self.w3 = GroupedLinear(config.num_experts, latent, width)

    def forward(self, x_RZ: Tensor, counts_E: list[int], tap: Tap, layer: int) -> Tensor:
        """Returns each row's expert output, `[R, Z]`; rows are sorted by expert."""
        x_RZ = tap(Site(layer, Point.EXPERT_INPUT), x_RZ)
        gate, up = self.w1(x_RZ, counts_E), self.w3(x_RZ, counts_E)
        hidden_RF = situ_glu(gate, up, beta=self.beta, linear_beta=self.linear_beta)
        out_RZ: Tensor = self.w2(tap(Site(layer, Point.EXPERT_HIDDEN), hidden_RF), counts_E)
        return out_RZ


class LatentMoe(nn.Module):
    """One MoE block."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.config = config
        latent = config.routed_expert_hidden_size
        self.gate = Router(config)
        self.routed_expert_down_proj = Linear(config.hidden_size, latent)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps) if config.latent_moe_use_norm else None
        self.routed_expert_up_proj = Linear(latent, config.hidden_size)
        self.experts = Experts(config)
        self.shared_experts = Mlp(config, config.moe_intermediate_size * config.num_shared_experts)

    def forward(self, x_ND: Tensor, tap: Tap) -> Tensor:
        """Returns `[N, D]`: routed plus shared."""
        routing = self.route(x_ND, tap)
        combined_NZ = self._combine(self.routed_expert_down_proj(x_ND), routing, tap)
        combined_NZ = tap(Site(self.layer, Point.COMBINE), combined_NZ)
        normed = combined_NZ if self.routed_expert_norm is None else self.routed_expert_norm(combined_NZ)
        out_ND: Tensor = self.routed_expert_up_proj(normed) + self.shared_experts(x_ND)
        return out_ND

    def route(self, x_ND: Tensor, tap: Tap) -> Routing:
        """Returns the routing; a tap on the ids forces the experts, which are then weighed by their own scores."""
        score_NE = torch.sigmoid(tap(Site(self.layer, Point.ROUTER_LOGITS), self.gate(widen(x_ND))))
        chosen_NK = select_experts(score_NE, self.gate.e_score_correction_bias, self.config.num_experts_per_token)
        ids_NK = tap(Site(self.layer, Point.TOP_K_IDS), chosen_NK)
        weights_NK = tap(Site(self.layer, Point.GATE_WEIGHTS), weigh_experts(score_NE, ids_NK, self.config))
        return Routing(ids_NK, weights_NK)

    def _combine(self, z_NZ: Tensor, routing: Routing, tap: Tap) -> Tensor:
        """Sorts the rows by expert, runs one pass a group, and sums each token's weighted outputs in fp32."""
        flat_R = routing.ids_NK.flatten()
        order_R = torch.argsort(flat_R, stable=True)
        counts_E = torch.bincount(flat_R, minlength=self.config.num_experts).tolist()
        out_RZ = self.experts(z_NZ[order_R // routing.ids_NK.shape[1]], counts_E, tap, self.layer)
        back_RZ = torch.empty_like(out_RZ).index_copy(0, order_R, out_RZ)
        terms_NKZ = torch.unflatten(widen(back_RZ), 0, routing.ids_NK.shape) * routing.weights_NK.unsqueeze(-1)
        combined_NZ: Tensor = terms_NKZ.sum(1).to(z_NZ.dtype)
        return combined_NZ

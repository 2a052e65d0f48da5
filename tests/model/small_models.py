"""Small models with seeded weights, in which every term is large enough to be seen.

`STRANGE` differs from the released model, and from every default, in all sizes and constants: no literal can stand in
for a field. Its epsilons are large, its weights are of order one, its pseudo-queries and A_log are not zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from quantaudit.model.lm import LanguageModel
from quantaudit.model.segments import Segments
from tests.model.naive import Sizes, Vector

# Seven layers; MLA second and fifth, so the last is KDA; experts in layers 2, 4, 6; blocks open at 0, 3, 6, so the last
# layer opens one.
STRANGE = ModelConfig(
    vocab_size=37,
    hidden_size=20,
    num_hidden_layers=7,
    num_attention_heads=3,
    intermediate_size=26,
    first_k_dense_replace=2,
    moe_layer_freq=2,
    activation_situ_beta=1.7,
    activation_situ_linear_beta=2.3,
    attn_res_block_size=3,
    rms_norm_eps=0.03,
    low_rank_norm_eps=0.4,
    num_experts=9,
    num_experts_per_token=3,
    num_shared_experts=3,
    moe_intermediate_size=13,
    routed_expert_hidden_size=10,
    routed_scaling_factor=1.9,
    q_lora_rank=11,
    kv_lora_rank=8,
    qk_nope_head_dim=5,
    qk_rope_head_dim=3,
    v_head_dim=6,
    linear_attn_config=LinearAttentionConfig(
        full_attn_layers=(2, 5),
        num_heads=4,
        head_dim=7,
        short_conv_kernel_size=3,
        gate_lower_bound=-3.5,
        qk_l2_eps=0.2,
    ),
)

# Terms of the longest sum in it: 39 columns of the shared experts, or 40 tokens attended to in the longest test.
WIDEST = 40


def build_model(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float64) -> LanguageModel:
    """Returns a model with seeded weights of order one over sqrt(fan-in)."""
    model = LanguageModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.3 * noise)
            elif name.endswith("e_score_correction_bias"):
                parameter.copy_(0.2 * noise)
            elif name.endswith(("A_log", "dt_bias", "res_proj.weight", "embed_tokens.weight")):
                parameter.copy_(0.7 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model.to(dtype).eval()


def draw_tokens(config: ModelConfig, length: int, seed: int) -> Tensor:
    """Returns `[length]` token ids."""
    return torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


def segments(*lengths: int) -> Segments:
    """Returns the map of sequences of these lengths."""
    return Segments.of(lengths, torch.device("cpu"))


def sizes_of(config: ModelConfig) -> Sizes:
    """Returns the same sizes and constants for the naive forward."""
    kda = config.linear_attn_config
    return Sizes(
        num_hidden_layers=config.num_hidden_layers,
        full_attn_layers=kda.full_attn_layers,
        attn_res_block_size=config.attn_res_block_size,
        first_k_dense_replace=config.first_k_dense_replace,
        moe_layer_freq=config.moe_layer_freq,
        rms_norm_eps=config.rms_norm_eps,
        num_heads=kda.num_heads,
        key_dim=kda.head_dim,
        value_dim=kda.head_dim,
        short_conv_kernel_size=kda.short_conv_kernel_size,
        gate_lower_bound=kda.gate_lower_bound,
        l2_norm_eps=kda.qk_l2_eps,
        num_attention_heads=config.num_attention_heads,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        kv_lora_rank=config.kv_lora_rank,
        low_rank_norm_eps=config.low_rank_norm_eps,
        num_experts=config.num_experts,
        num_experts_per_token=config.num_experts_per_token,
        moe_renormalize=config.moe_renormalize,
        routed_scaling_factor=config.routed_scaling_factor,
        latent_moe_use_norm=config.latent_moe_use_norm,
        activation_situ_beta=config.activation_situ_beta,
        activation_situ_linear_beta=config.activation_situ_linear_beta,
    )


def naive_weights(model: LanguageModel) -> dict[str, Vector]:
    """Returns the weights in float64 under their on-disk names: one matrix an expert, where the model stacks them."""
    weights: dict[str, Vector] = {}
    for name, value in model.state_dict().items():
        array = value.double().numpy()
        if ".experts.w" not in name:
            weights[name] = array
            continue
        before, matrix = name.split(".experts.")
        for expert, part in enumerate(array):
            weights[f"{before}.experts.{expert}.{matrix}"] = np.asarray(part)
    return weights

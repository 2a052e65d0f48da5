"""Every size and constant of the stack. Names follow the released `config.json` where it has the field."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionConfig:
    """Sizes of Kimi Delta Attention, and which layers use it.

    Attributes:
        full_attn_layers: 1-based indices of the MLA layers; every other layer is KDA.
        num_heads: Heads of the delta attention.
        head_dim: Width of a key, query and value head.
        short_conv_kernel_size: Taps of the causal depthwise convolutions.
        gate_lower_bound: Most negative log-decay a channel can reach, negative.
        qk_l2_eps: Added to the sum of squares in the query and key normalisation (a constant of the kernel).
    """

    full_attn_layers: tuple[int, ...]
    num_heads: int
    head_dim: int
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0
    qk_l2_eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The text model.

    Attributes:
        low_rank_norm_eps: Epsilon of the two low-rank norms of MLA, which ignore `rms_norm_eps`.
        activation_situ_beta: Saturation of the gate branch; 0 means 1.
        activation_situ_linear_beta: Saturation of the up branch; `None` leaves that branch linear.
        attn_res_block_size: Decoder layers per block of the attention residuals.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    first_k_dense_replace: int = 1
    moe_layer_freq: int = 1
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float | None = 25.0
    attn_res_block_size: int
    rms_norm_eps: float = 1e-5
    low_rank_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    routed_expert_hidden_size: int
    latent_moe_use_norm: bool = True
    moe_renormalize: bool = True
    routed_scaling_factor: float = 1.0
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    linear_attn_config: LinearAttentionConfig
    bos_token_id: int = 0
    eos_token_id: int = 0
    pad_token_id: int = 0
    max_position_embeddings: int = 4096

    def is_kda_layer(self, layer: int) -> bool:
        """Tells whether the 0-based layer attends by the delta rule."""
        return layer + 1 not in self.linear_attn_config.full_attn_layers

    def is_moe_layer(self, layer: int) -> bool:
        """Tells whether the 0-based layer has routed experts."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0

    def opens_block(self, layer: int) -> bool:
        """Tells whether the 0-based layer pushes the residual prefix into the bank."""
        return layer % self.attn_res_block_size == 0

    def moe_layers(self) -> tuple[int, ...]:
        """Returns the 0-based layers with routed experts."""
        return tuple(i for i in range(self.num_hidden_layers) if self.is_moe_layer(i))

"""The configuration of the released model, from its config.json (`text_config`)."""

from __future__ import annotations

from quantaudit.model.config import LinearAttentionConfig, ModelConfig

RELEASED = ModelConfig(
    vocab_size=163840,
    hidden_size=7168,
    num_hidden_layers=93,
    num_attention_heads=96,
    intermediate_size=33792,
    attn_res_block_size=12,
    num_experts=896,
    num_experts_per_token=16,
    num_shared_experts=2,
    moe_intermediate_size=3072,
    routed_expert_hidden_size=3584,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    linear_attn_config=LinearAttentionConfig(full_attn_layers=(*range(4, 93, 4), 93), num_heads=96, head_dim=128),
)

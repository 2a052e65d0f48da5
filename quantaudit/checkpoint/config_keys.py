"""What this stack does with every key of a Kimi K3 config.json.

A key of `text_config` or `linear_attn_config` is read into `ModelConfig`, or has one value that is implemented, or is
bookkeeping that no forward pass reads; anything else is refused. A key is harmless only by being on a list below.
"""

from __future__ import annotations

from quantaudit.core.serial import Json

ARCHITECTURE = "KimiK3ForConditionalGeneration"
TEXT_ARCHITECTURE = "KimiLinearForCausalLM"
MODEL_TYPE = "kimi_k3"
TEXT_MODEL_TYPE = "kimi_linear"

SIZES = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "first_k_dense_replace",
        "moe_layer_freq",
        "attn_res_block_size",
        "num_experts",
        "num_experts_per_token",
        "num_shared_experts",
        "moe_intermediate_size",
        "routed_expert_hidden_size",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "max_position_embeddings",
    }
)
NUMBERS = frozenset(
    {
        "activation_situ_beta",
        "activation_situ_linear_beta",
        "rms_norm_eps",
        "initializer_range",
        "routed_scaling_factor",
    }
)
FLAGS = frozenset({"latent_moe_use_norm", "moe_renormalize"})
TOKENS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
GROUPS = frozenset({"num_expert_group", "topk_group"})
SECTIONS = frozenset({"linear_attn_config", "quantization_config"})

# Without these keys the released class would compute something else, so they must be written down.
STATED: dict[str, Json] = {
    "model_type": TEXT_MODEL_TYPE,
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "moe_router_activation_func": "sigmoid",
}
# These may be absent.
FIXED: dict[str, Json] = {
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "rope_scaling": None,
}
# Nothing is rotated (`mla_use_nope`), so nothing reads these; a newer library adds them when it writes the file again.
POSITIONS = frozenset({"rope_theta", "rope_parameters", "head_dim"})
# `use_grouped_topk` is stored and never read: group limiting is decided by `num_expert_group` and `topk_group`.
BOOKKEEPING = frozenset(
    """
    _name_or_path _attn_implementation architectures auto_map dtype torch_dtype transformers_version use_cache
    use_grouped_topk
    bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id id2label is_decoder label2id length_penalty max_length
    min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_scores prefix problem_type remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tokenizer_class top_k top_p torchscript typical_p use_bfloat16
    """.split()
)
TEXT_KEYS = (
    SIZES | NUMBERS | FLAGS | TOKENS | GROUPS | SECTIONS | STATED.keys() | FIXED.keys() | POSITIONS | BOOKKEEPING
)

LINEAR_FIXED: dict[str, Json] = {"use_full_rank_gate": True}
LINEAR_KEYS = LINEAR_FIXED.keys() | {
    "full_attn_layers",
    "kda_layers",
    "num_heads",
    "head_dim",
    "short_conv_kernel_size",
    "gate_lower_bound",
}

TOP_FIXED: dict[str, Json] = {"model_type": MODEL_TYPE, "tie_word_embeddings": False}
TOP_KEYS = (
    TOP_FIXED.keys()
    | TOKENS
    | {"text_config", "vision_config", "quantization_config"}
    | frozenset(
        """
        _name_or_path _attn_implementation architectures auto_map dtype torch_dtype transformers_version ignore_index
        image_placeholder media_placeholder_token_id use_cache
        """.split()
    )
)

"""The configuration of the released Kimi K3 and the tensors of its vision part, as facts to test against."""

from __future__ import annotations

import math

from quantaudit.core.serial import Json

NUM_KEYS = 497_220
NUM_TEXT_KEYS_OUTSIDE_EXPERTS = 2_460
NUM_EXPERT_MATRICES = 247_296
TOTAL_BYTES = 1_560_860_324_864
A_LOG_LENGTH = 128
BYTES_PER_EXPERT = 17_547_264

# Shapes of the vision tower and its projector, all BF16, with how often each is there.
VISION = [
    *[((4096, 1024), 27), ((1024, 4096), 27), ((1024,), 54), ((1024, 1536), 27), ((4608, 1024), 27), ((1024,), 1)],
    *[((64, 64, 1024), 1), ((1024, 3, 14, 14), 1), ((7168,), 1), ((4096, 4096), 1), ((7168, 4096), 1)],
]


def vision_bytes() -> int:
    """Returns the size of the tensors outside the text model."""
    return sum(2 * math.prod(shape) * count for shape, count in VISION)


def config() -> dict[str, Json]:
    """Returns the config.json of the release."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"},
        "bos_token_id": 163584,
        "dtype": "bfloat16",
        "eos_token_id": 163586,
        "ignore_index": -100,
        "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": 163605,
        "model_type": "kimi_k3",
        "pad_token_id": 163839,
        "text_config": _sizes() | _fixed() | _bookkeeping(),
        "tie_word_embeddings": False,
        "vision_config": {"patch_size": 14, "vt_num_hidden_layers": 27},
    }


def _sizes() -> dict[str, Json]:
    full: list[Json] = [*range(4, 93, 4), 93]
    kda: list[Json] = [layer for layer in range(1, 94) if layer not in full]
    return {
        "vocab_size": 163840,
        "hidden_size": 7168,
        "num_hidden_layers": 93,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "intermediate_size": 33792,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "rms_norm_eps": 1e-05,
        "initializer_range": 0.02,
        "max_position_embeddings": 1048576,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "routed_scaling_factor": 1.0,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_expert_group": 1,
        "topk_group": 1,
        "linear_attn_config": {
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
            "full_attn_layers": full,
            "kda_layers": kda,
        },
    }


def _fixed() -> dict[str, Json]:
    return {
        "model_type": "kimi_linear",
        "hidden_act": "situ",
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_renormalize": True,
        "use_grouped_topk": True,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "quantization_config": quantization(),
    }


def _bookkeeping() -> dict[str, Json]:
    nothing: dict[str, Json] = dict.fromkeys(
        """
        bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id
        exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id prefix problem_type
        sep_token_id suppress_tokens task_specific_params tokenizer_class
        """.split()
    )
    off: dict[str, Json] = dict.fromkeys(
        """
        add_cross_attention do_sample early_stopping is_decoder is_encoder_decoder output_attentions
        output_hidden_states output_scores remove_invalid_values return_dict_in_generate tf_legacy_loss
        tie_encoder_decoder torchscript use_bfloat16
        """.split(),
        False,
    )
    return {
        **nothing,
        **off,
        "_name_or_path": "",
        "architectures": ["KimiLinearForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiLinearConfig"},
        "bos_token_id": 163584,
        "chunk_size_feed_forward": 0,
        "diversity_penalty": 0.0,
        "dtype": "bfloat16",
        "encoder_no_repeat_ngram_size": 0,
        "eos_token_id": 163586,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "length_penalty": 1.0,
        "max_length": 20,
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "num_beam_groups": 1,
        "num_beams": 1,
        "num_return_sequences": 1,
        "pad_token_id": 163839,
        "pruned_heads": {},
        "repetition_penalty": 1.0,
        "return_dict": True,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "transformers_version": "4.56.2",
        "typical_p": 1.0,
        "use_cache": True,
    }


def quantization() -> dict[str, Json]:
    """Returns the quantization_config of the release, with its incomplete ignore list."""
    return {
        "config_groups": {
            "group_0": {
                "format": "mxfp4-pack-quantized",
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": False,
                    "group_size": 32,
                    "num_bits": 4,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "scale_dtype": "torch.uint8",
                    "strategy": "group",
                    "symmetric": True,
                    "type": "float",
                    "zp_dtype": None,
                },
            }
        },
        "format": "mxfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }

"""A `ModelConfig` as the config.json of a Kimi K3 checkpoint: the inverse of `config_json`, text model only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from quantaudit.checkpoint import config_keys as keys
from quantaudit.checkpoint.declaring import declare_packings, declare_release
from quantaudit.checkpoint.names import ExpertStack, expert_stacks
from quantaudit.checkpoint.packed import Packing
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.model.config import LinearAttentionConfig, ModelConfig

_DTYPE = "bfloat16"
_DEFAULT_EPS = 1e-6


def export_config(config: ModelConfig, *, is_packed: bool) -> bytes:
    """Returns the bytes of a config.json.

    Args:
        config: The model.
        is_packed: Whether to declare the routed experts as `mxfp4-pack-quantized`.

    Raises:
        InputError: If the model has a constant that this file has no key for.
    """
    return _export(config, declare_release() if is_packed else None)


def export_packed_config(
    config: ModelConfig, packings: Mapping[ExpertStack, Packing], *, is_partial: bool = False
) -> bytes:
    """Returns the bytes of a config.json that declares experts as packed.

    Args:
        config: The model.
        packings: How stacks are packed; nothing is declared where it is empty.
        is_partial: Whether stacks that are not packed are meant to be: then those that are get named.

    Raises:
        InputError: As `export_config`, or if one configuration cannot declare them all.
    """
    is_partial = is_partial and len(packings) < len(expert_stacks(config))
    return _export(config, declare_packings(packings, is_partial=is_partial) if packings else None)


def _export(config: ModelConfig, quantization: dict[str, Json] | None) -> bytes:
    _check_expressible(config)
    tokens: dict[str, Json] = {key: getattr(config, key) for key in sorted(keys.TOKENS)}
    top: dict[str, Json] = {
        "architectures": [keys.ARCHITECTURE],
        "dtype": _DTYPE,
        "text_config": _text(config, tokens) | ({} if quantization is None else {"quantization_config": quantization}),
        **keys.TOP_FIXED,
        **tokens,
    }
    return (json.dumps(top, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _text(config: ModelConfig, tokens: dict[str, Json]) -> dict[str, Json]:
    names = {field.name for field in fields(ModelConfig)} & (keys.SIZES | keys.NUMBERS | keys.FLAGS)
    return {
        **{name: getattr(config, name) for name in names},
        **keys.STATED,
        **keys.FIXED,
        **tokens,
        "architectures": [keys.TEXT_ARCHITECTURE],
        "dtype": _DTYPE,
        "num_key_value_heads": config.num_attention_heads,
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "linear_attn_config": _linear_attention(config),
    }


def _linear_attention(config: ModelConfig) -> dict[str, Json]:
    linear = config.linear_attn_config
    return {
        **keys.LINEAR_FIXED,
        "full_attn_layers": list(linear.full_attn_layers),
        "kda_layers": [layer + 1 for layer in range(config.num_hidden_layers) if config.is_kda_layer(layer)],
        "num_heads": linear.num_heads,
        "head_dim": linear.head_dim,
        "short_conv_kernel_size": linear.short_conv_kernel_size,
        "gate_lower_bound": linear.gate_lower_bound,
    }


def _check_expressible(config: ModelConfig) -> None:
    linear: LinearAttentionConfig = config.linear_attn_config
    constants = {"low_rank_norm_eps": config.low_rank_norm_eps, "qk_l2_eps": linear.qk_l2_eps}
    for name, value in constants.items():
        if value != _DEFAULT_EPS:
            raise InputError(
                f"a model with {name} = {value}",
                expected=f"{_DEFAULT_EPS}, which the released code fixes without a key in config.json",
                fix="a checkpoint in this layout cannot say otherwise",
            )

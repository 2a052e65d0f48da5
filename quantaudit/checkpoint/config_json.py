"""config.json of a Kimi K3 checkpoint, read into `ModelConfig`. The text model is under `text_config`.

Two constants of the model are not in the file, because the released code does not read them from there: the epsilon
of the two low-rank norms and the one of the query and key normalisation. They keep their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quantaudit.checkpoint import config_keys as keys
from quantaudit.checkpoint.config_fields import Fields
from quantaudit.checkpoint.declared import Declared, parse_declared
from quantaudit.checkpoint.file_range import read_whole
from quantaudit.checkpoint.strict_json import parse_object
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.model.config import LinearAttentionConfig, ModelConfig

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 1 << 24
MAX_LAYERS = 1024
MAX_EXPERTS = 1 << 14
MAX_EXPERTS_OF_ALL_LAYERS = 1 << 18
MAX_POSITIONS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """A configuration: the model, and the quantization it declares (`None` if it declares none)."""

    model: ModelConfig
    declared: Declared | None


def read_config(folder: Path) -> CheckpointConfig:
    """Reads the config.json of a checkpoint folder.

    Raises:
        InputError: If it is missing, is not strict JSON, or says what this stack does not implement.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise InputError(f"{folder} has no {CONFIG_FILE}", expected="the model's configuration", fix="copy it there")
    return parse_config(parse_object(read_whole(path, MAX_CONFIG_BYTES), str(path)), str(path))


def parse_config(values: dict[str, Json], where: str) -> CheckpointConfig:
    """Checks a parsed config.json and returns what it says.

    Args:
        values: The whole object.
        where: The file, for messages.

    Raises:
        InputError: For an unknown key that could matter, a value that is not implemented, or impossible sizes.
    """
    top = Fields(where=where, values=values)
    top.value("model_type")
    top.require(keys.TOP_FIXED)
    top.refuse_unknown(keys.TOP_KEYS)
    text = top.section("text_config")
    for key in keys.STATED:
        text.value(key)
    text.require(keys.STATED | keys.FIXED)
    text.refuse_unknown(keys.TEXT_KEYS)
    _check_heads(text)
    _check_expert_groups(text)
    model = _model(text, top)
    if not model.moe_layers():
        text.refuse("first_k_dense_replace", "a layer with routed experts: without one there is nothing to audit")
    if len(model.moe_layers()) * model.num_experts > MAX_EXPERTS_OF_ALL_LAYERS:
        text.refuse("num_experts", f"at most {MAX_EXPERTS_OF_ALL_LAYERS} experts over all layers")
    return CheckpointConfig(model=model, declared=_declared(text, top))


def _model(text: Fields, top: Fields) -> ModelConfig:
    layers = text.size("num_hidden_layers", high=MAX_LAYERS)
    experts = text.size("num_experts", high=MAX_EXPERTS)
    vocab = text.size("vocab_size")
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=text.size("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=text.size("num_attention_heads"),
        intermediate_size=text.size("intermediate_size"),
        first_k_dense_replace=text.size("first_k_dense_replace", low=0),
        moe_layer_freq=text.size("moe_layer_freq"),
        activation_situ_beta=_beta(text, "activation_situ_beta") or 0.0,
        activation_situ_linear_beta=_linear_beta(text),
        attn_res_block_size=text.size("attn_res_block_size"),
        rms_norm_eps=text.positive("rms_norm_eps"),
        initializer_range=text.positive("initializer_range"),
        num_experts=experts,
        num_experts_per_token=text.size("num_experts_per_token", high=experts),
        num_shared_experts=text.size("num_shared_experts"),
        moe_intermediate_size=text.size("moe_intermediate_size"),
        routed_expert_hidden_size=text.size("routed_expert_hidden_size"),
        latent_moe_use_norm=text.flag("latent_moe_use_norm"),
        moe_renormalize=text.flag("moe_renormalize"),
        routed_scaling_factor=text.positive("routed_scaling_factor"),
        q_lora_rank=text.size("q_lora_rank"),
        kv_lora_rank=text.size("kv_lora_rank"),
        qk_nope_head_dim=text.size("qk_nope_head_dim"),
        qk_rope_head_dim=text.size("qk_rope_head_dim"),
        v_head_dim=text.size("v_head_dim"),
        linear_attn_config=_linear_attention(text.section("linear_attn_config"), layers),
        bos_token_id=_token(text, top, "bos_token_id", vocab),
        eos_token_id=_token(text, top, "eos_token_id", vocab),
        pad_token_id=_token(text, top, "pad_token_id", vocab),
        max_position_embeddings=text.size("max_position_embeddings", high=MAX_POSITIONS),
    )


def _linear_attention(fields: Fields, num_layers: int) -> LinearAttentionConfig:
    fields.value("use_full_rank_gate")
    fields.require(keys.LINEAR_FIXED)
    fields.refuse_unknown(keys.LINEAR_KEYS)
    full, kda = fields.integers("full_attn_layers", num_layers), fields.integers("kda_layers", num_layers)
    if sorted(full + kda) != list(range(1, num_layers + 1)):
        raise InputError(
            f"{fields.where} has {len(full)} full_attn_layers and {len(kda)} kda_layers, no partition of the layers",
            expected=f"each layer from 1 to {num_layers} in exactly one of the two lists (they count from 1)",
            fix="correct the lists",
        )
    bound = fields.number("gate_lower_bound")
    if bound >= 0:
        fields.refuse("gate_lower_bound", "a number below 0")
    return LinearAttentionConfig(
        full_attn_layers=tuple(sorted(full)),
        num_heads=fields.size("num_heads"),
        head_dim=fields.size("head_dim"),
        short_conv_kernel_size=fields.size("short_conv_kernel_size", high=1024),
        gate_lower_bound=bound,
    )


def _beta(text: Fields, key: str) -> float | None:
    if text.value(key) is None:
        return None
    number = text.number(key)
    if number < 0:
        text.refuse(key, "null or a number of at least 0")
    return number


def _linear_beta(text: Fields) -> float | None:
    beta = _beta(text, "activation_situ_linear_beta")
    if beta == 0:
        text.refuse("activation_situ_linear_beta", "null (the branch stays linear) or a number above 0")
    return beta


def _token(text: Fields, top: Fields, key: str, vocab_size: int) -> int:
    """Returns a special token from the text model, else from the top level, else 0."""
    source = text if text.values.get(key) is not None else top
    return source.size(key, low=0, high=vocab_size - 1) if source.values.get(key) is not None else 0


def _check_heads(text: Fields) -> None:
    if text.size("num_key_value_heads") != text.size("num_attention_heads"):
        text.refuse("num_key_value_heads", "num_attention_heads: latent attention has a key for every head")


def _check_expert_groups(text: Fields) -> None:
    groups = text.size("num_expert_group") if "num_expert_group" in text.values else 1
    kept = text.size("topk_group") if "topk_group" in text.values else 1
    if groups > 1 and groups > kept:
        text.refuse("num_expert_group", f"at most topk_group = {kept}: routing limited to groups is not implemented")


def _declared(text: Fields, top: Fields) -> Declared | None:
    """Returns the declaration of the text model; a copy at the top level (as some tools write) must agree."""
    places = [f for f in (text, top) if f.values.get("quantization_config") is not None]
    found = [parse_declared(fields.section("quantization_config")) for fields in places]
    if len(found) == 2 and found[0] != found[1]:
        top.refuse("quantization_config", "the same as in text_config")
    return found[0] if found else None

"""A config.json is read into the model it describes, or refused with the key, the value and the cure."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import pytest

from quantaudit.checkpoint.config_export import export_config
from quantaudit.checkpoint.config_json import CheckpointConfig, parse_config, read_config
from quantaudit.checkpoint.strict_json import parse_object
from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.model.config import LinearAttentionConfig, ModelConfig
from tests.checkpoint import released
from tests.checkpoint.tiny import TINY

Change = Callable[[dict[str, Json]], object]


def text_of(values: dict[str, Json]) -> dict[str, Json]:
    """Returns the text_config."""
    return cast("dict[str, Json]", values["text_config"])


def parse(*changes: Change, top: Change | None = None) -> CheckpointConfig:
    """Parses the released configuration after changes to its text_config, or to the whole."""
    values = copy.deepcopy(released.config())
    for change in changes:
        change(text_of(values))
    if top is not None:
        top(values)
    return parse_config(values, "config.json")


def refused(*changes: Change, top: Change | None = None) -> str:
    """Returns the message with which the changed configuration is refused."""
    with pytest.raises(InputError) as caught:
        parse(*changes, top=top)
    assert caught.value.expected and caught.value.fix
    assert str(caught.value).startswith("config.json") and str(caught.value).isprintable()
    return str(caught.value)


def linear_of(text: dict[str, Json]) -> dict[str, Json]:
    """Returns the linear_attn_config."""
    return cast("dict[str, Json]", text["linear_attn_config"])


def setting(key: str, value: Json) -> Change:
    """Returns a change that sets one key."""
    return lambda values: values.update({key: value})


def without(key: str) -> Change:
    """Returns a change that removes one key."""
    return lambda values: values.pop(key)


def test_the_released_configuration_is_read() -> None:
    config = parse().model
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (93, 7168, 163840)
    assert (config.num_experts, config.num_experts_per_token, config.num_shared_experts) == (896, 16, 2)
    assert (config.routed_expert_hidden_size, config.moe_intermediate_size) == (3584, 3072)
    assert (config.activation_situ_beta, config.activation_situ_linear_beta) == (4.0, 25.0)
    assert (config.low_rank_norm_eps, config.rms_norm_eps) == (1e-6, 1e-5)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (163584, 163586, 163839)
    assert [layer for layer in range(93) if not config.is_kda_layer(layer)] == [*range(3, 92, 4), 92]
    assert config.moe_layers() == tuple(range(1, 93))
    assert config.linear_attn_config.gate_lower_bound == -5.0


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_exported_is_read_back(is_packed: bool) -> None:
    values = parse_object(export_config(TINY, is_packed=is_packed), "config.json")
    config = parse_config(values, "config.json")
    assert config.model == TINY
    assert (config.declared is not None) == is_packed
    assert values["architectures"] == ["KimiK3ForConditionalGeneration"]
    assert "quantization_config" not in values and ("quantization_config" in text_of(values)) == is_packed


def test_the_export_declares_what_the_release_declares() -> None:
    values = parse_object(export_config(TINY, is_packed=True), "config.json")
    assert text_of(values)["quantization_config"] == released.quantization()


def test_every_exported_key_is_one_of_the_release() -> None:
    values = parse_object(export_config(TINY, is_packed=True), "config.json")
    assert values.keys() <= released.config().keys()
    unknown = text_of(values).keys() - text_of(released.config()).keys()
    assert unknown == {"rope_scaling"}


def test_the_tiny_configuration_differs_from_every_default() -> None:
    # Otherwise a field that is dropped on the way would come back as its default and go unnoticed.
    same = {
        f.name
        for kind, value in ((ModelConfig, TINY), (LinearAttentionConfig, TINY.linear_attn_config))
        for f in fields(kind)
        if f.default == getattr(value, f.name)
    }
    assert same == {"first_k_dense_replace", "low_rank_norm_eps", "latent_moe_use_norm", "qk_l2_eps"}


@pytest.mark.parametrize(
    "config", [replace(TINY, first_k_dense_replace=0), replace(TINY, latent_moe_use_norm=False)], ids=["dense", "norm"]
)
def test_fields_at_their_default_are_exported_too(config: ModelConfig) -> None:
    values = parse_object(export_config(config, is_packed=False), "config.json")
    assert parse_config(values, "config.json").model == config


@pytest.mark.parametrize(
    "config",
    [
        replace(TINY, low_rank_norm_eps=1e-5),
        replace(TINY, linear_attn_config=replace(TINY.linear_attn_config, qk_l2_eps=0.0)),
    ],
    ids=["low_rank_norm_eps", "qk_l2_eps"],
)
def test_a_constant_without_a_key_cannot_be_exported(config: ModelConfig) -> None:
    with pytest.raises(InputError, match="fixes without a key"):
        export_config(config, is_packed=False)


def test_beta_of_null_or_zero_means_one_and_linear_beta_of_null_means_none() -> None:
    betas: tuple[Json, ...] = (None, 0, 0.0)
    for beta in betas:
        assert parse(setting("activation_situ_beta", beta)).model.activation_situ_beta == 0.0
    assert parse(lambda t: t.update(activation_situ_linear_beta=None)).model.activation_situ_linear_beta is None
    assert "activation_situ_linear_beta = 0" in refused(lambda t: t.update(activation_situ_linear_beta=0))


def test_special_tokens_come_from_the_top_level_where_the_text_model_has_none() -> None:
    assert parse(lambda t: t.pop("eos_token_id")).model.eos_token_id == 163586
    assert parse(lambda t: t.update(eos_token_id=5)).model.eos_token_id == 5


NOT_IMPLEMENTED: dict[str, Json] = {
    "model_type": "kimi_linear_2",
    "hidden_act": "silu",
    "mla_use_nope": False,
    "mla_use_output_gate": False,
    "moe_router_activation_func": "softmax",
    "topk_method": "greedy",
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "pruned_heads": {"1": [0]},
    "rope_scaling": {"type": "yarn", "factor": 4.0},
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(("key", "value"), NOT_IMPLEMENTED.items(), ids=NOT_IMPLEMENTED.keys())
def test_a_value_that_is_not_implemented_is_refused(key: str, value: Json) -> None:
    message = refused(setting(key, value))
    assert f"text_config has {key} = " in message


@pytest.mark.parametrize(("key", "value"), [("num_nextn_predict_layers", False), ("mla_use_nope", 1)])
def test_numbers_and_flags_do_not_stand_for_each_other(key: str, value: Json) -> None:
    assert f"has {key} = " in refused(setting(key, value))


def test_low_rank_gate_and_other_top_level_models_are_refused() -> None:
    assert "use_full_rank_gate = false" in refused(lambda t: linear_of(t).update(use_full_rank_gate=False))
    assert 'model_type = "kimi_k2"' in refused(top=lambda v: v.update(model_type="kimi_k2"))
    assert "tie_word_embeddings = true" in refused(top=lambda v: v.update(tie_word_embeddings=True))


def test_a_text_model_on_its_own_is_refused() -> None:
    with pytest.raises(InputError, match=r'model_type = "kimi_linear"; expected "kimi_k3"'):
        parse_config(text_of(released.config()), "config.json")


@pytest.mark.parametrize(("groups", "kept", "is_good"), [(1, 1, True), (4, 4, True), (8, 4, False), (2, 1, False)])
def test_routing_limited_to_groups_is_refused(groups: int, kept: int, is_good: bool) -> None:
    def change(text: dict[str, Json]) -> None:
        text.update(num_expert_group=groups, topk_group=kept)

    if is_good:
        parse(change)
    else:
        assert f"num_expert_group = {groups}; expected at most topk_group = {kept}" in refused(change)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("num_experts_per_tok", "did you mean num_experts_per_token?"),
        ("swiglu_limit", "remove it if it changes nothing"),
        ("attention_sink", "remove it"),
        ("n_group", "remove it"),
    ],
)
def test_an_unknown_key_is_refused_because_it_may_matter(key: str, hint: str) -> None:
    message = refused(lambda t: t.update({key: 1}))
    assert f"config.json, text_config has the unknown key '{key}'" in message and hint in message


def test_unknown_keys_are_refused_at_every_level() -> None:
    assert "linear_attn_config has the unknown key 'conv_bias'" in refused(
        lambda t: linear_of(t).update(conv_bias=True)
    )
    assert "config.json has the unknown key 'adapter'" in refused(top=lambda v: v.update(adapter={}))
    assert "has 3 unknown keys, first 'x1'" in refused(lambda t: t.update(x1=1, x2=2, x3=3))


def test_what_a_newer_library_adds_when_it_saves_again_is_harmless() -> None:
    again: dict[str, Json] = {"head_dim": 74, "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default"}}
    assert parse(lambda t: t.update(again)) == parse()
    copied = parse(top=lambda v: v.update(quantization_config=released.quantization(), transformers_version="5.12.1"))
    assert copied == parse()


MISSING_OK = {
    "quantization_config", "num_expert_group", "topk_group", "bos_token_id", "eos_token_id", "pad_token_id",
    "topk_method", "num_nextn_predict_layers", "tie_word_embeddings", "is_encoder_decoder", "add_cross_attention",
    "tie_encoder_decoder", "pruned_heads",
}  # fmt: skip


def test_every_key_that_decides_the_computation_must_be_there() -> None:
    harmless = set()
    for key in text_of(released.config()):
        try:
            parse(without(key))
        except InputError as error:
            assert f"text_config lacks {key}" in str(error)
        else:
            harmless.add(key)
    stated = text_of(released.config()).keys()
    decisive = stated - harmless
    assert len(decisive) == 33 and harmless >= MISSING_OK and not decisive & MISSING_OK


BAD_SIZES: dict[str, Json] = {
    "zero": 0, "negative": -1, "float": 64.0, "text": "64", "null": None, "true": True, "list": [64], "huge": 2**40,
    "beyond float": 10**400,
}  # fmt: skip


@pytest.mark.parametrize("value", BAD_SIZES.values(), ids=BAD_SIZES.keys())
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_experts", "kv_lora_rank"])
def test_a_size_that_is_none_is_refused(key: str, value: Json) -> None:
    assert f"has {key} = " in refused(setting(key, value))


BAD_NUMBERS: dict[str, Json] = {
    "text": "1e-5", "null": None, "true": True, "infinite": float("inf"), "NaN": float("nan"), "huge": 10**400,
    "negative": -1.0, "zero": 0,
}  # fmt: skip


@pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
@pytest.mark.parametrize("key", ["rms_norm_eps", "routed_scaling_factor"])
def test_a_number_that_is_none_is_refused(key: str, value: Json) -> None:
    assert f"has {key} = " in refused(setting(key, value))


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_flag_is_true_or_false(value: Json) -> None:
    assert "latent_moe_use_norm" in refused(lambda t: t.update(latent_moe_use_norm=value))


@pytest.mark.parametrize("bound", [0, 5.0, None, "-5"])
def test_the_gate_is_bounded_from_below_by_a_negative_number(bound: Json) -> None:
    assert "gate_lower_bound" in refused(lambda t: linear_of(t).update(gate_lower_bound=bound))


BAD_LAYERS: dict[str, tuple[list[Json], list[Json]]] = {
    "counted from zero": ([3, 4], [0, 1, 2]),
    "one missing": ([4, 5], [1, 2]),
    "one twice": ([4, 5], [1, 2, 3, 4]),
    "repeated in a list": ([4, 4, 5], [1, 2, 3]),
    "beyond the last": ([4, 6], [1, 2, 3, 5]),
    "both empty": ([], []),
    "float": ([4.0, 5], [1, 2, 3]),
    "true": ([4, 5], [True, 2, 3]),
}


@pytest.mark.parametrize(("full", "kda"), BAD_LAYERS.values(), ids=BAD_LAYERS.keys())
def test_the_two_lists_must_partition_the_layers(full: list[Json], kda: list[Json]) -> None:
    def change(text: dict[str, Json]) -> None:
        text.update(num_hidden_layers=5)
        linear_of(text).update(full_attn_layers=full, kda_layers=kda)

    assert "layers" in refused(change)


def test_more_experts_per_token_than_experts_are_refused() -> None:
    assert "num_experts_per_token = 16; expected an integer from 1 to 8" in refused(lambda t: t.update(num_experts=8))


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    assert "eos_token_id = 163840" in refused(lambda t: t.update(eos_token_id=163840))


def test_more_experts_than_any_checkpoint_has_are_refused_before_they_are_listed() -> None:
    assert "experts over all layers" in refused(setting("num_experts", 1 << 14))


def test_a_model_without_routed_experts_is_refused() -> None:
    assert "nothing to audit" in refused(lambda t: t.update(first_k_dense_replace=93))


QUANTIZATION: dict[str, tuple[str, Json]] = {
    "format": ("format", "nvfp4-pack-quantized"),
    "method": ("quant_method", "gptq"),
    "status": ("quantization_status", "frozen"),
    "cache": ("kv_cache_scheme", {"num_bits": 8}),
    "unknown": ("transform", {}),
    "sparsity": ("sparsity_config", {"format": "sparse-24-bitmask"}),
    "no groups": ("config_groups", {}),
    "groups not an object": ("config_groups", []),
}


@pytest.mark.parametrize(("key", "value"), QUANTIZATION.values(), ids=QUANTIZATION.keys())
def test_a_quantization_that_cannot_be_read_is_refused(key: str, value: Json) -> None:
    def change(text: dict[str, Json]) -> None:
        cast("dict[str, Json]", text["quantization_config"])[key] = value

    assert "quantization_config" in refused(change)


WEIGHTS: dict[str, Json] = {
    "num_bits": 8, "type": "int", "group_size": 16, "strategy": "channel", "symmetric": False, "actorder": "group",
    "scale_dtype": "torch.float32", "dynamic": True,
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WEIGHTS.items(), ids=WEIGHTS.keys())
def test_weights_in_another_scheme_are_refused(key: str, value: Json) -> None:
    quantization = json.loads(json.dumps(released.quantization()))
    quantization["config_groups"]["group_0"]["weights"][key] = value
    assert f"weights has {key} = " in refused(lambda t: t.update(quantization_config=quantization))


def test_two_declarations_must_agree() -> None:
    other = json.loads(json.dumps(released.quantization()))
    other["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    assert "the same as in text_config" in refused(top=lambda v: v.update(quantization_config=other))


def test_declared_activations_are_carried() -> None:
    quantization = json.loads(json.dumps(released.quantization()))
    quantization["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "float"}
    declared = parse(lambda t: t.update(quantization_config=quantization)).declared
    assert declared is not None and declared.has_activations


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_config(tmp_path)


def test_a_file_too_large_to_be_a_configuration_is_not_parsed(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(InputError, match=r"has 1073741824 bytes; expected at most"):
        read_config(tmp_path)


def test_damaged_configurations_are_refused_or_read(tmp_path: Path) -> None:
    good = json.dumps(released.config()).encode()
    rng = random.Random(2)
    refusals = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "config.json").write_bytes(data)
        try:
            read_config(tmp_path)
        except InputError:
            refusals += 1
    assert refusals > 200

"""The sizes that follow from a configuration: the published ones of the released model, and those of a strange one."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.model.config import ModelConfig
from quantaudit.model.lm import LanguageModel
from tests.model.released import RELEASED
from tests.model.small_models import STRANGE


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a model, which is never allocated."""
    with torch.device("meta"):
        model = LanguageModel(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def shapes() -> dict[str, tuple[int, ...]]:
    return shapes_of(RELEASED)


def billions(count: float) -> float:
    return round(count / 1e9, 2)


def test_layer_map() -> None:
    kda = [layer for layer in range(93) if RELEASED.is_kda_layer(layer)]
    assert len(kda) == 69
    assert not any(RELEASED.is_kda_layer(layer) for layer in (3, 7, 87, 91, 92))
    assert RELEASED.moe_layers() == tuple(range(1, 93))
    assert [layer for layer in range(93) if RELEASED.opens_block(layer)] == [0, 12, 24, 36, 48, 60, 72, 84]


def test_parameter_counts(shapes: dict[str, tuple[int, ...]]) -> None:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts.w" in name)
    active = total - experts + experts * 16 / 896
    assert billions(total) == 2779.48
    assert billions(experts) == 2722.74
    assert billions(total - experts) == 56.74
    assert billions(active) == 105.36
    assert billions(active - sizes["model.embed_tokens.weight"]) == 104.19


def test_memory_of_a_sequence() -> None:
    kda = RELEASED.linear_attn_config
    assert kda.num_heads * kda.head_dim**2 * 4 == 6_291_456
    assert RELEASED.kv_lora_rank + RELEASED.qk_rope_head_dim == 576


def test_published_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    kda, mla, moe = "model.layers.1.self_attn.", "model.layers.3.self_attn.", "model.layers.1.block_sparse_moe."
    published = {
        f"{kda}q_proj.weight": (12288, 7168),
        f"{kda}q_conv1d.weight": (12288, 1, 4),
        f"{kda}b_proj.weight": (96, 7168),
        f"{kda}f_a_proj.weight": (128, 7168),
        f"{kda}f_b_proj.weight": (12288, 128),
        f"{kda}g_proj.weight": (12288, 7168),
        f"{kda}A_log": (96,),
        f"{kda}dt_bias": (12288,),
        f"{kda}o_norm.weight": (128,),
        f"{kda}o_proj.weight": (7168, 12288),
        f"{mla}q_a_proj.weight": (1536, 7168),
        f"{mla}q_b_proj.weight": (18432, 1536),
        f"{mla}kv_a_proj_with_mqa.weight": (576, 7168),
        f"{mla}kv_b_proj.weight": (24576, 512),
        f"{mla}g_proj.weight": (12288, 7168),
        f"{mla}o_proj.weight": (7168, 12288),
        f"{moe}gate.weight": (896, 7168),
        f"{moe}gate.e_score_correction_bias": (896,),
        f"{moe}routed_expert_down_proj.weight": (3584, 7168),
        f"{moe}routed_expert_norm.weight": (3584,),
        f"{moe}routed_expert_up_proj.weight": (7168, 3584),
        f"{moe}shared_experts.gate_proj.weight": (6144, 7168),
        f"{moe}experts.w1.weight": (896, 3072, 3584),
        f"{moe}experts.w2.weight": (896, 3584, 3072),
        "model.layers.0.mlp.gate_proj.weight": (33792, 7168),
        "model.layers.0.self_attention_res_proj.weight": (1, 7168),
        "model.output_attn_res_proj.weight": (1, 7168),
        "lm_head.weight": (163840, 7168),
    }
    assert {name: shapes[name] for name in published} == published
    # An expert in 4-bit codes with a scale byte for 32 of them.
    elements = sum(math.prod(shapes[f"{moe}experts.{matrix}.weight"][1:]) for matrix in ("w1", "w2", "w3"))
    assert elements // 2 + elements // 32 == 17_547_264


def test_shapes_of_a_configuration_in_which_nothing_is_as_released() -> None:
    shapes = shapes_of(STRANGE)
    kda, mla, moe = "model.layers.0.self_attn.", "model.layers.1.self_attn.", "model.layers.2.block_sparse_moe."
    expected = {
        f"{kda}q_proj.weight": (4 * 7, 20),
        f"{kda}v_proj.weight": (4 * 7, 20),
        f"{kda}k_conv1d.weight": (4 * 7, 1, 3),
        f"{kda}b_proj.weight": (4, 20),
        f"{kda}f_a_proj.weight": (7, 20),
        f"{kda}f_b_proj.weight": (4 * 7, 7),
        f"{kda}g_proj.weight": (4 * 7, 20),
        f"{kda}A_log": (4,),
        f"{kda}dt_bias": (4 * 7,),
        f"{kda}o_norm.weight": (7,),
        f"{kda}o_proj.weight": (20, 4 * 7),
        f"{mla}q_a_proj.weight": (11, 20),
        f"{mla}q_a_layernorm.weight": (11,),
        f"{mla}q_b_proj.weight": (3 * (5 + 3), 11),
        f"{mla}kv_a_proj_with_mqa.weight": (8 + 3, 20),
        f"{mla}kv_a_layernorm.weight": (8,),
        f"{mla}kv_b_proj.weight": (3 * (5 + 6), 8),
        f"{mla}g_proj.weight": (3 * 6, 20),
        f"{mla}o_proj.weight": (20, 3 * 6),
        f"{moe}gate.weight": (9, 20),
        f"{moe}gate.e_score_correction_bias": (9,),
        f"{moe}routed_expert_down_proj.weight": (10, 20),
        f"{moe}routed_expert_norm.weight": (10,),
        f"{moe}routed_expert_up_proj.weight": (20, 10),
        f"{moe}shared_experts.gate_proj.weight": (3 * 13, 20),
        f"{moe}shared_experts.down_proj.weight": (20, 3 * 13),
        f"{moe}experts.w1.weight": (9, 13, 10),
        f"{moe}experts.w2.weight": (9, 10, 13),
        f"{moe}experts.w3.weight": (9, 13, 10),
        "model.layers.0.mlp.up_proj.weight": (26, 20),
        "model.embed_tokens.weight": (37, 20),
        "lm_head.weight": (37, 20),
    }
    assert {name: shapes[name] for name in expected} == expected

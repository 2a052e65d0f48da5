"""Names, shapes and dtypes of the layout are those of the model and of the released file."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from quantaudit.checkpoint.config_json import parse_config
from quantaudit.checkpoint.names import (
    ExpertTensor,
    Part,
    Role,
    dense_slots,
    expert_shape,
    expert_stacks,
    parse_expert,
    parse_stack,
)
from quantaudit.core.errors import InputError
from quantaudit.model.config import ModelConfig
from quantaudit.model.lm import LanguageModel
from tests.checkpoint import released
from tests.checkpoint.tiny import TINY

K3 = parse_config(released.config(), "config.json").model


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, latent_moe_use_norm=False), replace(TINY, first_k_dense_replace=0, moe_layer_freq=1)],
    ids=["tiny", "no latent norm", "no dense layer"],
)
def test_slots_and_stacks_are_the_parameters_of_the_model(config: ModelConfig) -> None:
    with torch.device("meta"):
        parameters = {name: tuple(p.shape) for name, p in LanguageModel(config).named_parameters()}
    slots = {slot.parameter: slot.shape for slot in dense_slots(config)}
    stacks = {s.parameter: (config.num_experts, *expert_shape(config, s.role)) for s in expert_stacks(config)}
    assert not slots.keys() & stacks.keys()
    assert slots | stacks == parameters


def test_the_layout_has_the_keys_and_bytes_of_the_release() -> None:
    slots = list(dense_slots(K3))
    matrices = sum(K3.num_experts for _ in expert_stacks(K3))
    assert (len(slots), matrices) == (released.NUM_TEXT_KEYS_OUTSIDE_EXPERTS, released.NUM_EXPERT_MATRICES)
    assert len(slots) + 2 * matrices + sum(count for _, count in released.VISION) == released.NUM_KEYS
    expert = sum(math.prod(expert_shape(K3, role, part)) for role in Role for part in (Part.PACKED, Part.SCALE))
    assert expert == released.BYTES_PER_EXPERT
    dense = sum(
        (4 if s.is_float32 else 2) * (released.A_LOG_LENGTH if s.is_padded else math.prod(s.shape)) for s in slots
    )
    assert dense + expert * 92 * 896 + released.vision_bytes() == released.TOTAL_BYTES


def test_the_float32_tensors_are_those_of_the_release() -> None:
    wide = {slot.parameter.split(".", 3)[-1] for slot in dense_slots(K3) if slot.is_float32}
    convolutions = {f"self_attn.{x}_conv1d.weight" for x in "qkv"}
    rest = {"self_attn.A_log", "self_attn.dt_bias", "self_attn.o_norm.weight"}
    assert wide == convolutions | rest | {"block_sparse_moe.gate.e_score_correction_bias"}


@pytest.mark.parametrize(
    ("role", "part", "shape"),
    [
        (Role.GATE, Part.PACKED, (3072, 1792)),
        (Role.UP, Part.SCALE, (3072, 112)),
        (Role.DOWN, Part.PACKED, (3584, 1536)),
        (Role.DOWN, Part.SCALE, (3584, 96)),
        (Role.DOWN, Part.WEIGHT, (3584, 3072)),
    ],
)
def test_expert_shapes_are_those_of_the_release(role: Role, part: Part, shape: tuple[int, int]) -> None:
    assert expert_shape(K3, role, part) == shape


def test_expert_names_are_read_back() -> None:
    for role in Role:
        for part in Part:
            tensor = ExpertTensor(92, 895, role, part)
            assert parse_expert(tensor.name) == tensor
    for stack in expert_stacks(TINY):
        assert parse_stack(stack.parameter) == stack
    name = ExpertTensor(1, 0, Role.GATE, Part.PACKED).name
    assert name == "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed"


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.block_sparse_moe.experts.0.w1.weight",
        "language_model.model.layers.01.block_sparse_moe.experts.0.w1.weight",
        "language_model.model.layers.-1.block_sparse_moe.experts.0.w1.weight",
        "language_model.model.layers.1.block_sparse_moe.experts.\u0661.w1.weight",
        "language_model.model.layers.1.block_sparse_moe.experts.9999999999.w1.weight",
        "language_model.model.layers.1.block_sparse_moe.experts.0.w4.weight",
        "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_zero_point",
        "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight\n",
        "x.language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight",
    ],
)
def test_a_name_that_is_almost_one_is_none(name: str) -> None:
    assert parse_expert(name) is None


def test_packed_experts_need_whole_groups() -> None:
    config = replace(TINY, moe_intermediate_size=48)
    assert expert_shape(config, Role.GATE, Part.SCALE) == (48, 2)
    with pytest.raises(InputError, match="packed experts w2 with 48 inputs; expected a multiple of 32"):
        expert_shape(config, Role.DOWN, Part.PACKED)

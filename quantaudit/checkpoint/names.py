"""Every tensor of the layout: its name on disk, the parameter it belongs to, its shape and its dtype.

On disk a parameter is called `language_model.<parameter>`. The routed experts are the exception: the model stacks
them, `...experts.w1.weight [E, out, in]`, the disk has one matrix each, `...experts.7.w1.weight [out, in]`, or packed,

    ...experts.7.w1.weight_packed  U8 [out, in / 2]    two E2M1 codes a byte, the low nibble first
    ...experts.7.w1.weight_scale   U8 [out, in / 32]   E8M0, one a group of 32 inputs

as the release has them; `packed` lists the other ways to pack. All is BF16 but for the F32 tensors of the delta
attention and the router's bias. `A_log` is stored longer than it is: the values of the heads, then zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from quantaudit.core.errors import InputError
from quantaudit.model.config import ModelConfig

PREFIX = "language_model."
# Vision is no part of the text model; its tensors are left alone.
OTHER_MODALITIES = ("vision_tower.", "mm_projector.")
GROUP_SIZE = 32
CODES_PER_BYTE = 2


class Role(StrEnum):
    """The three matrices of an expert, by their names on disk."""

    GATE = "w1"
    DOWN = "w2"
    UP = "w3"


class Part(StrEnum):
    """What is stored of an expert matrix: itself, or its codes and scales."""

    WEIGHT = "weight"  # codes of 8 bits too
    PACKED = "weight_packed"
    SCALE = "weight_scale"
    SCALE_INV = "weight_scale_inv"  # another name for it
    SHAPE = "weight_shape"
    GLOBAL = "weight_global_scale"  # what scales are divided by
    ABOVE = "weight_scale_2"  # what scales are multiplied by


class ExpertTensor(NamedTuple):
    """One stored tensor of one expert; layer and expert count from 0."""

    layer: int
    expert: int
    role: Role
    part: Part

    @property
    def name(self) -> str:
        """Returns the name on disk."""
        return f"{PREFIX}model.layers.{self.layer}.block_sparse_moe.experts.{self.expert}.{self.role}.{self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter that is one tensor on disk.

    Attributes:
        parameter: Name in the model.
        shape: Shape in the model.
        is_float32: Whether the layout keeps it in F32 (else BF16).
        is_padded: Whether the disk may append zeros to it.
    """

    parameter: str
    shape: tuple[int, ...]
    is_float32: bool = False
    is_padded: bool = False

    @property
    def name(self) -> str:
        """Returns the name on disk."""
        return PREFIX + self.parameter


_NUMBER = "(0|[1-9][0-9]{0,5})"
_EXPERT = re.compile(
    rf"language_model\.model\.layers\.{_NUMBER}\.block_sparse_moe\.experts\.{_NUMBER}"
    rf"\.({'|'.join(Role)})\.({'|'.join(Part)})"
)
_STACKED = re.compile(rf"model\.layers\.{_NUMBER}\.block_sparse_moe\.experts\.({'|'.join(Role)})\.weight")


class ExpertStack(NamedTuple):
    """The stacked matrices of one role in one layer."""

    layer: int
    role: Role

    @property
    def parameter(self) -> str:
        """Returns the name of the parameter in the model."""
        return f"model.layers.{self.layer}.block_sparse_moe.experts.{self.role}.weight"


def parse_expert(name: str) -> ExpertTensor | None:
    """Returns what a name on disk says, if it is that of an expert tensor."""
    match = _EXPERT.fullmatch(name)
    return None if match is None else ExpertTensor(int(match[1]), int(match[2]), Role(match[3]), Part(match[4]))


def parse_stack(parameter: str) -> ExpertStack | None:
    """Returns what a parameter's name says, if it is that of stacked experts."""
    match = _STACKED.fullmatch(parameter)
    return None if match is None else ExpertStack(int(match[1]), Role(match[2]))


def expert_stacks(config: ModelConfig) -> tuple[ExpertStack, ...]:
    """Returns the stacks of all layers, in layer order."""
    return tuple(ExpertStack(layer, role) for layer in config.moe_layers() for role in Role)


def expert_shape(config: ModelConfig, role: Role, part: Part = Part.WEIGHT) -> tuple[int, int]:
    """Returns the shape of one expert's stored tensor.

    Raises:
        InputError: If a packed matrix has no whole number of groups.
    """
    latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
    rows, cols = (latent, width) if role is Role.DOWN else (width, latent)
    if part is Part.WEIGHT:
        return rows, cols
    if cols % GROUP_SIZE:
        raise InputError(
            f"packed experts {role} with {cols} inputs",
            expected=f"a multiple of {GROUP_SIZE}, the group size of MXFP4",
            fix="store these experts in bf16",
        )
    return rows, cols // (CODES_PER_BYTE if part is Part.PACKED else GROUP_SIZE)


def dense_slots(config: ModelConfig) -> Iterator[Slot]:
    """Yields every parameter except the routed experts, in model order."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield Slot(parameter="model.embed_tokens.weight", shape=(vocab, hidden))
    for layer in range(config.num_hidden_layers):
        yield from _layer_slots(config, layer)
    yield Slot(parameter="model.output_attn_res_norm.weight", shape=(hidden,))
    yield Slot(parameter="model.output_attn_res_proj.weight", shape=(1, hidden))
    yield Slot(parameter="model.norm.weight", shape=(hidden,))
    yield Slot(parameter="lm_head.weight", shape=(vocab, hidden))


def _layer_slots(config: ModelConfig, layer: int) -> Iterator[Slot]:
    hidden, at = config.hidden_size, f"model.layers.{layer}"
    for norm in ("self_attention_res_norm", "mlp_res_norm", "input_layernorm", "post_attention_layernorm"):
        yield Slot(parameter=f"{at}.{norm}.weight", shape=(hidden,))
    for query in ("self_attention_res_proj", "mlp_res_proj"):
        yield Slot(parameter=f"{at}.{query}.weight", shape=(1, hidden))
    attention = _kda_slots if config.is_kda_layer(layer) else _mla_slots
    yield from attention(config, f"{at}.self_attn")
    if config.is_moe_layer(layer):
        yield from _moe_slots(config, f"{at}.block_sparse_moe")
    else:
        yield from _mlp_slots(hidden, config.intermediate_size, f"{at}.mlp")


def _matrices(at: str, shapes: dict[str, tuple[int, ...]]) -> Iterator[Slot]:
    for module, shape in shapes.items():
        yield Slot(parameter=f"{at}.{module}.weight", shape=shape)


def _kda_slots(config: ModelConfig, at: str) -> Iterator[Slot]:
    linear, hidden = config.linear_attn_config, config.hidden_size
    width = linear.num_heads * linear.head_dim
    yield Slot(parameter=f"{at}.A_log", shape=(linear.num_heads,), is_float32=True, is_padded=True)
    yield Slot(parameter=f"{at}.dt_bias", shape=(width,), is_float32=True)
    for conv in ("q_conv1d", "k_conv1d", "v_conv1d"):
        shape = (width, 1, linear.short_conv_kernel_size)
        yield Slot(parameter=f"{at}.{conv}.weight", shape=shape, is_float32=True)
    yield Slot(parameter=f"{at}.o_norm.weight", shape=(linear.head_dim,), is_float32=True)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q_proj", "k_proj", "v_proj", "g_proj"), (width, hidden))
    shapes |= {"b_proj": (linear.num_heads, hidden), "o_proj": (hidden, width)}
    shapes |= {"f_a_proj": (linear.head_dim, hidden), "f_b_proj": (width, linear.head_dim)}
    yield from _matrices(at, shapes)


def _mla_slots(config: ModelConfig, at: str) -> Iterator[Slot]:
    hidden, heads, nope, rope = (
        config.hidden_size,
        config.num_attention_heads,
        config.qk_nope_head_dim,
        config.qk_rope_head_dim,
    )
    value_width = heads * config.v_head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "q_a_proj": (config.q_lora_rank, hidden),
        "q_a_layernorm": (config.q_lora_rank,),
        "q_b_proj": (heads * (nope + rope), config.q_lora_rank),
        "kv_a_proj_with_mqa": (config.kv_lora_rank + rope, hidden),
        "kv_a_layernorm": (config.kv_lora_rank,),
        "kv_b_proj": (heads * nope + value_width, config.kv_lora_rank),
        "g_proj": (value_width, hidden),
        "o_proj": (hidden, value_width),
    }
    yield from _matrices(at, shapes)


def _mlp_slots(hidden: int, width: int, at: str) -> Iterator[Slot]:
    yield from _matrices(at, {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)})


def _moe_slots(config: ModelConfig, at: str) -> Iterator[Slot]:
    hidden, latent, experts = config.hidden_size, config.routed_expert_hidden_size, config.num_experts
    yield Slot(parameter=f"{at}.gate.e_score_correction_bias", shape=(experts,), is_float32=True)
    shapes: dict[str, tuple[int, ...]] = {
        "gate": (experts, hidden),
        "routed_expert_down_proj": (latent, hidden),
        "routed_expert_up_proj": (hidden, latent),
    }
    if config.latent_moe_use_norm:
        shapes["routed_expert_norm"] = (latent,)
    yield from _matrices(at, shapes)
    yield from _mlp_slots(hidden, config.moe_intermediate_size * config.num_shared_experts, f"{at}.shared_experts")

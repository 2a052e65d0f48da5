"""Held weights: what a worker's state holds, under the names that manifests use. Torch and the standard library only.

    model.layers.2.mlp.experts.7.gate_proj.weight                 ->  layers.2.experts.gate, expert 7
    ...layers.2.block_sparse_moe.experts.7.w1.weight_packed       ->  layers.2.experts.gate, expert 7, its codes
    model.layers.2.mlp.experts.gate_up_proj  [E, 2I, H]           ->  layers.2.experts.gate and .up, all experts
    model.layers.2.mlp.experts.w13_weight_scale  [E, 2I, H / 32]  ->  layers.2.experts.gate and .up, their scales
    model.layers.2.self_attn.q_proj.weight                        ->  layers.2.self_attn.q_proj.weight

w1, w2 and w3 are gate, down and up; of fused rows the gate is the first half. Stacks that interleave or transpose them
(gpt-oss) are given by hand, as views. Integers without scales are no weights and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.hooks.codings import CODES, CODINGS, NUMBERS, SCALES, Decode, Parts, describe_parts
from quantaudit.hooks.shards import Place

GATE, UP, DOWN = "gate", "up", "down"
ROLES = {
    "w1": (GATE,),
    "w2": (DOWN,),
    "w3": (UP,),
    "gate_proj": (GATE,),
    "up_proj": (UP,),
    "down_proj": (DOWN,),
    "gate_up_proj": (GATE, UP),
    "w13": (GATE, UP),
}
_PREFIX = re.compile(r"^(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.)")
_LAYER = r"(?P<layer>.*?layers\.[0-9]{1,6}\.).*?\bexperts\."
_ONE = re.compile(_LAYER + r"(?P<expert>[0-9]{1,6})\.(?P<role>w[123]|(?:gate|up|down)_proj)")
_FUSED = re.compile(_LAYER + r"(?P<role>gate_up_proj|down_proj|w13|w2)")
_PART = re.compile(r"(?P<stem>.+?)[._](?P<part>weight|weight_packed|(?:weight_)?scale(?:_inv)?)")
_WEIGHT, _PACKED, _WHOLE = "weight", "weight_packed", ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldWeight:
    """A weight, or the box of it that this worker holds.

    Attributes:
        name: Logical name; stacks of routed experts end in "experts.gate", "experts.up" or "experts.down".
        parts: "numbers" alone, or "codes" and "scales", or what a `coding` of one's own reads. Parts of a stack have
            experts as their first axis.
        coding: "plain", "mxfp4", "int4", "fp8" (blocks of 128 x 128), or a function.
        shape: Of the whole weight; `None` if this is all of it.
        first: Expert, row and column of the whole at which the box begins.
        storage: For people, how it is written; a named coding says so itself.
    """

    name: str
    parts: Parts
    coding: str | Decode = "plain"
    shape: tuple[int, ...] | None = None
    first: Place = (0, 0, 0)
    storage: str = "layout of the engine"

    @property
    def is_stack(self) -> bool:
        """Returns whether these are routed experts."""
        return self.name.endswith((".experts.gate", ".experts.up", ".experts.down"))


class _Named(NamedTuple):
    """A tensor and its name in the engine."""

    name: str
    tensor: Tensor


def hold(state: Mapping[str, Tensor], *, num_experts: int | None = None) -> list[HeldWeight]:
    """Returns the weights of a state, or of a checkpoint's tensors, with their logical names and codings.

    Args:
        state: By name in the engine, as `state_dict` gives it: whole tensors, or whole experts of some.
        num_experts: In the whole model, where this worker holds single experts of it; those found when `None`.

    Raises:
        InputError: If codes are of no known coding.
    """
    groups: dict[str, dict[str, _Named]] = {}
    for name, tensor in state.items():
        found = _PART.fullmatch(name)
        stem, part = (found["stem"], found["part"]) if found is not None else (name, _WHOLE)
        groups.setdefault(stem, {})[part] = _Named(name, tensor)
    weights = [weight for stem, named in groups.items() for weight in _weights(stem, named)]
    return _numbered(weights, num_experts)


def _weights(stem: str, named: Mapping[str, _Named]) -> Iterator[HeldWeight]:
    codes = {_WEIGHT, _PACKED, _WHOLE} & named.keys()
    scales = named.keys() - codes
    if len(codes) == len(scales) == 1:
        parts = {CODES: named[codes.pop()].tensor, SCALES: named[scales.pop()].tensor}
        yield from _placed(stem, f"{stem}.{_WEIGHT}", parts, _coding(stem, parts))
        return
    for name, tensor in named.values():
        if tensor.is_floating_point() and tensor.itemsize > 1:
            yield from _placed(stem, name, {NUMBERS: tensor}, "plain")


def _coding(stem: str, parts: Parts) -> str:
    codes, scales = parts[CODES].dtype, parts[SCALES].dtype
    for name, coding in CODINGS.items():
        if codes in coding.code_dtypes and scales in coding.scale_dtypes:
            return name
    raise InputError(
        f"{stem} with {describe_parts(parts)}",
        expected=f"codes and scales of {', '.join(CODINGS)}",
        fix="make a HeldWeight of it, with a function that decodes it",
    )


def _placed(stem: str, name: str, parts: Parts, coding: str) -> Iterator[HeldWeight]:
    """Yields the logical tensors that a stored one is part of, or is made of."""
    bare = _PREFIX.sub("", stem)
    if (one := _ONE.fullmatch(bare)) is not None:
        stacked = {key: part.unsqueeze(0) for key, part in parts.items()}
        role, first = ROLES[one["role"]][0], (int(one["expert"]), 0, 0)
        yield HeldWeight(name=f"{one['layer']}experts.{role}", parts=stacked, coding=coding, first=first)
    elif (fused := _FUSED.fullmatch(bare)) is not None and all(part.dim() == 3 for part in parts.values()):
        roles = ROLES[fused["role"]]
        halves = {key: part.chunk(len(roles), dim=1) for key, part in parts.items()}
        for i, role in enumerate(roles):
            held = {key: pieces[i] for key, pieces in halves.items()}
            yield HeldWeight(name=f"{fused['layer']}experts.{role}", parts=held, coding=coding)
    else:
        yield HeldWeight(name=_PREFIX.sub("", name), parts=parts, coding=coding)


def _numbered(weights: Sequence[HeldWeight], num_experts: int | None) -> list[HeldWeight]:
    """Returns the weights, single experts with the shape of their stack."""
    found: dict[str, int] = {}
    for weight in weights:
        if weight.is_stack:
            found[weight.name] = max(
                found.get(weight.name, 0), weight.first[0] + len(next(iter(weight.parts.values())))
            )
    return [replace(w, shape=_stack_shape(w, num_experts or found[w.name])) if w.is_stack else w for w in weights]


def _stack_shape(weight: HeldWeight, num_experts: int) -> tuple[int, ...]:
    assert isinstance(weight.coding, str)
    matrix = weight.parts[NUMBERS if NUMBERS in weight.parts else CODES]
    return (num_experts, matrix.shape[1], matrix.shape[2] * CODINGS[weight.coding].codes_per_word)

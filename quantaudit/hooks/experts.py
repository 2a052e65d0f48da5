"""Reads the routed experts out of a torch model, under logical names, as its forward pass sees them.

    experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]     ->  layers.N.experts.gate, .up, .down  [E, out, in]
    experts.7.gate_proj.weight, experts.7.w1.weight ...              ->  the same, stacked

Attributes are asked for, not parameters: where `torch.nn.utils.parametrize` fake-quantizes a weight, what is read is
the fake-quantized one, and `read_masters` gives what lies below. Stacks say themselves whether they are transposed
(`is_transposed`) and whether gate and up rows alternate (`is_concatenated`), as those of transformers do.

Shape suffixes: E experts, O out, I in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.hooks.held import ROLES

_WRAPPED = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|module)\.")
_LAYER = re.compile(r"^(?:.*?\.)??(?P<layer>layers\.[0-9]+\.)")
_ONE = re.compile(r"(?P<stack>.*\bexperts)\.(?P<expert>[0-9]+)\.(?P<stored>w[123]|(?:gate|up|down)_proj)")
_STACKED = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")

_Read = Callable[[nn.Module, str], object]


def read_experts(model: nn.Module) -> dict[str, Tensor]:
    """Returns the experts that the forward pass computes with, [E, O, I] by logical name; stacks are views.

    Raises:
        InputError: If experts of a stack are missing.
        NotMeasuredError: If the model has no routed experts.
    """
    return _collect(model, lambda module, stored: getattr(module, stored, None))


def read_masters(model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters from which `read_experts` gets its values; they are the same without a parametrization.

    Raises:
        InputError: If experts of a stack are missing.
        NotMeasuredError: If the model has no routed experts.
    """
    return _collect(model, _below)


def _below(module: nn.Module, stored: str) -> object:
    parametrizations = getattr(module, "parametrizations", {})
    return parametrizations[stored].original if stored in parametrizations else getattr(module, stored, None)


@torch.no_grad()
def _collect(model: nn.Module, read: _Read) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    singles: dict[str, dict[int, Tensor]] = {}
    for wrapped_name, module in model.named_modules():
        name = _WRAPPED.sub("", wrapped_name)
        one, weight = _ONE.fullmatch(name), read(module, "weight")
        if one is not None and isinstance(weight, Tensor):
            (role,) = ROLES[one["stored"]]
            singles.setdefault(_stack_name(one["stack"], role), {})[int(one["expert"])] = weight
        elif name.endswith("experts"):
            found |= dict(_stacks(name, module, read))
    for stack, by_expert in singles.items():
        if sorted(by_expert) != list(range(len(by_expert))):
            raise InputError(
                f"{stack} with the experts {sorted(by_expert)}",
                expected="all from 0",
                fix="export a shard in every rank instead, with `hold` and `export_shard`",
            )
        found[stack] = torch.stack([by_expert[expert] for expert in range(len(by_expert))])
    if not found:
        raise NotMeasuredError(f"{type(model).__name__} has no routed experts that can be found by their names")
    return found


def _stacks(name: str, module: nn.Module, read: _Read) -> Iterator[tuple[str, Tensor]]:
    for stored in _STACKED:
        stack = read(module, stored)
        if not isinstance(stack, Tensor) or stack.dim() != 3:
            continue
        stack_EOI = stack.transpose(1, 2) if getattr(module, "is_transposed", False) else stack
        roles = ROLES[stored]
        for i, role in enumerate(roles):
            if getattr(module, "is_concatenated", True):
                yield _stack_name(name, role), stack_EOI.chunk(len(roles), dim=1)[i]
            else:
                yield _stack_name(name, role), stack_EOI[:, i :: len(roles)]


def _stack_name(module: str, role: str) -> str:
    found = _LAYER.match(module)
    return f"{found['layer']}experts.{role}" if found is not None else f"{module}.{role}"

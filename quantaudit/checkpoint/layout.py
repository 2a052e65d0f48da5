"""The index against the configuration: every tensor is there once, in the right shape and dtype, and no other.

Repeats of one cause are collapsed into one message that counts them and shows the first.
"""

from __future__ import annotations

from quantaudit.checkpoint.declared import Declared
from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.index import TensorIndex
from quantaudit.checkpoint.names import (
    OTHER_MODALITIES,
    ExpertTensor,
    Part,
    Role,
    Slot,
    dense_slots,
    expert_shape,
    expert_stacks,
    parse_expert,
)
from quantaudit.checkpoint.packed import Packing, check_parts, find_packing
from quantaudit.checkpoint.storage import Storage, classify, entries_of, storage_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.model.config import ModelConfig

_WEIGHT_DTYPES = (DType.BF16, DType.F32)


def check_layout(index: TensorIndex, config: ModelConfig, declared: Declared | None = None) -> None:
    """Checks names, shapes and dtypes; reads no tensor.

    Args:
        index: What is there.
        config: The model.
        declared: What it says about its precision; `None` if it says nothing.

    Raises:
        InputError: If a tensor is missing, unexpected, of another shape or dtype, or an expert is stored by halves or
            packed otherwise than it is declared.
    """
    slots = {slot.name: slot for slot in dense_slots(config)}
    _check_present(index, config, slots)
    unexpected = check_shapes(index, config, declared)
    if unexpected:
        raise InputError(
            f"{index.folder} holds {len(unexpected)} tensors that the model has not, first {shown(unexpected[0])}",
            expected="the tensors that config.json describes",
            fix="use the config.json of this checkpoint",
        )


def check_shapes(index: TensorIndex, config: ModelConfig, declared: Declared | None = None) -> list[str]:
    """Checks shape and dtype of the tensors that the model has; returns the names of those it has not.

    Raises:
        InputError: If one differs from the configuration, or an expert is packed otherwise than it is declared.
    """
    slots = {slot.name: slot for slot in dense_slots(config)}
    unexpected: list[str] = []
    for name, located in index.tensors.items():
        expert = parse_expert(name)
        if name in slots:
            _check_slot(located.entry, slots[name])
        elif expert is not None and _is_in_range(expert, config):
            continue
        elif not name.startswith(OTHER_MODALITIES):
            unexpected.append(name)
    for layer, role in expert_stacks(config):
        for expert_number in range(config.num_experts):
            _check_expert(entries_of(index, layer, expert_number, role), config, role, declared)
    return unexpected


def _check_present(index: TensorIndex, config: ModelConfig, slots: dict[str, Slot]) -> None:
    missing = [name for name in slots if name not in index.tensors]
    num_expected = len(slots)
    for layer, role in expert_stacks(config):
        for expert in range(config.num_experts):
            num_expected += 1
            if storage_of(index, layer, expert, role) is Storage.MISSING:
                missing.append(ExpertTensor(layer, expert, role, Part.WEIGHT).name)
    if missing:
        raise InputError(
            f"{index.folder} lacks {len(missing)} of {num_expected} tensors, first {missing[0]}",
            expected="the tensors that config.json describes",
            fix="finish the download, or use the config.json of this checkpoint",
        )


def _is_in_range(expert: ExpertTensor, config: ModelConfig) -> bool:
    is_layer = expert.layer < config.num_hidden_layers and config.is_moe_layer(expert.layer)
    return is_layer and expert.expert < config.num_experts


def _check_slot(entry: TensorEntry, slot: Slot) -> None:
    if slot.is_padded:
        if len(entry.shape) != 1 or entry.shape[0] < slot.shape[0]:
            raise _wrong_shape(entry, f"one axis of at least {slot.shape[0]}, the number of heads")
    elif entry.shape != slot.shape:
        raise _wrong_shape(entry, str(list(slot.shape)))
    _check_dtype(entry, (DType.F32,) if slot.is_float32 else _WEIGHT_DTYPES)


def _check_expert(entries: dict[Part, TensorEntry], config: ModelConfig, role: Role, declared: Declared | None) -> None:
    rows, cols = expert_shape(config, role)
    match classify(entries):
        case Storage.WHOLE:
            entry = entries[Part.WEIGHT]
            if entry.shape != (rows, cols):
                raise _wrong_shape(entry, str([rows, cols]))
            _check_dtype(entry, _WEIGHT_DTYPES)
        case Storage.PACKED:
            known = () if declared is None else declared.packings
            packing = find_packing(entries, rows, cols, known)
            check_parts(entries, packing, rows, cols)
            if known and packing not in known:
                raise _undeclared(next(iter(entries.values())), packing, known)


def _undeclared(entry: TensorEntry, packing: Packing, known: tuple[Packing, ...]) -> InputError:
    return InputError(
        f"{entry.name.rpartition('.')[0]} is packed as {packing}",
        expected=f"{' or '.join(map(str, known))}, as config.json declares",
        fix="use the config.json of this checkpoint, or write it again",
    )


def _check_dtype(entry: TensorEntry, allowed: tuple[DType, ...]) -> None:
    if entry.dtype not in allowed:
        raise InputError(
            f"{entry.name} is stored as {entry.dtype}",
            expected=" or ".join(allowed),
            fix="write the tensor again in that dtype",
        )


def _wrong_shape(entry: TensorEntry, expected: str) -> InputError:
    return InputError(
        f"{entry.name} has the shape {list(entry.shape)}",
        expected=expected,
        fix="use the config.json of this checkpoint",
    )

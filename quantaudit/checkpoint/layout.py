"""The index against the configuration: every tensor is there once, in the right shape and dtype, and no other.

Repeats of one cause are collapsed into one message that counts them and shows the first.
"""

from __future__ import annotations

from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.index import TensorIndex
from quantaudit.checkpoint.names import (
    OTHER_MODALITIES,
    ExpertTensor,
    Part,
    Slot,
    dense_slots,
    expert_shape,
    expert_stacks,
    parse_expert,
)
from quantaudit.checkpoint.storage import Storage, storage_of
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.model.config import ModelConfig

_WEIGHT_DTYPES = (DType.BF16, DType.F32)


def check_layout(index: TensorIndex, config: ModelConfig) -> None:
    """Checks names, shapes and dtypes; reads no tensor.

    Raises:
        InputError: If a tensor is missing, unexpected, of another shape or dtype, or an expert is stored by halves.
    """
    slots = {slot.name: slot for slot in dense_slots(config)}
    _check_present(index, config, slots)
    unexpected = check_shapes(index, config)
    if unexpected:
        raise InputError(
            f"{index.folder} holds {len(unexpected)} tensors that the model has not, first {shown(unexpected[0])}",
            expected="the tensors that config.json describes",
            fix="use the config.json of this checkpoint",
        )


def check_shapes(index: TensorIndex, config: ModelConfig) -> list[str]:
    """Checks shape and dtype of the tensors that the model has; returns the names of those it has not.

    Raises:
        InputError: If one differs from the configuration.
    """
    slots = {slot.name: slot for slot in dense_slots(config)}
    unexpected: list[str] = []
    for name, located in index.tensors.items():
        expert = parse_expert(name)
        if name in slots:
            _check_slot(located.entry, slots[name])
        elif expert is not None and _is_in_range(expert, config):
            _check_expert(located.entry, expert, config)
        elif not name.startswith(OTHER_MODALITIES):
            unexpected.append(name)
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


def _check_expert(entry: TensorEntry, expert: ExpertTensor, config: ModelConfig) -> None:
    shape = expert_shape(config, expert.role, expert.part)
    if entry.shape != shape:
        raise _wrong_shape(entry, str(list(shape)))
    _check_dtype(entry, _WEIGHT_DTYPES if expert.part is Part.WEIGHT else (DType.U8,))


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

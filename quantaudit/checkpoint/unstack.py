"""From the parameters of a model to the tensors of the layout: experts one by one, packed where they are quantized.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from quantaudit.checkpoint.names import (
    ExpertStack,
    ExpertTensor,
    Part,
    Slot,
    dense_slots,
    expert_shape,
    expert_stacks,
    parse_stack,
)
from quantaudit.checkpoint.packed import MODELOPT_NVFP4, Packing, parts_of
from quantaudit.checkpoint.packed_tensors import encode_parts, packing_of
from quantaudit.checkpoint.reader import check_finite, check_packed
from quantaudit.checkpoint.serialize import NamedTensor
from quantaudit.checkpoint.strict_json import shown
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.model.config import ModelConfig
from quantaudit.numerics import QuantizedTensor, quantize

Parameters: TypeAlias = "Iterable[tuple[str, Tensor | QuantizedTensor]]"

_SMALLEST_PADDED = 32


def round_to_storage(parameters: Iterable[tuple[str, Tensor]], config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yields every parameter in the dtype that the layout stores: BF16 to nearest even, or F32.

    A quantized export of a model trained in fp32 is the quantization of these values, unless its caller quantizes the
    fp32 experts first.
    """
    wide = {slot.parameter for slot in dense_slots(config) if slot.is_float32}
    for name, tensor in parameters:
        yield name, tensor.detach().to(torch.float32 if name in wide else torch.bfloat16)


def layout_tensors(
    parameters: Parameters,
    config: ModelConfig,
    scheme: Scheme | None,
    *,
    nvfp4: Packing = MODELOPT_NVFP4,
) -> Iterator[NamedTensor]:
    """Yields the tensors of the layout, without padding, in the order of the parameters.

    Args:
        parameters: Name in the model and value, each exactly once, experts stacked; quantized ones are packed.
        config: The model.
        scheme: Quantizes the experts that are not yet; `None` leaves them as they are.
        nvfp4: Convention in which NVFP4 is written.

    Raises:
        InputError: If a parameter is missing, unknown or there twice, has the wrong shape or dtype, holds NaN or
            infinity, or is quantized in a way that this layout cannot store.
    """
    slots = {slot.parameter: slot for slot in dense_slots(config)}
    expected = set(slots) | {stack.parameter for stack in expert_stacks(config)}
    for name, value in parameters:
        if name not in expected:
            raise InputError(
                f"the parameter {shown(name)}", expected="each parameter of the model, once", fix="drop it"
            )
        expected.remove(name)
        stack = parse_stack(name)
        if stack is not None:
            yield from _expert_tensors(stack, value, config, scheme, nvfp4)
        else:
            yield _dense_tensor(slots[name], value)
    if expected:
        raise InputError(
            f"{len(expected)} parameters are missing, first {min(expected)}",
            expected="each parameter of the model, once",
            fix="pass the whole state of the model",
        )


def pad(named: NamedTensor, slots: Mapping[str, Slot]) -> NamedTensor:
    """Returns the tensor as it is stored: `A_log` filled with zeros to a power of two of at least 32.

    The released file has 128 values for 96 heads.
    """
    slot = slots.get(named.name)
    if slot is None or not slot.is_padded:
        return named
    length = max(_SMALLEST_PADDED, 1 << (slot.shape[0] - 1).bit_length())
    return named._replace(tensor=torch.nn.functional.pad(named.tensor, (0, length - slot.shape[0])))


def _dense_tensor(slot: Slot, value: Tensor | QuantizedTensor) -> NamedTensor:
    if isinstance(value, QuantizedTensor):
        raise InputError(
            f"{slot.parameter} in {value.scheme.name}", expected="only routed experts packed", fix="dequantize it"
        )
    _check_tensor(slot.parameter, value, slot.shape, allow_bf16=not slot.is_float32)
    return NamedTensor(slot.name, value.detach())


def _expert_tensors(
    stack: ExpertStack, value: Tensor | QuantizedTensor, config: ModelConfig, scheme: Scheme | None, nvfp4: Packing
) -> Iterator[NamedTensor]:
    shape = (config.num_experts, *expert_shape(config, stack.role))
    if isinstance(value, Tensor):
        _check_tensor(stack.parameter, value, shape, allow_bf16=True)
        if scheme is None:
            for e, matrix_OI in enumerate(value.detach().unbind(0)):
                yield NamedTensor(ExpertTensor(stack.layer, e, stack.role, Part.WEIGHT).name, matrix_OI)
            return
        packing = _storable(scheme, shape, stack)
        value = quantize(value.detach(), scheme)
    else:
        packing = _storable(value.scheme, value.shape, stack)
    if value.shape != shape:
        raise _wrong_shape(stack.parameter, value.shape, shape)
    check_packed(value, stack.parameter)
    if packing is MODELOPT_NVFP4:
        packing = nvfp4
    for e in range(shape[0]):
        for part, tensor in encode_parts(matrix_of(value, e), packing).items():
            yield NamedTensor(ExpertTensor(stack.layer, e, stack.role, part).name, tensor, packing)


def matrix_of(q: QuantizedTensor, expert: int) -> QuantizedTensor:
    """Returns one matrix of a stack, sharing its memory."""
    return replace(
        q,
        codes=q.codes[expert],
        scales=q.scales[expert],
        second_scales=None if q.second_scales is None else q.second_scales[expert],
        shape=q.shape[1:],
    )


def _storable(scheme: Scheme, shape: tuple[int, ...], stack: ExpertStack) -> Packing:
    """Returns how codes and scales of this scheme are packed."""
    packing = packing_of(scheme)
    if packing is None:
        raise InputError(
            f"experts in {scheme.name}",
            expected="MXFP4, MXFP8, NVFP4, FP8, or integers of 2, 3, 4 or 8 bits with one scale a group or row",
            fix="write them in bf16, or quantize to such a scheme",
        )
    rows, cols = shape[-2:]
    parts_of(packing, rows, cols, stack.parameter)
    return packing


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], *, allow_bf16: bool) -> None:
    if tuple(tensor.shape) != shape:
        raise _wrong_shape(name, tuple(tensor.shape), shape)
    allowed = (torch.bfloat16, torch.float32) if allow_bf16 else (torch.float32,)
    if tensor.dtype not in allowed:
        raise InputError(
            f"{name} in {tensor.dtype}",
            expected=" or ".join(str(dtype) for dtype in allowed),
            fix="pass the parameters through round_to_storage",
        )
    check_finite(tensor, name)


def _wrong_shape(name: str, given: tuple[int, ...], expected: tuple[int, ...]) -> InputError:
    return InputError(f"{name} of shape {list(given)}", expected=str(list(expected)), fix="pass the model's own config")

"""From a checkpoint to a model whose parameters are bit for bit what is stored.

The model is built without memory, then every parameter is put in place as it is read: the peak is the model and one
parameter. BF16 stays BF16 and F32 stays F32; the stack widens where it computes. Experts that are stored packed are
decoded, or left out for a caller who keeps them packed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quantaudit.checkpoint.names import ExpertStack, dense_slots, parse_stack
from quantaudit.checkpoint.reader import Checkpoint
from quantaudit.core.errors import InputError
from quantaudit.model.lm import LanguageModel

_EXACT_DTYPES = (torch.float32, torch.float64)


def load_model(checkpoint: Checkpoint, *, dtype: torch.dtype | None = None) -> LanguageModel:
    """Builds the model of a checkpoint on the CPU; packed experts are decoded, exactly, to bf16.

    Args:
        checkpoint: The opened checkpoint.
        dtype: Storage of all parameters, float32 or float64, to which everything widens exactly; `None` keeps the
            dtypes of the file.

    Raises:
        InputError: If a tensor holds NaN or infinity, padding is not zero, or the dtype is not one of those.
    """
    if dtype is not None and dtype not in _EXACT_DTYPES:
        raise InputError(f"storage in {dtype}", expected="float32, float64 or None", fix="narrow the model explicitly")
    return _fill(checkpoint, dtype, left_out=frozenset())


def load_unpacked(checkpoint: Checkpoint) -> LanguageModel:
    """Builds the model of a checkpoint on the CPU without the stacks that are stored packed: those stay on `meta`.

    Raises:
        InputError: If a tensor that is read holds NaN or infinity, or padding is not zero.
    """
    return _fill(checkpoint, None, left_out=frozenset(checkpoint.packed_stacks()))


def _fill(checkpoint: Checkpoint, dtype: torch.dtype | None, *, left_out: frozenset[ExpertStack]) -> LanguageModel:
    with torch.device("meta"):
        model = LanguageModel(checkpoint.config)
    slots = {slot.parameter: slot for slot in dense_slots(checkpoint.config)}
    for parameter in [name for name, _ in model.named_parameters()]:
        stack = parse_stack(parameter)
        if stack in left_out:
            continue
        tensor = checkpoint.read_slot(slots[parameter]) if stack is None else checkpoint.decoded_stack(*stack)
        _place(model, parameter, tensor if dtype is None else tensor.to(dtype))
    return model


def _place(model: nn.Module, parameter: str, tensor: Tensor) -> None:
    """Puts a tensor, without copying it, where the model has a parameter of that shape and no memory."""
    path, _, leaf = parameter.rpartition(".")
    module = model.get_submodule(path)
    empty = module.get_parameter(leaf)
    assert empty.shape == tensor.shape, parameter
    setattr(module, leaf, nn.Parameter(tensor, requires_grad=empty.requires_grad))

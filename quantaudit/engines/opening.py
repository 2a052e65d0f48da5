"""From an opened checkpoint to hi: the exactly decoded weights, and the codes of what is stored quantized."""

from __future__ import annotations

import torch

from quantaudit.checkpoint.load import load_model
from quantaudit.checkpoint.names import expert_stacks
from quantaudit.checkpoint.reader import Checkpoint
from quantaudit.core.recipe import Execution
from quantaudit.engines.realization import Realization, module_name
from quantaudit.engines.stored import StoredTensor, store
from quantaudit.numerics import QuantizedTensor


def open_realization(checkpoint: Checkpoint, device: torch.device) -> Realization:
    """Reads a checkpoint onto a device.

    Raises:
        InputError: If a tensor is damaged or not finite.
    """
    stored = read_stored(checkpoint, device)
    notes: tuple[str, ...] = ()
    if stored:
        notes = (
            f"{len(stored)} of {len(expert_stacks(checkpoint.config))} expert stacks are stored quantized only: the "
            "reference is their exactly decoded values; no full-precision baseline exists for them.",
        )
    return Realization(
        model=load_model(checkpoint).to(device), stored=stored, activations={}, execution=Execution(), notes=notes
    )


def read_stored(checkpoint: Checkpoint, device: torch.device) -> dict[str, StoredTensor]:
    """Returns the packed expert stacks by module name."""
    stored = {}
    for stack in expert_stacks(checkpoint.config):
        value = checkpoint.expert_stack(stack.layer, stack.role)
        if isinstance(value, QuantizedTensor):
            stored[module_name(stack.parameter.removesuffix(".weight"))] = store(value).to(device)
    return stored

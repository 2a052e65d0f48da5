"""From an opened checkpoint to hi and to lo.

hi holds exactly decoded weights, and beside them the codes of what is stored quantized. lo is opened as a server holds
it: what is stored packed stays packed, and is never decoded as a whole.
"""

from __future__ import annotations

import torch

from quantaudit.checkpoint.load import load_model, load_unpacked
from quantaudit.checkpoint.names import expert_stacks
from quantaudit.checkpoint.reader import Checkpoint
from quantaudit.core.recipe import Execution
from quantaudit.engines.quantized import QuantizedGroupedLinear
from quantaudit.engines.realization import Realization, module_name, replace_module
from quantaudit.engines.stored import StoredTensor, store
from quantaudit.numerics import QuantizedTensor


def open_realization(checkpoint: Checkpoint, device: torch.device) -> Realization:
    """Reads a checkpoint onto a device as hi.

    Raises:
        InputError: If a tensor is damaged or not finite.
    """
    stored = {module_name(path): held for path, held in read_stored(checkpoint, device).items()}
    notes: tuple[str, ...] = ()
    if stored:
        notes = (
            f"{len(stored)} of {len(expert_stacks(checkpoint.config))} expert stacks are stored quantized only: the "
            "reference is their exactly decoded values; no full-precision baseline exists for them.",
        )
    return Realization(
        model=load_model(checkpoint).to(device), stored=stored, activations={}, execution=Execution(), notes=notes
    )


def open_served(checkpoint: Checkpoint, device: torch.device) -> Realization:
    """Reads a checkpoint onto a device as lo: packed stacks go from the file into their packed modules.

    Raises:
        InputError: If a tensor is damaged or not finite.
    """
    stored = read_stored(checkpoint, device)
    model = load_unpacked(checkpoint)
    for path, held in stored.items():
        replace_module(model, path, QuantizedGroupedLinear(held, None))
    return Realization(
        model=model.to(device),
        stored={module_name(path): held for path, held in stored.items()},
        activations={},
        execution=Execution(),
    )


def read_stored(checkpoint: Checkpoint, device: torch.device) -> dict[str, StoredTensor]:
    """Returns the packed expert stacks by the path of their module."""
    stored = {}
    for stack in checkpoint.packed_stacks():
        value = checkpoint.expert_stack(stack.layer, stack.role)
        assert isinstance(value, QuantizedTensor), stack
        stored[stack.parameter.removesuffix(".weight")] = store(value).to(device)
    return stored

"""A training state on disk: parameters and optimizer moments in one safetensors file, the step in its metadata."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_FILE = "state.safetensors"


def save_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Writes the state, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {f"model.{k}": v.detach().contiguous() for k, v in model.named_parameters()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in moments.items()}
    partial = folder / f".{_FILE}"
    save_file(tensors, partial, metadata={"step": str(step)})
    with partial.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, folder / _FILE)


@torch.no_grad()
def load_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restores the state if there is one; returns the number of steps already taken."""
    path = folder / _FILE
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(f"model.{name}"))
        state: dict[int, dict[str, Tensor]] = {}
        for key in file.keys():
            if key.startswith("optimizer."):
                _, index, moment = key.split(".")
                state.setdefault(int(index), {})[moment] = file.get_tensor(key)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return int(file.metadata()["step"])

"""The state of a run on disk: named tensors in one safetensors file, and facts about it in the file's metadata."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quantaudit.core.errors import InputError

STATE_FILE = "run.safetensors"


class RunState(NamedTuple):
    """What `read_run_state` returns."""

    tensors: dict[str, Tensor]
    facts: dict[str, str]


def write_run_state(folder: Path, tensors: dict[str, Tensor], facts: dict[str, str]) -> None:
    """Writes the state, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{STATE_FILE}"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata=facts)
    with partial.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, folder / STATE_FILE)


def read_run_state(folder: Path) -> RunState | None:
    """Reads a state, if there is one.

    Raises:
        InputError: If the file is damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            return RunState({name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {}))
    except SafetensorError as error:
        raise InputError(f"{path}: {error}", expected="the state of a run", fix="remove it to start again") from None

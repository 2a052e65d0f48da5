"""The state of a run on disk: named tensors in one safetensors file, and facts about it in the file's metadata.

The facts stand under one key, for the format keeps several in no order, and equal states are to be equal files.

What a part of a run remembers beside its weights is a note: a JSON object, and the tensors that it names. Nothing is
pickled, and whoever reads a note checks it: names, shapes and dtypes that do not fit are a damaged state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Json
from quantaudit.core.step_log import EventLog, StepRecord

STATE_FILE = "run.safetensors"
_FACTS, _NOTE = "facts", "note/"


class Note(NamedTuple):
    """What one part of a run remembers.

    Attributes:
        head: A JSON object; a tensor stands in it by its name.
        tensors: The tensors.
    """

    head: Mapping[str, Json]
    tensors: Mapping[str, Tensor]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Returns the tensors whose names begin with a prefix, without it."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


class RunState(NamedTuple):
    """What `read_run_state` returns."""

    tensors: dict[str, Tensor]
    facts: dict[str, str]
    notes: dict[str, Note]


def write_run_state(
    folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str], notes: Mapping[str, Note] | None = None
) -> None:
    """Writes the state, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    every, told = dict(tensors), dict(facts)
    for part, note in (notes or {}).items():
        told[f"{_NOTE}{part}"] = json.dumps(note.head, allow_nan=False)
        every |= {f"{_NOTE}{part}/{name}": tensor for name, tensor in note.tensors.items()}
    partial = folder / f".{STATE_FILE}"
    save_file(dict(_apart(every)), partial, metadata={_FACTS: json.dumps(told, sort_keys=True)})
    with partial.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, folder / STATE_FILE)


def _apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields contiguous tensors that share no memory with each other, as the format wants them."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        held = tensor.detach().contiguous()
        place = held.untyped_storage().data_ptr()
        yield name, held.clone() if place in seen else held
        seen.add(place)


def read_run_state(folder: Path) -> RunState | None:
    """Reads a state, if there is one.

    Raises:
        InputError: If the file is damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    with refusing_damage(folder):
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            metadata = dict(file.metadata() or {})
        facts = json.loads(metadata[_FACTS]) if _FACTS in metadata else metadata  # as earlier versions wrote them
        heads = {key.removeprefix(_NOTE): json.loads(facts.pop(key)) for key in list(facts) if key.startswith(_NOTE)}
        notes = {part: Note(head, _taken(tensors, f"{_NOTE}{part}/")) for part, head in heads.items()}
        return RunState(tensors, facts, notes)


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}


@contextmanager
def refusing_damage(folder: Path) -> Iterator[None]:
    """Makes one error of all that a damaged state can raise while it is read.

    Raises:
        InputError: Instead.
    """
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"{folder / STATE_FILE}, which is damaged ({lines[0]})",
            expected="the state of a run",
            fix="remove it to start again",
        ) from None


def copy_into(target: Tensor, tensors: Mapping[str, Tensor], name: str) -> None:
    """Copies a tensor of a state into one of the same shape and dtype.

    Raises:
        ValueError: If it is not there, or of another shape or dtype.
    """
    held = tensors.get(name)
    if held is None or held.shape != target.shape or held.dtype != target.dtype:
        found = "nothing" if held is None else f"{held.dtype} {list(held.shape)}"
        raise ValueError(f"{name} is {found}, where {target.dtype} {list(target.shape)} belongs")
    target.copy_(held)


def check_moments(optimizer: Optimizer) -> None:
    """Refuses moments that are not of the shape of their parameter.

    Raises:
        ValueError: If there is one.
    """
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if moment.ndim and moment.shape != parameter.shape:
                raise ValueError(f"{name} is {list(moment.shape)}, that of a weight {list(parameter.shape)}")


def rewind_log(log: EventLog, next_step: int) -> None:
    """Takes back what a log says of steps that are taken again.

    Args:
        log: Of the run; there may be none before the first step.
        next_step: That of the state.

    Raises:
        InputError: If it does not hold every step before.
    """
    steps: list[int] = []
    if log.path.exists():
        log.rewind(next_step - 1 if next_step else None)
        steps = [event.step for event in log.read() if isinstance(event, StepRecord)]
    if steps != list(range(next_step)):
        raise InputError(
            f"{log.path} with {len(steps)} steps before step {next_step}",
            expected="every step up to that of the state",
            fix="put the log back, or start again in an empty folder",
        )

"""Logical tensors: one name for one weight, however a file calls it, experts counted apart.

    language_model.model.layers.2.block_sparse_moe.experts.7.w1.weight_packed   ->  layers.2.experts.gate, expert 7
    model.layers.2.mlp.experts.7.gate_proj.weight                               ->  layers.2.experts.gate, expert 7
    model.layers.2.self_attn.q_proj.weight                                      ->  layers.2.self_attn.q_proj.weight

w1, w2 and w3 are gate, down and up. An expert's matrix is [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from quantaudit.core.comparison import Encoding
from quantaudit.core.errors import NotMeasuredError
from quantaudit.identity.layouts.stored import StoredMatrix

DENSE = -1  # the expert number of a tensor that is no expert's

_PREFIX = re.compile(r"^(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.)")
_EXPERT = re.compile(r"^(.*?layers\.[0-9]{1,6}\.).*?\bexperts\.([0-9]{1,6})\.(w[123]|gate_proj|up_proj|down_proj)$")
_FUSED = re.compile(r"^(.*?layers\.[0-9]{1,6}\.).*?\bexperts\.(gate_up_proj|down_proj)$")


class ExpertRole(StrEnum):
    """The three matrices of an expert."""

    GATE = "gate"
    UP = "up"
    DOWN = "down"


_ROLES = {
    "w1": ExpertRole.GATE,
    "w2": ExpertRole.DOWN,
    "w3": ExpertRole.UP,
    "gate_proj": ExpertRole.GATE,
    "down_proj": ExpertRole.DOWN,
    "up_proj": ExpertRole.UP,
}


class LogicalName(NamedTuple):
    """A logical tensor, and which expert of it (`DENSE` outside the experts)."""

    name: str
    expert: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSource:
    """A matrix that can be read.

    Attributes:
        label: Name in the file.
        encoding: How its numbers are written.
        storage: The same for people, such as "bfloat16" or "mxfp4, low-nibble-first".
        shape: Logical shape; [out, in] for a matrix.
        num_bytes: Stored bytes.
        read: Reads it.
    """

    label: str
    encoding: Encoding
    storage: str
    shape: tuple[int, ...]
    num_bytes: int
    read: Callable[[], StoredMatrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTensor:
    """One weight: a dense tensor, or the experts of one layer and role.

    Attributes:
        name: Logical name.
        matrices: By expert, ascending; under `DENSE` for a dense tensor.
    """

    name: str
    matrices: Mapping[int, MatrixSource]

    @property
    def is_stack(self) -> bool:
        """Returns whether these are routed experts."""
        return DENSE not in self.matrices

    @property
    def num_bytes(self) -> int:
        """Returns the stored bytes."""
        return sum(source.num_bytes for source in self.matrices.values())

    @property
    def storage(self) -> str:
        """Returns how its matrices are written, each way once."""
        return " and ".join(sorted({source.storage for source in self.matrices.values()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One checkpoint, opened: nothing is read but headers.

    Attributes:
        path: As it was given.
        kind: What it is, for people.
        tensors: By logical name, sorted.
    """

    path: str
    kind: str
    tensors: Mapping[str, LogicalTensor]

    @property
    def num_bytes(self) -> int:
        """Returns the stored bytes."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def logical_name(stem: str, suffix: str) -> LogicalName:
    """Returns what a tensor of a file is called here.

    Args:
        stem: Name of the module, such as "model.layers.2.mlp.experts.7.gate_proj".
        suffix: "weight", "bias" or another name within the module; empty if the file has none.
    """
    bare = _PREFIX.sub("", stem)
    found = _EXPERT.fullmatch(bare) if suffix == "weight" else None
    if found is not None:
        return LogicalName(expert_stack_name(found[1], _ROLES[found[3]]), int(found[2]))
    return LogicalName(f"{bare}.{suffix}" if suffix else bare, DENSE)


def expert_stack_name(layer: str, role: ExpertRole) -> str:
    """Returns the logical name of the experts of a layer, given as "layers.2."."""
    return f"{layer}experts.{role}"


def parse_fused(stem: str) -> tuple[str, str] | None:
    """Returns the layer ("layers.2.") and the name of stacked experts, "gate_up_proj" or "down_proj"."""
    found = _FUSED.fullmatch(_PREFIX.sub("", stem))
    return None if found is None else (found[1], found[2])


def keep_matching(side: Side, pattern: str | None) -> Side:
    """Returns the side with only the tensors whose logical names match a shell-style pattern.

    Raises:
        NotMeasuredError: If none does.
    """
    if pattern is None:
        return side
    kept = {name: tensor for name, tensor in side.tensors.items() if fnmatchcase(name, pattern)}
    if not kept:
        first = next(iter(side.tensors), "none")
        raise NotMeasuredError(
            f"no tensor of {side.path} matches {pattern!r}; its names are like {first!r}, and patterns like '*experts*'"
        )
    return Side(path=side.path, kind=side.kind, tensors=kept)

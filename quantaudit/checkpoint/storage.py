"""How one expert matrix is stored, decided by which of its tensors are there and by nothing else."""

from __future__ import annotations

from enum import StrEnum

from quantaudit.checkpoint.header import DType, TensorEntry
from quantaudit.checkpoint.index import TensorIndex
from quantaudit.checkpoint.names import ExpertTensor, Part, Role
from quantaudit.core.errors import InputError

_CODES = (DType.F8_E4M3, DType.U8)
_PACKED = (
    {Part.PACKED, Part.SCALE},
    {Part.PACKED, Part.SCALE, Part.SHAPE},
    {Part.PACKED, Part.SCALE, Part.GLOBAL},
)
_SCALED = ({Part.WEIGHT, Part.SCALE}, {Part.WEIGHT, Part.SCALE_INV}, {Part.WEIGHT, Part.SCALE, Part.ABOVE})


class Storage(StrEnum):
    """How an expert matrix is stored."""

    PACKED = "packed"
    WHOLE = "whole"
    MISSING = "missing"


def entries_of(index: TensorIndex, layer: int, expert: int, role: Role) -> dict[Part, TensorEntry]:
    """Returns what is stored of one expert matrix."""
    # One name is built and the parts replaced: a released checkpoint asks this half a million times.
    stem = ExpertTensor(layer, expert, role, Part.WEIGHT).name.removesuffix(Part.WEIGHT)
    found = ((part, index.tensors.get(stem + part.value)) for part in Part)
    return {part: located.entry for part, located in found if located is not None}


def storage_of(index: TensorIndex, layer: int, expert: int, role: Role) -> Storage:
    """Tells how one expert matrix is stored.

    Raises:
        InputError: If its codes lack their scales, the scales their codes, or it is stored twice.
    """
    return classify(entries_of(index, layer, expert, role))


def classify(entries: dict[Part, TensorEntry]) -> Storage:
    """Tells how an expert matrix is stored of which these entries are there.

    Raises:
        InputError: If its codes lack their scales, the scales their codes, or it is stored twice.
    """
    parts = entries.keys()
    if parts == {Part.WEIGHT}:
        return Storage.WHOLE
    if not parts:
        return Storage.MISSING
    if parts in _PACKED or (parts in _SCALED and entries[Part.WEIGHT].dtype in _CODES):
        return Storage.PACKED
    name = next(iter(entries.values())).name
    stem = name.rpartition(".")[0]
    raise InputError(
        f"{stem} is stored as {' and '.join(sorted(parts))}",
        expected=f"{Part.WEIGHT} alone, or {Part.PACKED} with {Part.SCALE}, or 8-bit codes with theirs",
        fix="write the checkpoint again, every expert either packed or not",
    )

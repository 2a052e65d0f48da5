"""What a checker remembers from step to step, as one value, and how it is written down.

A resumed run is given the memory that the killed one had, so it recognises what was left behind before it was killed,
and does not report again what was reported. Packed weights are written packed, and equal tensors are written once: what
was shipped as it lay in the trainer, what did not change from step to step. So equal memories are equal notes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.core.serial import Frozen
from quantaudit.core.step_log import Side
from quantaudit.engines.stored import StoredTensor
from quantaudit.training.checking.sides import Past, Shipped, decode_shipped
from quantaudit.training.run_state import Note

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.uint8, torch.int8, torch.float32, torch.bfloat16)
}
_CODES_A_BYTE = 8  # at most: the narrowest element has one bit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckerMemory:
    """What a checker knows of the steps before.

    Attributes:
        past: Earlier steps, newest first.
        first: The first step of the run; of its weights only those that have a scale of the whole matrix.
        open: Pairs of sides and weights that part since a step before.
        standing: Names and tensors of what was found at the last check by other means than values.
        is_canary_open: Whether the canary differed at the last check.
        last_step: The last step; `None` before the first.
        was_on_grid: Whether the trainer's sources were quantized already at the step before.
    """

    past: tuple[Past, ...] = ()
    first: Past | None = None
    open: frozenset[tuple[tuple[Side, Side], str]] = frozenset()
    standing: frozenset[tuple[str, str]] = frozenset()
    is_canary_open: bool = False
    last_step: int | None = None
    was_on_grid: bool = True


class _PackedHead(Frozen):
    """A packed weight; fields of `StoredTensor`, tensors by the name that they have in the note."""

    packed: str
    code_dtype: str
    scales: str
    second_scales: str | None
    offset: str | None
    shape: tuple[int, ...]
    dtype: str
    scheme: Scheme


class _PastHead(Frozen):
    step: int
    sources: dict[str, str]
    shipped: dict[str, str | _PackedHead]


class _MemoryHead(Frozen):
    past: tuple[_PastHead, ...]
    first: _PastHead | None
    open: tuple[tuple[Side, Side, str], ...]
    standing: tuple[tuple[str, str], ...]
    is_canary_open: bool
    last_step: int | None
    was_on_grid: bool


def write_memory(memory: CheckerMemory) -> Note:
    """Returns a memory as a note."""
    writing = _Writing()
    head = _MemoryHead(
        past=tuple(map(writing.past, memory.past)),
        first=None if memory.first is None else writing.past(memory.first),
        open=tuple(sorted((one, other, name) for (one, other), name in memory.open)),
        standing=tuple(sorted(memory.standing)),
        is_canary_open=memory.is_canary_open,
        last_step=memory.last_step,
        was_on_grid=memory.was_on_grid,
    )
    return Note(json.loads(head.model_dump_json()), writing.tensors)


class _Writing:
    """Tensors that are being put together; those of equal bits are put once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[torch.dtype, torch.Size, bytes], str] = {}

    def past(self, past: Past) -> _PastHead:
        sources = {name: self._put(source) for name, source in past.sources.items()}
        shipped = {name: self._shipped(weight) for name, weight in past.shipped.items()}
        return _PastHead(step=past.step, sources=sources, shipped=shipped)

    def _shipped(self, weight: Shipped) -> str | _PackedHead:
        if isinstance(weight, StoredTensor):
            return _PackedHead(
                packed=self._put(weight.packed),
                code_dtype=_name_of(weight.code_dtype),
                scales=self._put(weight.scales),
                second_scales=None if weight.second_scales is None else self._put(weight.second_scales),
                offset=None if weight.offset is None else self._put(weight.offset),
                shape=weight.shape,
                dtype=_name_of(weight.dtype),
                scheme=weight.scheme,
            )
        return self._put(weight)

    def _put(self, tensor: Tensor) -> str:
        """Adds a tensor; returns the name that it has in the note."""
        held = tensor.contiguous()
        digest = hashlib.sha256(held.reshape(-1).view(torch.uint8).numpy().data).digest()
        name = self._names.setdefault((held.dtype, held.shape, digest), str(len(self._names)))
        self.tensors[name] = held
        return name


def read_memory(note: Note, sources: Mapping[str, Tensor]) -> CheckerMemory:
    """Returns the memory of a note.

    Args:
        note: What `write_memory` gave.
        sources: What the trainer quantizes, by name; that of earlier steps has these shapes and dtypes.

    Raises:
        ValueError: If it is not the memory of a run of this model.
        LookupError: If a tensor is missing.
        RuntimeError: If a packed weight cannot be decoded.
    """
    head = _MemoryHead.model_validate(note.head)
    reading = _Reading(note.tensors, sources)
    past = tuple(map(reading.past, head.past))
    for one in past:
        if one.sources.keys() != sources.keys():
            raise ValueError(f"step {one.step} is remembered of other weights than those of this model")
    return CheckerMemory(
        past=past,
        first=None if head.first is None else reading.past(head.first),
        open=frozenset(((one, other), name) for one, other, name in head.open),
        standing=frozenset(head.standing),
        is_canary_open=head.is_canary_open,
        last_step=head.last_step,
        was_on_grid=head.was_on_grid,
    )


class _Reading:
    """Tensors of a note, with what they are checked against."""

    def __init__(self, tensors: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
        self._tensors, self._sources = tensors, sources

    def past(self, head: _PastHead) -> Past:
        return Past(
            step=head.step,
            sources={name: self._source(name, key) for name, key in head.sources.items()},
            shipped={name: self._shipped(name, held) for name, held in head.shipped.items()},
        )

    def _source(self, name: str, key: str) -> Tensor:
        held, wanted = self._tensors[key], self._sources[name]
        if held.shape != wanted.shape or held.dtype != wanted.dtype:
            raise ValueError(f"an earlier {name} is {held.dtype} {list(held.shape)}, not {list(wanted.shape)}")
        return held

    def _shipped(self, name: str, held: str | _PackedHead) -> Shipped:
        weight = self._tensors[held] if isinstance(held, str) else self._packed(held)
        if math.prod(weight.shape) != self._sources[name].numel():
            raise ValueError(f"an earlier {name} has another number of values than that of this model")
        if isinstance(weight, StoredTensor) and decode_shipped(weight).shape != weight.shape:
            raise ValueError(f"an earlier {name} does not decode to the shape that it claims")
        return weight

    def _packed(self, head: _PackedHead) -> StoredTensor:
        packed = self._tensors[head.packed]
        if min(head.shape, default=0) < 1 or math.prod(head.shape) > _CODES_A_BYTE * packed.nbytes:
            raise ValueError(f"{packed.nbytes} bytes cannot hold codes of shape {list(head.shape)}")
        return StoredTensor(
            packed=packed,
            code_dtype=_DTYPES[head.code_dtype],
            scales=self._tensors[head.scales],
            second_scales=None if head.second_scales is None else self._tensors[head.second_scales],
            offset=None if head.offset is None else self._tensors[head.offset],
            shape=head.shape,
            dtype=_DTYPES[head.dtype],
            scheme=head.scheme,
        )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

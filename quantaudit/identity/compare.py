"""Compares two checkpoints tensor by tensor, one matrix of each side in memory at a time.

Sides are paired by logical name and, inside a stack of experts, by expert. What is on one side only is a difference
and is named. A stack has the class of its worst matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from quantaudit.core.comparison import (
    Comparison,
    Diagnosis,
    DifferingCounts,
    FirstDifference,
    Mode,
    SideInfo,
    TensorClass,
    TensorComparison,
    count_classes,
    is_equal,
)
from quantaudit.core.errors import NotMeasuredError
from quantaudit.identity.compare_diagnosis import diagnose_comparison
from quantaudit.identity.compare_matrix import Explain, Explanation, MatrixComparison, compare_matrices
from quantaudit.identity.compare_record import Record, sketch_both
from quantaudit.identity.layouts.logical import DENSE, LogicalTensor, MatrixSource, Side

Progress = Callable[[str, int, int], None]


@dataclass(slots=True, kw_only=True)
class _Sum:
    """Running totals over the matrices of one logical tensor."""

    mode: Mode
    worst: TensorClass = TensorClass.BYTE_EQUAL
    num_different: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    max_ulps: int | None = None
    first: FirstDifference | None = None
    notes: dict[str, int] = field(default_factory=dict)

    def add(self, expert: int, found: MatrixComparison) -> None:
        """Adds one matrix; its first difference is kept if its class is worse than all before."""
        for part, count in found.differing.model_dump().items():
            if count is not None:
                self.counts[part] = self.counts.get(part, 0) + count
        if found.max_ulps is not None:
            self.max_ulps = max(self.max_ulps or 0, found.max_ulps)
        if found.note:
            self.notes[found.note] = self.notes.get(found.note, 0) + 1
        self.num_different += not is_equal(found.tensor_class, self.mode)
        is_worse = found.tensor_class.rank > self.worst.rank
        if found.first is not None and (self.first is None or is_worse):
            self.first = found.first.model_copy(update={"expert": None if expert == DENSE else expert})
        if is_worse:
            self.worst = found.tensor_class


@torch.no_grad()
def compare_sides(a: Side, b: Side, *, mode: Mode, explain: Explain | None, progress: Progress) -> Comparison:
    """Compares two opened checkpoints.

    Args:
        a: First side, such as the trainer's.
        b: Second side, such as the server's.
        mode: Whether values or bytes decide.
        explain: Names the scheme that makes a packed matrix from a plain one; without it nothing is diagnosed.
        progress: Told (stage, done, total).

    Raises:
        InputError: If a file changes or turns out to be damaged while it is read.
        NotMeasuredError: If no tensor is on both sides.
    """
    names = sorted(a.tensors.keys() | b.tensors.keys())
    if not a.tensors.keys() & b.tensors.keys():
        raise NotMeasuredError(
            f"no tensor is on both sides: {a.path} has names like {next(iter(a.tensors))!r}, "
            f"{b.path} like {next(iter(b.tensors))!r}"
        )
    explained: dict[tuple[str, str], Explanation] = {}
    records: dict[str, dict[int, Record]] = {}
    tensors: list[TensorComparison] = []
    for done, name in enumerate(names):
        progress("compare", done, len(names))
        pair = a.tensors.get(name), b.tensors.get(name)
        tensors.append(_compare_tensor(name, *pair, mode, explain, explained, records.setdefault(name, {})))
    progress("compare", len(names), len(names))
    diagnosis = () if explain is None else diagnose_comparison(a, b, tensors, explained, records)
    return combine(_info(a), _info(b), tuple(tensors), mode, diagnosis=diagnosis)


def combine(
    a: SideInfo,
    b: SideInfo,
    tensors: tuple[TensorComparison, ...],
    mode: Mode,
    *,
    diagnosis: tuple[Diagnosis, ...] = (),
) -> Comparison:
    """Returns the comparison that these tensors make."""
    return Comparison(
        mode=mode,
        identical=all(is_equal(tensor.tensor_class, mode) for tensor in tensors),
        a=a,
        b=b,
        counts=count_classes(tensors),
        only_a=tuple(tensor.name for tensor in tensors if not tensor.b_encoding),
        only_b=tuple(tensor.name for tensor in tensors if not tensor.a_encoding),
        tensors=tensors,
        diagnosis=diagnosis,
    )


def missing(name: str, shape: tuple[int, ...], num_matrices: int, a_encoding: str, b_encoding: str) -> TensorComparison:
    """Returns the entry of a tensor that one side lacks: its encoding there is empty."""
    return TensorComparison(
        name=name,
        tensor_class=TensorClass.LAYER_SET,
        shape=shape,
        num_matrices=num_matrices,
        num_different=num_matrices,
        a_encoding=a_encoding,
        b_encoding=b_encoding,
        differing=DifferingCounts(),
        note=f"only on the {'second' if b_encoding else 'first'} side",
    )


def _compare_tensor(
    name: str,
    a: LogicalTensor | None,
    b: LogicalTensor | None,
    mode: Mode,
    explain: Explain | None,
    explained: dict[tuple[str, str], Explanation],
    records: dict[int, Record],
) -> TensorComparison:
    if a is None or b is None:
        only = a or b
        assert only is not None
        shape = next(iter(only.matrices.values())).shape
        return missing(name, shape, len(only.matrices), a.storage if a else "", b.storage if b else "")
    total = _Sum(mode=mode)
    for expert, found in _compare_matrices_of(a, b, explain, records):
        total.add(expert, found)
        if found.explanation is not None:
            key = (name, found.explanation.scheme)
            explained[key] = min(found.explanation, explained.get(key, found.explanation), key=lambda e: e.explains)
    return TensorComparison(
        name=name,
        tensor_class=total.worst,
        shape=next(iter(a.matrices.values())).shape,
        num_matrices=len(a.matrices.keys() | b.matrices.keys()),
        num_different=total.num_different,
        a_encoding=a.storage,
        b_encoding=b.storage,
        differing=DifferingCounts(**total.counts),
        max_ulps=total.max_ulps,
        first=total.first,
        note="; ".join(f"{note} ({count} matrices)" if count > 1 else note for note, count in total.notes.items()),
    )


def _compare_matrices_of(
    a: LogicalTensor, b: LogicalTensor, explain: Explain | None, records: dict[int, Record]
) -> Iterator[tuple[int, MatrixComparison]]:
    for expert in sorted(a.matrices.keys() | b.matrices.keys()):
        left, right = a.matrices.get(expert), b.matrices.get(expert)
        if left is None or right is None:
            side = "first" if right is None else "second"
            note = f"expert {expert} is only on the {side} side"
            yield expert, MatrixComparison(tensor_class=TensorClass.LAYER_SET, note=note)
        elif left.shape != right.shape:
            yield expert, _other_shape(left, right)
        else:
            matrices = left.read(), right.read()
            found = compare_matrices(*matrices, explain)
            if all(matrix.is_decodable for matrix in matrices):
                share = None if found.explanation is None else found.explanation.explains
                records[expert] = Record(found.differing.values or 0, found.rows, *sketch_both(*matrices), share)
            yield expert, _with_coordinates(found, left.shape)


def _other_shape(left: MatrixSource, right: MatrixSource) -> MatrixComparison:
    note = f"{list(left.shape)} on the first side, {list(right.shape)} on the second"
    return MatrixComparison(tensor_class=TensorClass.DIFFERENT_SHAPE, note=note)


def _with_coordinates(found: MatrixComparison, shape: tuple[int, ...]) -> MatrixComparison:
    """Returns the comparison with the coordinate of its first difference in the tensor's own axes."""
    if found.first is None or len(shape) == 2:
        return found
    row, col = found.first.coordinate
    coordinate: list[int] = [col] if shape else []
    for size in reversed(shape[:-1]):
        coordinate.append(row % size)
        row //= size
    first = found.first.model_copy(update={"coordinate": tuple(reversed(coordinate))})
    return replace(found, first=first)


def _info(side: Side) -> SideInfo:
    return SideInfo(path=side.path, kind=side.kind, num_tensors=len(side.tensors), num_bytes=side.num_bytes)

"""Exports what a worker of an engine holds: call it after a weight load. Torch and the standard library only.

    shard = export_shard([HeldWeight(name="layers.2.experts.gate", parts={"codes": c, "scales": s}, coding="mxfp4")])
    write_whole(Path("served-rank-3.json"), shard.to_json())

Weights are decoded one matrix at a time, and nothing but leaves (`leaf`) leaves the device. A weight comes with its
logical name (`held` finds it), its parts, and its coding: a named one, or a function from the parts of one matrix to
its values, for a layout that the engine derived. Values alone, fake-quantized ones too, are plain numbers.

Workers of tensor- and expert-parallel engines say where their boxes begin; `merge` makes their shards one manifest,
equal to that of `quantaudit fingerprint` for the checkpoint that was loaded.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.hooks.codings import (
    CODINGS,
    NUMBERS,
    SCALES,
    Parts,
    Tile,
    describe_parts,
    describe_storage,
    is_coded,
)
from quantaudit.hooks.held import HeldWeight
from quantaudit.hooks.leaf import Leaf, leaf_of_bytes, leaf_of_values
from quantaudit.hooks.shards import Entry, Place, Shard

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_MATRIX_BITS, _PART_BITS = 40, 36  # matrices, and parts of one, begin that many bits of rows apart: no key is shared


class _Matrix(NamedTuple):
    """One matrix, decoded: values, the parts whose bytes are digested, what shares a scale, how it is written."""

    values_RC: Tensor
    stored: Parts
    tile: Tile
    storage: str


@torch.no_grad()
def export_shard(
    weights: Iterable[HeldWeight],
    *,
    worker: str = "",
    weight_version: int | None = None,
    decoded_to: str = "bfloat16",
    experts: bool = True,
) -> Shard:
    """Returns the leaves of what this worker holds.

    Args:
        weights: All of it; a tensor may come in several boxes.
        worker: Who this is, such as "rank 3".
        weight_version: Which weights were loaded.
        decoded_to: "bfloat16" or "float32": dtype that codes are decoded to. Plain numbers keep theirs.
        experts: Whether single experts get leaves.

    Raises:
        InputError: If a weight cannot be decoded, does not lie in its whole, or is cut through what shares a scale.
    """
    if decoded_to not in _DTYPES:
        raise InputError(f"decoded_to={decoded_to!r}", expected=" or ".join(_DTYPES), fix="correct it")
    entries = tuple(_entry(weight, _DTYPES[decoded_to], with_experts=experts) for weight in weights)
    return Shard(worker=worker, weight_version=weight_version, decoded_to=decoded_to, entries=entries)


def _entry(weight: HeldWeight, dtype: torch.dtype, *, with_experts: bool) -> Entry:
    leaves: list[Leaf] = []
    of_bytes, shape, rows, storage, size = Leaf(), weight.shape or (), 0, "", weight.first
    first_expert, first_row, first_col = weight.first
    for matrix in _read(weight, dtype):
        if not leaves:
            size = (_num_matrices(weight), *matrix.values_RC.shape)
            shape = weight.shape or _own_shape(weight, size)
            rows, storage = _check_inside(weight, shape, size), matrix.storage
        expert = first_expert + len(leaves)
        leaves.append(leaf_of_values(matrix.values_RC, first_row=expert * rows + first_row, first_col=first_col))
        of_bytes += _byte_leaf(weight, matrix, expert)
    return Entry(
        name=weight.name,
        shape=shape,
        storage=storage,
        is_stack=weight.is_stack,
        first=weight.first,
        size=size,
        values=sum(leaves, Leaf()).hex,
        bytes=of_bytes.hex,
        experts=tuple(leaf.hex for leaf in leaves) if weight.is_stack and with_experts else (),
    )


def _num_matrices(weight: HeldWeight) -> int:
    if not weight.is_stack:
        return 1
    counts = {len(part) for part in weight.parts.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(
            f"{weight.name} with parts of {sorted(counts)} experts", expected="one number", fix="cut alike"
        )
    return counts.pop()


def _read(weight: HeldWeight, dtype: torch.dtype) -> Iterator[_Matrix]:
    for i in range(_num_matrices(weight)):
        parts = {n: part[i] if weight.is_stack else _as_rows(part) for n, part in weight.parts.items()}
        if callable(weight.coding):
            values_RC = weight.coding(parts).to(dtype)
            # Bytes of a layout of the engine's own are nobody else's: those of its values stand for them.
            yield _Matrix(values_RC, {NUMBERS: values_RC}, Tile(1, 1), weight.storage)
            continue
        coding = CODINGS.get(weight.coding)
        if coding is None or not is_coded(coding, parts):
            raise InputError(
                f"{weight.name} as {weight.coding!r} with {describe_parts(parts)}",
                expected=f"a coding of {', '.join(CODINGS)} and parts that fit each other, or a function",
                fix="correct the coding or its parts",
            )
        values_RC = coding.decode(parts)
        values_RC = values_RC if NUMBERS in parts else values_RC.to(dtype)
        yield _Matrix(values_RC, parts, coding.tile(parts), describe_storage(coding, parts))


def _as_rows(part: Tensor) -> Tensor:
    return part.reshape(-1, part.shape[-1]) if part.dim() else part.reshape(1, 1)


def _own_shape(weight: HeldWeight, size: Place) -> tuple[int, ...]:
    if weight.is_stack:
        return size
    return tuple(weight.parts[NUMBERS].shape) if NUMBERS in weight.parts else size[1:]


def _check_inside(weight: HeldWeight, shape: tuple[int, ...], size: Place) -> int:
    """Returns the rows of a matrix of the whole, once the box is known to lie in it."""
    per_matrix = shape[1:] if weight.is_stack else shape
    rows = math.prod(per_matrix[:-1])
    whole = (shape[0] if weight.is_stack else 1, rows, per_matrix[-1] if per_matrix else 1)
    if any(begin < 0 or begin + length > end for begin, length, end in zip(weight.first, size, whole, strict=True)):
        raise InputError(
            f"a box of {list(size)} at {list(weight.first)} of {weight.name}",
            expected=f"one inside {list(whole)}: experts, rows, columns",
            fix="correct `shape` or `first`",
        )
    return rows


def _byte_leaf(weight: HeldWeight, matrix: _Matrix, expert: int) -> Leaf:
    total, (_, first_row, first_col), num_cols = Leaf(), weight.first, matrix.values_RC.shape[1]
    for number, name in enumerate(sorted(matrix.stored)):
        part = matrix.stored[name]
        lines = part.contiguous().view(torch.uint8)
        tile = matrix.tile if name == SCALES else Tile(1, 1)
        columns = -(-num_cols // tile.cols)  # places in a line: codes share bytes, scales have some each
        row, row_left = divmod(first_row, tile.rows)
        byte, byte_left = divmod(first_col * lines.shape[-1], tile.cols * columns)
        if row_left or byte_left or first_col % tile.cols:
            raise InputError(
                f"a box of {weight.name} that begins at row {first_row}, column {first_col}",
                expected=f"a cut between tiles of {matrix.tile.rows} x {matrix.tile.cols}, which share a scale",
                fix="shard along whole tiles",
            )
        place = (expert << _MATRIX_BITS) + (number << _PART_BITS) + row
        total += leaf_of_bytes(lines, first_row=place, first_col=byte)
    return total

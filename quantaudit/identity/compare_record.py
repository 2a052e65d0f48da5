"""What comparing two matrices leaves for the diagnosis: how many values differ, a few rows, and sketches of both sides.

A sketch is a digest of some rows. Equal matrices have equal sketches, so that which expert may stand in the place of
another is known without reading any of them again.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix

_VALUE_ROWS, _SCALE_ROWS = 4, 64


class Sketch(NamedTuple):
    """Digests of some rows of a matrix: of the values, and of stored scales; the latter empty where there are none."""

    values: bytes
    scales: bytes


class Record(NamedTuple):
    """Two matrices that were compared.

    Attributes:
        num_values: Values that differ.
        rows: A few of the rows that do.
        a: Sketch of the first side.
        b: Sketch of the second.
        explains: Of a master and codes, the share of values that a scheme gives; `None` where none was looked for.
    """

    num_values: int
    rows: tuple[int, ...]
    a: Sketch
    b: Sketch
    explains: float | None = None


Records: TypeAlias = Mapping[str, Mapping[int, Record]]


def sketch_both(a: StoredMatrix, b: StoredMatrix) -> tuple[Sketch, Sketch]:
    """Returns the sketches of two readable matrices of one shape."""
    dtype = common_dtype(a, b)
    return _sketch(a, dtype), _sketch(b, dtype)


def common_dtype(a: StoredMatrix, b: StoredMatrix) -> torch.dtype:
    """Returns bfloat16 where a side is, else float32: values of both are compared in it."""
    return torch.bfloat16 if torch.bfloat16 in (a.dtype, b.dtype) else torch.float32


def _sketch(matrix: StoredMatrix, dtype: torch.dtype) -> Sketch:
    if not matrix.shape[0] or not matrix.shape[1]:
        return Sketch(b"", b"")
    values = [matrix.values(slice(row, row + 1), dtype) + 0 for row in _spread(matrix.shape[0], _VALUE_ROWS)]
    packing = matrix.packing
    if packing is None or packing.scale is ScaleKind.E4M3:
        return Sketch(_digest(values), b"")
    stored = matrix.parts[Part.SCALES]
    return Sketch(_digest(values), _digest([stored[row] for row in _spread(stored.shape[0], _SCALE_ROWS)]))


def _spread(num_rows: int, most: int) -> list[int]:
    return [row * num_rows // most for row in range(most)] if num_rows > most else list(range(num_rows))


def _digest(rows: list[Tensor]) -> bytes:
    """Returns a digest of numbers; -0 was taken for +0 by adding zero."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(row.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()

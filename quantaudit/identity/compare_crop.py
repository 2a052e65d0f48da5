"""Rows cut out of stored matrices, and made weights of: as much of a layer as is looked at.

Rows of a matrix whose scales are shared by several rows are cut in whole tiles, so that they decode as they do inside.

Shape suffixes: K rows, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentScale, Scheme
from quantaudit.identity.layouts.logical import DENSE, LogicalTensor, MatrixSource
from quantaudit.identity.layouts.stored import Packing, Part, StoredMatrix
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.identity.stored_weights import read_weight
from quantaudit.numerics.reference import QuantizedTensor

_kept_schemes: dict[tuple[Packing | None, tuple[int, int]], Scheme] = {}  # that decode as a matrix of this packing


def tile_height(matrix: StoredMatrix) -> int:
    """Returns how many rows share scales; 1 where a matrix has one scale, which any rows decode with."""
    packing = matrix.packing
    return 1 if packing is None or packing.tile_rows >= matrix.shape[0] else packing.tile_rows


def crop(matrix: StoredMatrix, rows_K: Tensor, num_cols: int | None = None) -> StoredMatrix:
    """Returns some rows of a matrix, and of these the first columns.

    Args:
        matrix: Plain or packed.
        rows_K: Numbers of rows, int64; whole tiles where several rows share scales.
        num_cols: How many columns, a multiple of the width of a tile; all if not given.
    """
    width = num_cols or matrix.shape[1]
    shape = len(rows_K), width
    packing = matrix.packing
    if packing is None:
        return replace(matrix, shape=shape, parts={Part.NUMBERS: matrix.parts[Part.NUMBERS][rows_K, :width]})
    codes, scales = matrix.parts[Part.CODES], matrix.parts[Part.SCALES]
    parts = {**matrix.parts, Part.CODES: codes[rows_K, : codes.shape[1] * width // matrix.shape[1]]}
    height = tile_height(matrix)
    if packing.tile_rows == 1 or height > 1:
        parts[Part.SCALES] = scales[rows_K[::height] // height]
    parts[Part.SCALES] = parts[Part.SCALES][:, : -(-width // packing.tile_cols)]
    tile = (height if height > 1 or packing.tile_rows == 1 else len(rows_K)), min(packing.tile_cols, width)
    return replace(matrix, shape=shape, parts=parts, packing=replace(packing, tile_rows=tile[0], tile_cols=tile[1]))


def as_layer(stored: Mapping[Projection, Sequence[StoredMatrix]], *, is_stack: bool) -> Layer:
    """Returns the weights of some matrices, [E, R, C] of experts and [R, C] of a single one, values in their own dtype.

    Args:
        stored: Matrices of one shape, by projection.
        is_stack: Whether they are experts.
    """
    return {name: _as_weight(matrices, is_stack=is_stack) for name, matrices in stored.items()}


def _as_weight(stored: Sequence[StoredMatrix], *, is_stack: bool) -> Weight:
    kinds = {(matrix.packing, matrix.shape) for matrix in stored}
    scheme = _kept_schemes.get(next(iter(kinds))) if len(kinds) == 1 else None
    if scheme is None:  # pieces of one matrix are alike, and looking through all schemes takes longer than a piece
        weight = _read(stored, is_stack=is_stack)
        if len(kinds) == 1 and weight.quantized is not None:
            _kept_schemes[kinds.pop()] = weight.quantized.scheme
        return weight
    rows = slice(0, stored[0].shape[0])
    values = [matrix.values(rows) for matrix in stored]
    codes = [matrix.codes(rows) for matrix in stored]
    is_power = isinstance(scheme.scale, ExponentScale)
    scales = [one.parts[Part.SCALES].view(torch.uint8) if is_power else one.scales() for one in stored]
    joined, grid, decoded = (torch.stack(x) if is_stack else x[0] for x in (codes, scales, values))
    quantized = QuantizedTensor(
        codes=joined,
        scales=grid,
        second_scales=None,
        offset=None,
        shape=tuple(joined.shape),
        dtype=torch.float32,
        scheme=scheme,
    )
    return Weight(values=decoded, quantized=quantized)


def _read(stored: Sequence[StoredMatrix], *, is_stack: bool) -> Weight:
    numbers = range(len(stored)) if is_stack else (DENSE,)
    sources = {number: _source(matrix) for number, matrix in zip(numbers, stored, strict=True)}
    return read_weight(LogicalTensor(name="", matrices=sources), list(numbers))


def decode_rows(matrix: StoredMatrix, rows_K: Tensor) -> Tensor:
    """Returns the values of any rows, [K, C], in their own dtype."""
    if matrix.packing is None:
        numbers: Tensor = matrix.parts[Part.NUMBERS][rows_K]
        return numbers
    # A row of its own decodes with the scales of its tile.
    scales = matrix.parts[Part.SCALES][rows_K // matrix.packing.tile_rows]
    parts = {**matrix.parts, Part.CODES: matrix.parts[Part.CODES][rows_K], Part.SCALES: scales}
    packing, shape = replace(matrix.packing, tile_rows=1), (len(rows_K), matrix.shape[1])
    return replace(matrix, shape=shape, parts=parts, packing=packing).values(slice(0, len(rows_K)))


def _source(matrix: StoredMatrix) -> MatrixSource:
    return MatrixSource(
        label="rows",
        encoding=matrix.encoding,
        storage="",
        shape=matrix.shape,
        num_bytes=matrix.num_bytes,
        read=lambda: matrix,
    )

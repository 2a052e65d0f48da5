"""Which values share a scale: a tensor is seen as groups, and groups as a tensor again.

A tensor of shape [..., R, C] is a stack of S matrices (S = product of the leading axes; a vector is one row). Every
granularity acts inside a matrix, so an expert of a stack [E, R, C] is quantized as if it were alone.

Shape suffixes: S stack, R rows, C columns, G groups of a matrix, N members of a group, D.. tile axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import FlatBlocks, Granularity, PerBlock, PerGroup, PerTensor


class Plan(NamedTuple):
    """How one shape is cut.

    Attributes:
        leading: Axes of the stack.
        rows: R.
        cols: C.
        tile_rows: Rows of a tile.
        tile_cols: Columns of a tile.
        is_flat: Whether rows are first joined into one.
        grid: Shape of the scales: leading + groups of a matrix.
    """

    leading: tuple[int, ...]
    rows: int
    cols: int
    tile_rows: int
    tile_cols: int
    is_flat: bool
    grid: tuple[int, ...]

    @property
    def num_groups(self) -> int:
        """Groups of one matrix."""
        return math.prod(self.grid[len(self.leading) :])


def plan(shape: tuple[int, ...], granularity: Granularity) -> Plan:
    """Works out the groups of a shape.

    Raises:
        InputError: If the shape has no axis, no element along its last axis, or a group size that does not divide it.
    """
    if not shape or shape[-1] == 0:
        raise InputError(f"a tensor of shape {list(shape)}", expected="at least one column", fix="skip empty tensors")
    leading, rows, cols = shape[:-2], (shape[-2] if len(shape) > 1 else 1), shape[-1]
    is_flat = isinstance(granularity, FlatBlocks | PerTensor)
    if is_flat and rows == 0:
        raise InputError(f"a tensor of shape {list(shape)}", expected="at least one row", fix="skip empty tensors")
    if isinstance(granularity, PerGroup) and cols % granularity.size:
        raise InputError(
            f"a tensor of shape {list(shape)} with groups of {granularity.size}",
            expected=f"a last axis that is a multiple of {granularity.size}, got {cols}",
            fix="choose a group size that divides it, or leave this tensor out with a rule",
        )
    if is_flat:
        size = granularity.size if isinstance(granularity, FlatBlocks) else rows * cols
        num_blocks = -(-rows * cols // size)
        grid = (*leading, num_blocks) if isinstance(granularity, FlatBlocks) else (*leading, 1, 1)
        return Plan(leading, 1, rows * cols, 1, size, is_flat, grid)
    tile_rows, tile_cols = _tile(granularity, cols)
    grid = (*leading, -(-rows // tile_rows), -(-cols // tile_cols))
    return Plan(leading, rows, cols, tile_rows, tile_cols, is_flat, grid if len(shape) > 1 else grid[1:])


def _tile(granularity: Granularity, cols: int) -> tuple[int, int]:
    if isinstance(granularity, PerGroup):
        return 1, granularity.size
    return (granularity.rows, granularity.cols) if isinstance(granularity, PerBlock) else (1, cols)


def to_groups(x: Tensor, cut: Plan) -> Tensor:
    """Returns the groups of a tensor, partial tiles filled with zeros, which no statistic notices.

    Args:
        x: [..., R, C], any dtype.
        cut: The plan of its shape.

    Returns:
        [S, G, N].
    """
    stack = math.prod(cut.leading)
    x_SRC = x.reshape(stack, cut.rows, cut.cols)
    tiles_r, tiles_c = -(-cut.rows // cut.tile_rows), -(-cut.cols // cut.tile_cols)
    missing_r, missing_c = tiles_r * cut.tile_rows - cut.rows, tiles_c * cut.tile_cols - cut.cols
    if missing_r or missing_c:
        x_SRC = torch.nn.functional.pad(x_SRC, (0, missing_c, 0, missing_r))
    tiled = x_SRC.reshape(stack, tiles_r, cut.tile_rows, tiles_c, cut.tile_cols)
    return tiled.transpose(2, 3).reshape(stack, tiles_r * tiles_c, cut.tile_rows * cut.tile_cols)


def from_groups(groups_SGN: Tensor, cut: Plan, shape: tuple[int, ...]) -> Tensor:
    """Returns the tensor of a shape from its groups, [S, G, N], dropping the filling (the inverse of `to_groups`)."""
    stack = math.prod(cut.leading)
    tiles_r, tiles_c = -(-cut.rows // cut.tile_rows), -(-cut.cols // cut.tile_cols)
    tiled = groups_SGN.reshape(stack, tiles_r, tiles_c, cut.tile_rows, cut.tile_cols).transpose(2, 3)
    x_SRC = tiled.reshape(stack, tiles_r * cut.tile_rows, tiles_c * cut.tile_cols)
    return x_SRC[:, : cut.rows, : cut.cols].reshape(shape)

"""Whether plain numbers are fake-quantized, and how they differ from packed ones then.

A group of unquantized numbers has about as many magnitudes as members; a fake-quantized one has no more than the format
has codes, whatever its scale is. That is asked of 4-bit formats, whose groups are larger than their sets of magnitudes.

A group lies on the packed scale if some codes, times that scale, give its numbers exactly. The others have another
scale; in groups that lie on it, codes are compared.

Shape suffixes: R rows, C columns, G groups of a row, N members of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.format import CodebookFormat, FloatFormat, IntegerFormat, code_values
from quantaudit.identity.layouts.stored import StoredMatrix

_MAX_BITS = 4
_SAMPLED_VALUES = 1 << 16


class GridCounts(NamedTuple):
    """Groups with another scale, and other codes in the groups that share the packed scale."""

    scales: int
    codes: int


def is_on_some_grid(plain: StoredMatrix, packed: StoredMatrix) -> bool:
    """Tells whether every group of a plain matrix has at most as many magnitudes as the packed format (a sample)."""
    assert packed.packing is not None
    size, element = packed.packing.tile_cols, packed.packing.element
    num_magnitudes = len({abs(v) for v in _numbers(element)})
    if element.bits > _MAX_BITS or packed.packing.tile_rows != 1 or size <= num_magnitudes or plain.shape[1] % size:
        return False
    rows = slice(0, min(plain.shape[0], max(1, _SAMPLED_VALUES // plain.shape[1])))
    groups_GN = plain.values(rows).abs().reshape(-1, size).sort(dim=-1).values
    num_found = (groups_GN[:, 1:] != groups_GN[:, :-1]).sum(-1) + 1
    return bool((num_found <= num_magnitudes).all())


def count_on_grid(plain: StoredMatrix, packed: StoredMatrix) -> GridCounts:
    """Counts where fake-quantized numbers differ from packed ones."""
    assert packed.packing is not None and plain.dtype is not None
    size, num_scales, num_codes = packed.packing.tile_cols, 0, 0
    numbers = torch.tensor(sorted(set(_numbers(packed.packing.element))))
    for rows in plain.row_pieces():
        wanted = plain.values(rows)
        scales = packed.row_scales(rows)
        nearest = _round_to(wanted / torch.where(scales == 0, 1.0, scales), numbers)
        is_reached = (nearest * scales).to(plain.dtype).float() == wanted
        shares_scale = is_reached.reshape(-1, size).all(-1, keepdim=True)
        differs = (wanted != packed.values(rows, plain.dtype).float()).reshape(-1, size)
        num_scales += int((~shares_scale).sum())
        num_codes += int((differs & shares_scale).sum())
    return GridCounts(num_scales, num_codes)


def _numbers(element: FloatFormat | IntegerFormat | CodebookFormat) -> list[float]:
    if isinstance(element, IntegerFormat):
        return [float(code) for code in range(element.min_code, element.max_code + 1)]
    return list(code_values(element))


def _round_to(x: Tensor, numbers: Tensor) -> Tensor:
    """Returns the nearest of some ascending numbers; which one at a tie does not matter, ties are no codes."""
    return numbers[torch.bucketize(x, (numbers[1:] + numbers[:-1]) / 2)]

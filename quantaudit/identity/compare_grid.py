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
_STEPS = (1.0, 0.5)


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
    grid = _Grid(sorted(set(_numbers(packed.packing.element))))
    for rows in plain.row_pieces():
        wanted = plain.values(rows).view(rows.stop - rows.start, -1, size)
        scales = packed.scales(rows).unsqueeze(-1)
        nearest = grid.round(wanted / torch.where(scales == 0, 1.0, scales))
        is_reached = nearest.mul_(scales).to(plain.dtype) == wanted.to(plain.dtype)
        shares_scale = is_reached.all(-1, keepdim=True)
        differs = wanted != packed.values(rows, plain.dtype).view(wanted.shape)
        num_scales += shares_scale.numel() - int(torch.count_nonzero(shares_scale))
        num_codes += int(torch.count_nonzero(differs & shares_scale)) if bool(shares_scale.any()) else 0
    return GridCounts(num_scales, num_codes)


class _Grid:
    """The numbers of a format, to round to: by their multiple of one step where they have one, else by search."""

    def __init__(self, numbers: list[float]) -> None:
        self._numbers = torch.tensor(numbers)
        steps = [step for step in _STEPS if all((number / step).is_integer() for number in numbers)]
        self._step = steps[0] if steps else None
        if self._step is not None:
            self._most = int(max(map(abs, numbers)) / self._step) + 1
            self._table = torch.full((2 * self._most + 1,), torch.nan)  # between numbers there is none
            self._table[(self._numbers / self._step).long() + self._most] = self._numbers

    def round(self, x: Tensor) -> Tensor:
        """Returns the nearest numbers; what is not near any may become NaN, and at a tie either does."""
        if self._step is None:
            return self._numbers[torch.bucketize(x, (self._numbers[1:] + self._numbers[:-1]) / 2)]
        steps = (x / self._step).round_().clamp_(-self._most, self._most).add_(self._most)
        return self._table.index_select(0, steps.to(torch.int32).flatten()).view(x.shape)


def _numbers(element: FloatFormat | IntegerFormat | CodebookFormat) -> list[float]:
    if isinstance(element, IntegerFormat):
        return [float(code) for code in range(element.min_code, element.max_code + 1)]
    return list(code_values(element))

"""Whether plain numbers are fake-quantized, and how they differ from packed ones then.

A group of unquantized numbers has about as many magnitudes as members; a fake-quantized one has no more than the format
has codes, whatever its scale is. That is asked of 4-bit formats, whose groups are larger than their sets of magnitudes.

A group lies on the packed scale if some codes, times that scale, give its numbers exactly. The others have another
scale; in groups that lie on it, codes are compared. E2M1 under powers of two is told by the bits of bf16: the numbers
.5, 1, 1.5, 2, 3, 4, 6 lie half binades apart, as 0, 2, 3, 4, 5, 6, 7 steps of 2^6 from the first.

Shape suffixes: G groups of all rows, K groups of some rows, N members of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.format import CodebookFormat, FloatFormat, IntegerFormat, code_values
from quantaudit.identity.compare_powers import are_safe_powers
from quantaudit.identity.compare_values import any_in_rows
from quantaudit.identity.layouts.stored import Part, StoredMatrix

_MAX_BITS = 4
_SAMPLED_VALUES = 1 << 16
_STEPS = (1.0, 0.5)
_PIECE = 1 << 17  # numbers whose bits are looked at together
# Of bf16: the place of the exponent, of its least half binade, and the bits that a number of E2M1 leaves free.
_FRACTION_BITS = 7
_HALF_BINADE = 6
_NO_STEP = 1  # .75, which E2M1 has not
_MAGNITUDE = 0x7FFF


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
    is_on_scale = _choose(plain, packed)
    for rows in plain.row_pieces(_PIECE):
        shares_K = is_on_scale(rows)
        num_shared = int(torch.count_nonzero(shares_K))
        num_scales += shares_K.numel() - num_shared
        if num_shared:
            differs = plain.values(rows, plain.dtype) != packed.values(rows, plain.dtype)
            num_codes += int(torch.count_nonzero(differs.view(-1, size)[shares_K]))
    return GridCounts(num_scales, num_codes)


def _choose(plain: StoredMatrix, packed: StoredMatrix) -> Callable[[slice], Tensor]:
    """Returns what tells of some rows which groups lie on the packed scale, [K] bool."""
    assert packed.packing is not None
    if plain.dtype is torch.bfloat16 and are_safe_powers(packed):
        return partial(_are_on_powers, plain, packed)
    return partial(_are_on_scales, plain, packed, _Grid(sorted(set(_numbers(packed.packing.element)))))


def _are_on_powers(plain: StoredMatrix, packed: StoredMatrix, rows: slice) -> Tensor:
    """Tells by bits which groups of bf16 are E2M1 under the packed powers of two: all products are normal numbers."""
    assert packed.packing is not None
    magnitude_KN = plain.parts[Part.NUMBERS][rows].contiguous().view(torch.int16).view(-1, packed.packing.tile_cols)
    magnitude_KN = magnitude_KN & _MAGNITUDE
    exponents_K1 = packed.parts[Part.SCALES][rows].view(torch.uint8).reshape(-1, 1).to(torch.int16)
    from_half_KN = magnitude_KN - (exponents_K1 - 1 << _FRACTION_BITS)
    # Rotated, so that what is not a whole number of steps is as large or negative as what is too large or too small.
    steps_KN = (from_half_KN >> _HALF_BINADE).bitwise_or_(from_half_KN << 16 - _HALF_BINADE)
    is_off_KN = (steps_KN < 0).logical_or_(steps_KN > 7).logical_or_(steps_KN == _NO_STEP)
    return ~any_in_rows(is_off_KN.logical_and_(magnitude_KN != 0))


def _are_on_scales(plain: StoredMatrix, packed: StoredMatrix, grid: _Grid, rows: slice) -> Tensor:
    assert packed.packing is not None and plain.dtype is not None
    wanted_KN = plain.values(rows).view(-1, packed.packing.tile_cols)
    scales_K1 = packed.scales(rows).view(-1, 1)
    nearest_KN = grid.round(wanted_KN / torch.where(scales_K1 == 0, 1.0, scales_K1))
    return ~any_in_rows(nearest_KN.mul_(scales_K1).to(plain.dtype) != wanted_KN.to(plain.dtype))


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

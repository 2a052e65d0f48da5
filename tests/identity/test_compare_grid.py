"""Which groups of fake-quantized numbers lie on a packed scale, by bits and by rounding, is what a loop says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E2M1, INT4, Format, code_values
from quantaudit.core.scheme import Layout
from quantaudit.identity import compare_grid
from quantaudit.identity.compare_grid import GridCounts, count_on_grid
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.numerics import pack

ROWS, COLS, SIZE = 12, 96, 32


def packed(element: Format = E2M1, exponents: tuple[int, int] = (100, 150)) -> StoredMatrix:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 16, (ROWS, COLS), generator=generator).to(torch.uint8)
    codes = (codes.to(torch.int8) - 8).clamp(min=-7) if element == INT4 else codes
    scales = torch.randint(*exponents, (ROWS, COLS // SIZE), generator=generator).to(torch.uint8)
    packing = Packing(
        element=element, layout=Layout.LOW_NIBBLE_FIRST, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=SIZE
    )
    parts = {Part.CODES: pack(codes, packing.layout), Part.SCALES: scales}
    return StoredMatrix(encoding=Encoding.MXFP4, shape=(ROWS, COLS), parts=parts, packing=packing)


def plain(numbers: Tensor) -> StoredMatrix:
    return StoredMatrix(encoding=Encoding.PLAIN, shape=(ROWS, COLS), parts={Part.NUMBERS: numbers})


def counted_in_a_loop(numbers: Tensor, other: StoredMatrix) -> GridCounts:
    """Counts number by number: a group shares the scale if every number is a code times it."""
    assert other.packing is not None
    values = other.values(slice(0, ROWS), numbers.dtype).view(-1, SIZE)
    scales, found = other.scales().flatten().tolist(), [0, 0]
    integers = [float(code) for code in range(-8, 8)]
    codes = {abs(code) for code in (code_values(E2M1) if other.packing.element == E2M1 else integers)}
    for group, scale, served in zip(numbers.float().view(-1, SIZE).tolist(), scales, values.tolist(), strict=True):
        if all(abs(number) / scale in codes for number in group):
            found[1] += sum(x != y for x, y in zip(group, served, strict=True))
        else:
            found[0] += 1
    return GridCounts(*found)


def changed(values: Tensor, how: str) -> Tensor:
    """Returns other numbers in some groups."""
    groups = values.clone().view(-1, SIZE)
    match how:
        case "halved":
            groups[::2] /= 2
        case "doubled":
            groups[1::3] *= 2
        case "other fractions":
            groups[::2, 5] *= 1.0078125
        case "three quarters of one":
            groups[::4, 7] = groups[::4].abs().amax(1) / 8
            groups[1::4, 7] = groups[1::4].abs().amax(1) / 8 * 3
        case "zeros":
            groups[::3] *= -0.0
        case "far":
            groups[0::3, 0], groups[1::3, 0], groups[2::3, 0] = 3e38, 1e-38, 2.0**-130
        case "signs":
            groups[::2, ::3] *= -1
    return groups.view(values.shape)


CHANGES = ("none", "halved", "doubled", "other fractions", "three quarters of one", "zeros", "far", "signs")


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("element", [E2M1, INT4])
def test_counts_are_those_of_a_loop(
    element: Format, dtype: torch.dtype, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_grid, "_PIECE", 5 * COLS)
    other = packed(element)
    numbers = changed(other.values(slice(0, ROWS), dtype), how)
    expected = counted_in_a_loop(numbers, other)
    assert count_on_grid(plain(numbers), other) == expected
    assert (expected.scales > 0) == (how in ("halved", "doubled", "other fractions", "three quarters of one", "far"))


@pytest.mark.parametrize("exponents", [(2, 4), (250, 253), (1, 3), (251, 254)])
def test_scales_at_the_ends_of_the_range(exponents: tuple[int, int]) -> None:
    other = packed(exponents=exponents)
    for how in ("none", "halved", "signs"):
        numbers = changed(other.values(slice(0, ROWS), torch.bfloat16), how)
        assert count_on_grid(plain(numbers), other) == counted_in_a_loop(numbers, other)


def test_every_number_under_one_scale_is_told_by_its_bits() -> None:
    bits = torch.arange(0x8000, dtype=torch.int32).to(torch.int16)
    numbers = bits[: 0x7F80 // COLS * COLS].view(torch.bfloat16).view(-1, COLS)
    codes = {abs(code) for code in code_values(E2M1)}
    scale = torch.full((1, COLS), 131, dtype=torch.uint8)
    packing = Packing(element=E2M1, layout=Layout.LOW_NIBBLE_FIRST, scale=ScaleKind.E8M0, tile_rows=1, tile_cols=1)
    for row in (numbers, -numbers):
        shape = row.shape[0], COLS
        parts = {
            Part.CODES: torch.zeros(shape[0], COLS // 2, dtype=torch.uint8),
            Part.SCALES: scale.repeat(shape[0], 1),
        }
        other = StoredMatrix(encoding=Encoding.MXFP4, shape=shape, parts=parts, packing=packing)
        one = StoredMatrix(encoding=Encoding.PLAIN, shape=shape, parts={Part.NUMBERS: row})
        on_scale_K = compare_grid._are_on_powers(one, other, slice(0, shape[0]))
        assert on_scale_K.tolist() == [abs(number) / 16 in codes for number in row.flatten().tolist()]

"""Counts and the first difference of two matrices are those of decoding everything, however little is decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E2M1, E4M3, INT4, INT8, Format
from quantaudit.core.scheme import Layout
from quantaudit.identity import compare_values
from quantaudit.identity.compare_values import count_values, ulps_between
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix

ROWS, COLS = 24, 192


def packed(element: Format, layout: Layout, scale: ScaleKind, size: int, rows: int = 1) -> StoredMatrix:
    """Returns random finite codes under random scales."""
    generator = torch.Generator().manual_seed(5)
    width = {Layout.BYTES: COLS, Layout.INT32_WORDS: COLS // 8}.get(layout, COLS // 2)
    codes = torch.randint(0, 256, (ROWS, width * (4 if layout is Layout.INT32_WORDS else 1)), generator=generator)
    codes = codes.to(torch.uint8)
    if element == E4M3:
        codes = codes & 0xBF  # no NaN
    if layout is Layout.INT32_WORDS:
        codes = codes.view(torch.int32)
    codes = codes.view(torch.int8) if element == INT8 else codes
    grid = (ROWS // rows, COLS // size)
    drawn = torch.randint(110, 140, grid, generator=generator).to(torch.uint8)
    scales = {
        ScaleKind.E8M0: drawn,
        ScaleKind.E4M3: drawn & 0x3F,
        ScaleKind.FLOAT: torch.rand(grid, generator=generator) + 0.01,
    }[scale]
    parts = {Part.CODES: codes, Part.SCALES: scales}
    if scale is ScaleKind.E4M3:
        parts[Part.GLOBAL_SCALE] = torch.tensor(300.0)
    packing = Packing(element=element, layout=layout, scale=scale, tile_rows=rows, tile_cols=size)
    return StoredMatrix(encoding=Encoding.MXFP4, shape=(ROWS, COLS), parts=parts, packing=packing)


MATRICES: dict[str, Callable[[], StoredMatrix]] = {
    "mxfp4": lambda: packed(E2M1, Layout.LOW_NIBBLE_FIRST, ScaleKind.E8M0, 32),
    "mxfp4, high nibble": lambda: packed(E2M1, Layout.HIGH_NIBBLE_FIRST, ScaleKind.E8M0, 32),
    "gguf": lambda: packed(E2M1, Layout.GGML_SPLIT, ScaleKind.E8M0, 32),
    "mxfp4, short groups": lambda: packed(E2M1, Layout.LOW_NIBBLE_FIRST, ScaleKind.E8M0, 12),
    "nvfp4": lambda: packed(E2M1, Layout.LOW_NIBBLE_FIRST, ScaleKind.E4M3, 16),
    "int4": lambda: packed(INT4, Layout.INT32_WORDS, ScaleKind.FLOAT, 32),
    "int4, rows": lambda: packed(INT4, Layout.LOW_NIBBLE_FIRST, ScaleKind.FLOAT, COLS),
    "mxfp8": lambda: packed(E4M3, Layout.BYTES, ScaleKind.E8M0, 32),
    "fp8, blocks": lambda: packed(E4M3, Layout.BYTES, ScaleKind.FLOAT, 64, rows=8),
    "int8, rows": lambda: packed(INT8, Layout.BYTES, ScaleKind.FLOAT, COLS),
    "plain": lambda: plain(torch.randn(ROWS, COLS).bfloat16()),
}


def plain(numbers: Tensor) -> StoredMatrix:
    return StoredMatrix(encoding=Encoding.PLAIN, shape=(ROWS, COLS), parts={Part.NUMBERS: numbers})


def with_part(matrix: StoredMatrix, part: Part, change: Callable[[Tensor], Tensor]) -> StoredMatrix:
    return replace(matrix, parts={**matrix.parts, part: change(matrix.parts[part].clone())})


def flip(where: float, bits: int = 0x81) -> Callable[[Tensor], Tensor]:
    """Flips bits of some bytes from the third row on, the lowest one and the sign of a code if not given."""

    def change(stored: Tensor) -> Tensor:
        chosen = torch.rand(stored.shape, generator=torch.Generator().manual_seed(9)) < where
        chosen[:2] = False
        flipped = stored.to(torch.int32) ^ bits if stored.dtype != torch.float32 else None
        other = stored * 2 if flipped is None else flipped.to(stored.dtype)
        return torch.where(chosen, other, stored)

    return change


CHANGES: dict[str, Callable[[StoredMatrix], StoredMatrix]] = {
    "few codes": lambda m: with_part(m, Part.CODES, flip(0.01)),
    "most codes": lambda m: with_part(m, Part.CODES, flip(0.7)),
    "some scales": lambda m: with_part(m, Part.SCALES, flip(0.8, 1)),
    "all scales": lambda m: with_part(
        m, Part.SCALES, lambda s: s + 1 if s.dtype == torch.uint8 else torch.nextafter(s, s + 1)
    ),
    "both": lambda m: with_part(with_part(m, Part.SCALES, flip(0.3, 1)), Part.CODES, flip(0.3)),
    "tiny scales": lambda m: with_part(m, Part.SCALES, lambda s: s * 0 + 1 if s.dtype == torch.uint8 else s * 1e-38),
    "global scale": lambda m: with_part(m, Part.GLOBAL_SCALE, lambda s: s + 1) if Part.GLOBAL_SCALE in m.parts else m,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [name for name in MATRICES if name != "plain"])
def test_counts_are_those_of_decoding_everything(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_values, "_PIECE", 5 * COLS)  # so that there are several
    a = MATRICES[name]()
    b = CHANGES[change](a)
    assert_decoded_alike(a, b)
    if change != "global scale" and not (change == "tiny scales" and name == "nvfp4"):
        assert count_values(a, b).values > 0


@pytest.mark.parametrize("other", ["mxfp4, high nibble", "gguf", "plain", "mxfp8"])
def test_counts_across_layouts_are_those_of_decoding_everything(other: str) -> None:
    assert_decoded_alike(MATRICES["mxfp4"](), MATRICES[other]())


def assert_decoded_alike(a: StoredMatrix, b: StoredMatrix) -> None:
    """Compares with both matrices decoded in whole, and a distance taken value by value."""
    everything = slice(0, ROWS)
    dtype = next((d for d in (a.dtype, b.dtype) if d is not None), torch.float32)
    left, right = a.values(everything, dtype), b.values(everything, dtype)
    differs = left != right
    tally = count_values(a, b)
    assert tally.values == int(differs.sum())
    if tally.codes is not None:
        assert tally.codes == int((a.codes(everything) != b.codes(everything)).sum())
    if not tally.values:
        assert tally.first is None
        return
    pairs = zip(left[differs].tolist(), right[differs].tolist(), strict=True)
    assert tally.ulps == max(distance(x, y, dtype) for x, y in pairs)
    assert tally.first is not None
    assert tally.first.coordinate == tuple(differs.nonzero()[0].tolist())
    assert (tally.first.a.value, tally.first.b.value) == (float(left[differs][0]), float(right[differs][0]))
    drawn = tally.draw_rows()
    assert set(drawn) <= set(differs.any(1).nonzero().flatten().tolist()) or a.packing is not None
    assert len(drawn) == min(compare_values.MOST_ROWS, len(torch.cat(tally.rows)))


def distance(x: float, y: float, dtype: torch.dtype) -> int:
    """Returns the steps between two numbers, by their bits as Python integers."""

    def rank(value: float) -> int:
        number = torch.tensor([value], dtype=dtype)
        magnitude = int(number.abs().view(torch.int16 if number.itemsize == 2 else torch.int32))
        return -magnitude if value < 0 else magnitude

    return abs(rank(x) - rank(y))


def test_other_scales_of_equal_codes_are_counted_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_values, "_PIECE", COLS)
    a = MATRICES["mxfp4"]()
    b = CHANGES["all scales"](a)
    decoded = []
    values = StoredMatrix.values

    def counted(self: StoredMatrix, rows: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        decoded.append(rows.stop - rows.start)
        return values(self, rows, dtype)

    monkeypatch.setattr(StoredMatrix, "values", counted)
    tally = count_values(a, b)
    # The groups of one row are decoded on both sides to show the first difference.
    assert sum(decoded) == 2 * COLS // 32 and tally.ulps == 1 << 23


@pytest.mark.parametrize("exponents", [(140, 130, 120), (120, 130, 140), (3, 128, 252), (252, 3, 250)])
def test_the_largest_distance_is_found_under_any_scale(
    exponents: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours under the largest scale, numbers of opposite signs under others, zeros of both signs anywhere."""
    monkeypatch.setattr(compare_values, "_PIECE", COLS)
    a = MATRICES["mxfp4"]()
    scales, codes = (a.parts[part].clone() for part in (Part.SCALES, Part.CODES))
    for first, exponent in enumerate(exponents):
        scales[first::3] = exponent
    other = codes.clone()
    is_largest = (scales == max(exponents)).repeat_interleave(16, dim=1)
    other[is_largest] ^= 0x11
    other[~is_largest] ^= 0x88
    a = replace(a, parts={**a.parts, Part.SCALES: scales})
    assert_decoded_alike(a, replace(a, parts={**a.parts, Part.CODES: other}))
    assert_decoded_alike(a, replace(a, parts={**a.parts, Part.CODES: codes ^ 0x88}))


@pytest.mark.parametrize("size", [32, 12])
def test_other_codes_of_equal_scales_are_hardly_decoded(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_values, "_PIECE", COLS)
    a = packed(E2M1, Layout.LOW_NIBBLE_FIRST, ScaleKind.E8M0, size)
    scales = torch.full_like(a.parts[Part.SCALES], 120)
    scales[0] = 130
    a = replace(a, parts={**a.parts, Part.SCALES: scales})
    b = with_part(a, Part.CODES, lambda codes: codes ^ 0x88)
    decoded = []
    values = StoredMatrix.values

    def counted(self: StoredMatrix, rows: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        decoded.append((rows.stop - rows.start) * self.shape[1])
        return values(self, rows, dtype)

    monkeypatch.setattr(StoredMatrix, "values", counted)
    assert count_values(a, b).values == int((a.codes(slice(0, ROWS)) & 7 > 0).sum())
    assert sum(decoded) == 2 * 2 * COLS  # the first row: once as the first that differs, once for its largest scales


def test_distances_of_opposite_signs_do_not_overflow() -> None:
    largest = torch.tensor([torch.finfo(torch.float32).max, 1.0, -0.0])
    assert ulps_between(largest, torch.tensor([-largest[0], 1.5, 0.0])) == 2 * 0x7F7FFFFF
    narrow = largest[:1].to(torch.bfloat16).clamp(max=torch.finfo(torch.bfloat16).max)
    assert ulps_between(narrow, -narrow) == 2 * 0x7F7F

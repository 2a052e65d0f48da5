"""The fused digest of 4-bit codes gives the bits of decoding first: every code, scale byte, layout and dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.core.comparison import Encoding
from quantaudit.core.format import E2M1, INT4, Format
from quantaudit.core.scheme import Layout
from quantaudit.hooks.leaf import Leaf, leaf_of_values
from quantaudit.identity import fingerprint, fingerprint_compiled
from quantaudit.identity.fingerprint_compiled import forget_words
from quantaudit.identity.fingerprint_fused import can_fuse, leaf_of_codes, make_sum
from quantaudit.identity.layouts.logical import MatrixSource
from quantaudit.identity.layouts.stored import Packing, Part, ScaleKind, StoredMatrix
from quantaudit.numerics import pack
from quantaudit.numerics.compiler import why_eager

ROWS, COLS = 256, 64
PAIRS = Layout.LOW_NIBBLE_FIRST


def matrix(
    element: Format = E2M1,
    layout: Layout = PAIRS,
    *,
    scales: Tensor | None = None,
    size: int = 32,
    global_scale: float | None = None,
) -> StoredMatrix:
    """Returns every code under every scale byte, or random codes under the given scales."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(ROWS, COLS // 16)
    codes = codes[:, torch.randperm(COLS, generator=torch.Generator().manual_seed(3))]
    stored = codes.to(torch.int8) - 8 if element == INT4 else codes
    bytes_ = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, COLS // size)
    kind = ScaleKind.E4M3 if global_scale is not None else ScaleKind.E8M0 if scales is None else ScaleKind.FLOAT
    parts = {Part.CODES: pack(stored, layout), Part.SCALES: bytes_ if scales is None else scales}
    if global_scale is not None:
        parts[Part.GLOBAL_SCALE] = torch.tensor(global_scale)
    packing = Packing(element=element, layout=layout, scale=kind, tile_rows=1, tile_cols=size)
    return StoredMatrix(encoding=Encoding.MXFP4, shape=(ROWS, COLS), parts=parts, packing=packing)


def rows_of(whole: StoredMatrix, rows: slice) -> StoredMatrix:
    parts = {part: tensor[rows] for part, tensor in whole.parts.items()}
    return StoredMatrix(
        encoding=whole.encoding, shape=(rows.stop - rows.start, COLS), parts=parts, packing=whole.packing
    )


def expected(stored: StoredMatrix, dtype: torch.dtype, first_row: int) -> Leaf:
    return leaf_of_values(stored.values(slice(0, stored.shape[0]), dtype), first_row=first_row)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", [PAIRS, Layout.HIGH_NIBBLE_FIRST, Layout.GGML_SPLIT])
def test_every_code_under_every_power_of_two(layout: Layout, dtype: torch.dtype) -> None:
    whole = matrix(layout=layout)
    assert can_fuse(whole)
    assert leaf_of_codes(whole, 5, dtype, make_sum) == expected(whole, dtype, 5)
    ordinary = rows_of(whole, slice(2, 253))  # the scales under which words are integer arithmetic
    assert leaf_of_codes(ordinary, 7, dtype, make_sum) == expected(ordinary, dtype, 7)


@pytest.mark.parametrize("row", [0, 1, 2, 127, 252, 253, 254, 255])
def test_scales_at_the_ends_of_the_range(row: int) -> None:
    one = rows_of(matrix(), slice(row, row + 1))
    assert leaf_of_codes(one, 0, torch.bfloat16, make_sum) == expected(one, torch.bfloat16, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", [PAIRS, Layout.INT32_WORDS, Layout.GGML_SPLIT])
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_integers(layout: Layout, dtype: torch.dtype, scale_dtype: torch.dtype) -> None:
    scales = torch.rand(ROWS, COLS // 32, generator=torch.Generator().manual_seed(1)).to(scale_dtype)
    whole = matrix(INT4, layout, scales=scales)
    assert can_fuse(whole)
    assert leaf_of_codes(whole, 0, dtype, make_sum) == expected(whole, dtype, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_global_scale(dtype: torch.dtype) -> None:
    whole = matrix(size=16, global_scale=2688.0)  # E4M3 scale bytes, two of them NaN
    assert leaf_of_codes(whole, 0, dtype, make_sum) == expected(whole, dtype, 0)


def test_what_is_not_read_is_refused() -> None:
    whole = matrix()
    assert whole.packing is not None
    odd = StoredMatrix(encoding=whole.encoding, shape=(ROWS, COLS - 1), parts=whole.parts, packing=whole.packing)
    plain = StoredMatrix(encoding=Encoding.PLAIN, shape=(1, 2), parts={Part.NUMBERS: torch.zeros(1, 2)})
    assert not can_fuse(odd) and not can_fuse(plain)


@pytest.mark.skipif(why_eager("cpu") is not None, reason="there is no compiler")
def test_a_code_counts_once_towards_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, fused = matrix(), []
    source = MatrixSource(
        label="", encoding=whole.encoding, storage="", shape=whole.shape, num_bytes=0, read=lambda: whole
    )

    def digest(stored: StoredMatrix, first_row: int, dtype: torch.dtype) -> Leaf:
        fused.append(first_row)
        return Leaf()

    monkeypatch.setattr(fingerprint, "leaf_of_codes", digest)
    for kind in fingerprint_compiled.COMPILE_AFTER:
        monkeypatch.setitem(fingerprint_compiled.COMPILE_AFTER, kind, 3 * ROWS * COLS)
    forget_words()
    try:
        for number in range(5):
            fingerprint._value_leaf(whole, source, number, None, fingerprint.Request())
    finally:
        forget_words()
    assert fused == [3, 4]  # after as many codes as three matrices hold


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of the compiler
def test_compiled_code_gives_the_same_bits() -> None:
    whole = matrix()
    ordinary = rows_of(whole, slice(2, 253))
    for one in (whole, ordinary, rows_of(ordinary, slice(0, 32))):
        assert leaf_of_codes(one, 3, torch.bfloat16) == expected(one, torch.bfloat16, 3)

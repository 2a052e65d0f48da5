"""Codes of 4 bits digested as they lie: decoding and both sums of a leaf in one compiled pass, no value is ever stored.

Two codes share a byte, so the low and the high nibbles are two tensors, each with column keys of its own; no code is
moved. The words are those of `leaf`: fp32 bits of the value, -0 as +0, one NaN. Where E2M1 lies under a power of two
and no value leaves the normal numbers they are integer arithmetic,

    word = 0 for magnitude 0, else sign | (exponent of the scale + exponent of the code) | first fraction bit,

elsewhere code * scale in fp32, rounded to bf16 if that is what is decoded to. Both give the bits of decoding first.

Shape suffixes: R rows, G groups of a row, B bytes of a group, C columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.core.format import E2M1, INT4
from quantaudit.core.scheme import Layout
from quantaudit.hooks.leaf import Leaf, canonical_words, make_keys
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix
from quantaudit.numerics.compiler import compile_exactly, record_failure, why_eager
from quantaudit.numerics.packing import GGML_BLOCK

PIECE = 1 << 20  # values at a time: worth the 70 us of calling compiled code
# Under these E8M0 codes .5 and 6 are normal numbers of fp32 and bf16 both.
_LEAST_SCALE, _LARGEST_SCALE = 2, 252
_BIAS = 127
_BF16_FRACTION = 7
_LAYOUTS = (Layout.LOW_NIBBLE_FIRST, Layout.HIGH_NIBBLE_FIRST, Layout.GGML_SPLIT, Layout.INT32_WORDS)

_ToWords: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Sum: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Recipe(NamedTuple):
    """Which function digests a matrix.

    Attributes:
        is_integer: Whether the codes are INT4; else E2M1.
        is_offset: Whether a nibble is an integer plus 8; else it is two's complement.
        is_exact: Whether words are integer arithmetic, bits of bf16.
        is_rounded: Whether values are rounded to bf16.
    """

    is_integer: bool
    is_offset: bool
    is_exact: bool
    is_rounded: bool


def can_fuse(matrix: StoredMatrix) -> bool:
    """Says whether a matrix is of groups of 4-bit codes, two in every byte, that the fused pass reads."""
    packing = matrix.packing
    if packing is None or packing.element not in (E2M1, INT4) or packing.layout not in _LAYOUTS:
        return False
    codes, size = matrix.parts[Part.CODES], packing.tile_cols
    is_whole = packing.tile_rows == 1 and matrix.shape[1] % size == 0 and size % 2 == 0
    is_full = codes.shape[-1] * codes.itemsize * 2 == matrix.shape[1] and matrix.shape[0] > 0
    fits_blocks = packing.layout is not Layout.GGML_SPLIT or size % GGML_BLOCK == 0
    # Words are read as bytes, the first code in the lowest; E2M1 in them would have an offset that no format has.
    fits_words = packing.layout is not Layout.INT32_WORDS or (packing.element == INT4 and sys.byteorder == "little")
    return is_whole and is_full and fits_blocks and fits_words and why_eager("cpu") is None


@lru_cache(maxsize=16)
def compiled_sum(recipe: Recipe) -> Sum:
    """Returns `make_sum`, compiled on its first call."""
    compiled = compile_exactly(make_sum(recipe), "leaf_of_codes_" + "".join("ny"[flag] for flag in recipe))

    def call(bytes_RGB: Tensor, group_RG1: Tensor, row_keys: Tensor, low_GB: Tensor, high_GB: Tensor) -> Tensor:
        # One compiled function serves all shapes with groups of one size.
        for tensor in (bytes_RGB, group_RG1):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        for tensor in (bytes_RGB, group_RG1, row_keys, low_GB, high_GB):
            torch._dynamo.maybe_mark_dynamic(tensor, 1)
        return compiled(bytes_RGB, group_RG1, row_keys, low_GB, high_GB)

    return call


@torch.no_grad()
def leaf_of_codes(
    matrix: StoredMatrix,
    first_row: int,
    decoded_to: torch.dtype,
    choose_sum: Callable[[Recipe], Sum] = compiled_sum,
) -> Leaf | None:
    """Returns the leaf of the values of a matrix that `can_fuse`; `None` if compiling fails.

    Args:
        matrix: Codes and scales.
        first_row: Row of the whole tensor at which the matrix begins.
        decoded_to: bfloat16 or float32.
        choose_sum: Gives the function that sums, `make_sum` the same bits without a compiler.
    """
    assert matrix.packing is not None
    recipe = _choose(matrix, decoded_to)
    rows, cols = matrix.shape
    size = matrix.packing.tile_cols
    bytes_RGB = matrix.parts[Part.CODES].contiguous().view(torch.uint8).view(rows, cols // size, size // 2)
    low_GB, high_GB = _column_keys(cols, size, matrix.packing.layout)
    row_keys = make_keys("row", first_row, rows, 1, torch.device("cpu"))
    lanes = torch.zeros(2, dtype=torch.int64)
    try:
        for piece in matrix.row_pieces(PIECE):
            group_RG1 = _exponents(matrix, piece) if recipe.is_exact else matrix.scales(piece).unsqueeze(-1)
            keys = row_keys[:, piece].contiguous()
            lanes += choose_sum(recipe)(bytes_RGB[piece], group_RG1, keys, low_GB, high_GB)
    except RuntimeError as error:  # whatever the compiler stumbles over derives from it
        record_failure("cpu", error)
        return None
    return Leaf.from_lanes(lanes)


def _choose(matrix: StoredMatrix, decoded_to: torch.dtype) -> Recipe:
    packing = matrix.packing
    assert packing is not None
    is_power = packing.element == E2M1 and packing.scale is ScaleKind.E8M0
    scales = matrix.parts[Part.SCALES].view(torch.uint8) if is_power else None
    is_exact = scales is not None and int(scales.min()) >= _LEAST_SCALE and int(scales.max()) <= _LARGEST_SCALE
    return Recipe(
        is_integer=packing.element == INT4,
        is_offset=packing.element == INT4 and packing.layout in (Layout.GGML_SPLIT, Layout.INT32_WORDS),
        is_exact=is_exact,
        # One fraction bit and any exponent of E8M0 are exact in bf16, its subnormals and infinity too.
        is_rounded=decoded_to == torch.bfloat16 and not is_power,
    )


def _exponents(matrix: StoredMatrix, rows: slice) -> Tensor:
    """Returns what the scale of every group adds to the bits of a bf16 number, [R, G, 1] int32."""
    codes_RG = matrix.parts[Part.SCALES][rows].view(torch.uint8).to(torch.int32)
    return ((codes_RG - _BIAS) << _BF16_FRACTION).unsqueeze(-1)


@lru_cache(maxsize=8)
def _column_keys(num_cols: int, size: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Returns the keys of the columns of low and of high nibbles, each [2, G, B] int64."""
    keys_C = make_keys("column", 0, num_cols, 1, torch.device("cpu"))
    if layout is Layout.GGML_SPLIT:
        low, high = keys_C.view(2, -1, 2, GGML_BLOCK // 2).unbind(2)
    else:
        low, high = keys_C.view(2, -1, 2).unbind(2)
    if layout is Layout.HIGH_NIBBLE_FIRST:
        low, high = high, low
    shape = (2, num_cols // size, size // 2)
    return low.reshape(shape).contiguous(), high.reshape(shape).contiguous()


def make_sum(recipe: Recipe) -> Sum:
    """Returns a function that sums both lanes of bytes of two codes, [2] int64, to be compiled.

    Its arguments: bytes [R, G, B] uint8; the scale of a group [R, G, 1], fp32 or as `_exponents` gives it; row keys
    [2, R]; keys of the columns of low and of high nibbles, each [2, G, B].
    """
    to_words: _ToWords = _exact_words if recipe.is_exact else _make_words(recipe)

    def sum_codes(bytes_RGB: Tensor, group_RG1: Tensor, row_keys: Tensor, low_GB: Tensor, high_GB: Tensor) -> Tensor:
        codes = bytes_RGB.to(torch.int32)
        low, high = to_words(codes & 15, group_RG1).to(torch.int64), to_words(codes >> 4, group_RG1).to(torch.int64)
        if recipe.is_exact:  # a word of bf16 is these 16 bits above 16 zeros, and rotated it is the bits alone
            first_R = (low * low_GB[0] + high * high_GB[0]).sum((1, 2)) << 16
            second_R = (low * low_GB[1] + high * high_GB[1]).sum((1, 2))
        else:
            low, high = low & 0xFFFFFFFF, high & 0xFFFFFFFF
            first_R = (low * low_GB[0] + high * high_GB[0]).sum((1, 2))
            second_R = (_rotated(low) * low_GB[1] + _rotated(high) * high_GB[1]).sum((1, 2))
        return torch.stack(((first_R * row_keys[0]).sum(), (second_R * row_keys[1]).sum()))

    return sum_codes


def _rotated(words: Tensor) -> Tensor:
    return ((words & 0xFFFF) << 16) | (words >> 16)


def _exact_words(codes: Tensor, exponents: Tensor) -> Tensor:
    """Returns bf16 bits of E2M1 codes: halved steps of the binade, .5 being the one subnormal number of the format."""
    magnitude = codes & 7
    one = (_BIAS - 1) << _BF16_FRACTION
    half = 1 << (_BF16_FRACTION - 1)
    bits = (magnitude << (_BF16_FRACTION - 1)) + exponents + torch.where(magnitude == 1, one - half, one)
    return torch.where(magnitude == 0, 0, bits | ((codes & 8) << 12))


def _make_words(recipe: Recipe) -> _ToWords:
    def to_words(codes: Tensor, scales: Tensor) -> Tensor:
        numbers = _integers(codes, is_offset=recipe.is_offset) if recipe.is_integer else _doubled_e2m1(codes)
        values = (numbers.to(torch.float32) * (1.0 if recipe.is_integer else 0.5)) * scales
        if recipe.is_rounded:
            values = values.to(torch.bfloat16).to(torch.float32)
        return canonical_words(values.view(torch.int32))

    return to_words


def _integers(nibbles: Tensor, *, is_offset: bool) -> Tensor:
    return nibbles - 8 if is_offset else (nibbles ^ 8) - 8


def _doubled_e2m1(codes: Tensor) -> Tensor:
    """Returns twice the numbers 0, .5, 1, 1.5, 2, 3, 4, 6 of E2M1 codes, signed; -0 is 0."""
    magnitude = codes & 7
    large = torch.where(magnitude < 6, 2 * magnitude - 4, 4 * magnitude - 16)
    doubled = torch.where(magnitude < 4, magnitude, large)
    return torch.where(codes > 7, -doubled, doubled)

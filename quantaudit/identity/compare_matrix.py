"""Two stored matrices of one weight: which class they are in, how much differs, and where first.

Values are compared before anything else, in fp32 between packed matrices and in the dtype of the plain one if there is
one: that is the dtype in which an engine would hold what it decodes. +0 equals -0, and NaN equals NaN. Scales and codes
are compared where both sides have them in one format.

Shape suffixes: R rows, C columns, T tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.core.comparison import DifferingCounts, Encoding, FirstDifference, TensorClass
from quantaudit.core.scheme import Scheme
from quantaudit.identity.compare_grid import GridCounts, count_on_grid, is_on_some_grid
from quantaudit.identity.differences import number_of
from quantaudit.identity.layouts.stored import Part, StoredMatrix

MAX_ULPS = 4  # beyond it, two values are other values and no other rounding of one
_NUMBER_BYTES = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


class Explanation(NamedTuple):
    """A scheme by name, the fraction of the packed values that quantizing the plain ones by it gives, and itself."""

    scheme: str
    explains: float
    found: Scheme | None = None


Explain: TypeAlias = Callable[[StoredMatrix, StoredMatrix], Explanation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixComparison:
    """What a pair of matrices comes to; `first.expert` is left to the caller."""

    tensor_class: TensorClass
    differing: DifferingCounts = DifferingCounts()
    max_ulps: int | None = None
    first: FirstDifference | None = None
    note: str = ""
    explanation: Explanation | None = None


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Running counts over pieces of rows."""

    values: int = 0
    codes: int | None = None
    ulps: int = 0
    first: FirstDifference | None = None


def compare_matrices(a: StoredMatrix, b: StoredMatrix, explain: Explain | None) -> MatrixComparison:
    """Compares two matrices of one shape.

    Args:
        a: First side.
        b: Second side.
        explain: Asked which scheme makes the packed matrix from the plain one, where only one of them is packed and
            their values differ.
    """
    non_finite = _find_non_finite(a, b)
    if non_finite is not None:
        return non_finite
    if has_equal_bytes(a, b):
        return MatrixComparison(tensor_class=TensorClass.BYTE_EQUAL, differing=_none_differ(a, b))
    if not (a.is_decodable and b.is_decodable):
        return _compare_undecodable(a, b)
    scales = _count_scales(a, b)
    tally = _count_values(a, b)
    differing = DifferingCounts(scales=scales, codes=tally.codes, values=tally.values)
    if tally.values == 0:
        return MatrixComparison(tensor_class=TensorClass.VALUE_EQUAL, differing=differing, max_ulps=0)
    if (a.packing is None) != (b.packing is None) and tally.ulps > MAX_ULPS:
        return _compare_with_plain(a, b, tally, explain)
    found = _class_of(differing, tally.ulps, is_packed=a.packing is not None and b.packing is not None)
    return MatrixComparison(tensor_class=found, differing=differing, max_ulps=tally.ulps, first=tally.first)


def has_equal_bytes(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether two matrices have the same parts with the same bytes, written in the same way."""
    return has_one_packing(a, b) and all(torch.equal(_bits(a.parts[part]), _bits(b.parts[part])) for part in a.parts)


def has_one_packing(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether two matrices are written in the same way, so that equal bytes are equal values."""
    if (a.encoding, a.shape, a.packing) != (b.encoding, b.shape, b.packing) or a.parts.keys() != b.parts.keys():
        return False
    pairs = [(a.parts[part], b.parts[part]) for part in a.parts]
    return all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)


def _has_equal_rows(a: StoredMatrix, b: StoredMatrix, rows: slice) -> bool:
    """Tells whether some rows of two matrices of one packing have equal bytes, their scales too."""
    height = 1 if a.packing is None else a.packing.tile_rows
    tiles = slice(rows.start // height, (rows.stop - 1) // height + 1)
    for part in a.parts:
        x, y = a.parts[part], b.parts[part]
        if part is not Part.GLOBAL_SCALE:
            lines = tiles if part is Part.SCALES else rows
            x, y = x[lines], y[lines]
        if not torch.equal(_bits(x), _bits(y)):
            return False
    return True


def are_one_format(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether both are packed, with elements of one format and scales of one grid."""
    if a.packing is None or b.packing is None:
        return False
    left, right = a.packing, b.packing
    return (left.element, left.tile_rows, left.tile_cols) == (right.element, right.tile_rows, right.tile_cols)


def _find_non_finite(a: StoredMatrix, b: StoredMatrix) -> MatrixComparison | None:
    counts = a.num_non_finite(), b.num_non_finite()
    if not any(counts):
        return None
    first = _first_non_finite(a, b)
    note = f"{counts[0]:,} values of the first side and {counts[1]:,} of the second are NaN or infinite"
    return MatrixComparison(tensor_class=TensorClass.NON_FINITE, first=first, note=note)


def _first_non_finite(a: StoredMatrix, b: StoredMatrix) -> FirstDifference | None:
    if not (a.is_decodable and b.is_decodable):
        return None
    for rows in a.row_pieces():
        left, right = a.values(rows), b.values(rows)
        is_bad = ~(left.isfinite() & right.isfinite())
        if bool(is_bad.any()):
            return _describe_first(a, b, rows, is_bad, left, right)
    return None


def _none_differ(a: StoredMatrix, b: StoredMatrix) -> DifferingCounts:
    has_parts = are_one_format(a, b)
    return DifferingCounts(scales=0 if has_parts else None, codes=0 if has_parts else None, values=0)


def _compare_undecodable(a: StoredMatrix, b: StoredMatrix) -> MatrixComparison:
    if a.encoding is b.encoding is Encoding.INTEGERS:
        return MatrixComparison(tensor_class=TensorClass.DIFFERENT_VALUES, note="integers that differ in their bytes")
    sides = [side for side, matrix in (("first", a), ("second", b)) if not matrix.is_decodable]
    note = f"the layout of the {' and the '.join(sides)} side is not known, and the bytes differ"
    return MatrixComparison(tensor_class=TensorClass.NOT_CHECKED, note=note)


def _count_scales(a: StoredMatrix, b: StoredMatrix) -> int | None:
    if not are_one_format(a, b):
        return None
    left_TT, right_TT = a.scales(), b.scales()
    return int((left_TT != right_TT).sum())


def _count_values(a: StoredMatrix, b: StoredMatrix) -> _Tally:
    equal_in, ulps_in = _dtypes(a, b)
    tally = _Tally(codes=0 if are_one_format(a, b) else None)
    is_one_packing = has_one_packing(a, b)
    for rows in a.row_pieces():
        if is_one_packing and _has_equal_rows(a, b, rows):
            continue
        left, right = a.values(rows, equal_in), b.values(rows, equal_in)
        if tally.codes is not None:
            tally.codes += int((a.codes(rows) != b.codes(rows)).sum())
        differs_RC = left != right
        count = int(differs_RC.sum())
        if count == 0:
            continue
        tally.values += count
        # Numbers that differ but round to one number of the coarser format are one ulp apart at most.
        tally.ulps = max(tally.ulps, 1, ulps_between(left[differs_RC].to(ulps_in), right[differs_RC].to(ulps_in)))
        if tally.first is None:
            tally.first = _describe_first(a, b, rows, differs_RC, left, right)
    return tally


def _dtypes(a: StoredMatrix, b: StoredMatrix) -> tuple[torch.dtype, torch.dtype]:
    """Returns the dtype in which values must be equal, and the coarser one in which distances are counted."""
    plain = [dtype for dtype in (a.dtype, b.dtype) if dtype is not None]
    coarse = next((d for d in (torch.bfloat16, torch.float16, torch.float32) if d in plain), torch.float32)
    return (coarse if len(set(plain)) == 1 else torch.float32), coarse


def ulps_between(a: Tensor, b: Tensor) -> int:
    """Returns the largest distance of two finite tensors of one dtype, in steps of that dtype."""
    if a.numel() == 0:
        return 0
    return int((_rank(a) - _rank(b)).abs().amax())


def _rank(x: Tensor) -> Tensor:
    """Returns consecutive int64 for consecutive numbers, 0 for both zeros."""
    bits = x.view(_NUMBER_BYTES[x.dtype]).to(torch.int64)
    magnitude = bits & ((1 << (8 * x.itemsize - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def _class_of(differing: DifferingCounts, ulps: int, *, is_packed: bool) -> TensorClass:
    if ulps <= MAX_ULPS and not differing.codes:
        return TensorClass.WITHIN_ULPS
    if is_packed and differing.scales:
        return TensorClass.DIFFERENT_SCALES
    return TensorClass.DIFFERENT_CODES if is_packed and differing.codes else TensorClass.DIFFERENT_VALUES


def _compare_with_plain(a: StoredMatrix, b: StoredMatrix, tally: _Tally, explain: Explain | None) -> MatrixComparison:
    """Compares a plain with a packed matrix of other values: is the plain one fake-quantized, or the master?"""
    plain, packed = (a, b) if a.packing is None else (b, a)
    if is_on_some_grid(plain, packed):
        counts = count_on_grid(plain, packed)
        return MatrixComparison(
            tensor_class=TensorClass.DIFFERENT_SCALES if counts.scales else TensorClass.DIFFERENT_CODES,
            differing=_with_grid(tally, counts),
            max_ulps=tally.ulps,
            first=tally.first,
            note="the plain side is fake-quantized: its groups hold no more magnitudes than there are codes",
        )
    found = None if explain is None else explain(plain, packed)
    is_explained = found is not None and found.explains == 1
    return MatrixComparison(
        tensor_class=TensorClass.QUANTIZATION if is_explained else TensorClass.LAYER_SET,
        differing=DifferingCounts(values=tally.values),
        max_ulps=tally.ulps,
        first=tally.first,
        note="" if is_explained else "quantized on one side only, and not by a rule that was tried",
        explanation=found,
    )


def _with_grid(tally: _Tally, counts: GridCounts) -> DifferingCounts:
    return DifferingCounts(scales=counts.scales, codes=counts.codes, values=tally.values)


def _describe_first(
    a: StoredMatrix, b: StoredMatrix, rows: slice, differs_RC: Tensor, left: Tensor, right: Tensor
) -> FirstDifference:
    row, col = (int(i) for i in differs_RC.nonzero()[0])
    packing = a.packing or b.packing
    with_codes = are_one_format(a, b)
    at = slice(rows.start + row, rows.start + row + 1)
    codes = (int(a.codes(at)[0, col]), int(b.codes(at)[0, col])) if with_codes else (None, None)
    scales = (a.row_scales(at)[0, col], b.row_scales(at)[0, col]) if with_codes else None
    return FirstDifference(
        part="values",
        expert=None,
        coordinate=(rows.start + row, col),
        group=None if packing is None else col // packing.tile_cols,
        a=number_of(left[row, col]),
        b=number_of(right[row, col]),
        a_code=codes[0],
        b_code=codes[1],
        a_scale=None if scales is None else number_of(scales[0]),
        b_scale=None if scales is None else number_of(scales[1]),
    )


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


__all__ = ["Explain", "Explanation", "MatrixComparison", "Part", "compare_matrices", "has_equal_bytes", "ulps_between"]

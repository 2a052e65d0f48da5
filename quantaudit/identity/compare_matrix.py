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

from quantaudit.core.comparison import DifferingCounts, Encoding, FirstDifference, TensorClass
from quantaudit.core.scheme import Scheme
from quantaudit.identity.compare_grid import GridCounts, count_on_grid, is_on_some_grid
from quantaudit.identity.compare_values import (
    Tally,
    are_one_format,
    count_values,
    describe_first,
    has_equal_bits,
    has_one_packing,
    ulps_between,
)
from quantaudit.identity.layouts.stored import Part, StoredMatrix
from quantaudit.numerics.reference import INPUT_DTYPES

MAX_ULPS = 4  # beyond it, two values are other values and no other rounding of one


class Explanation(NamedTuple):
    """A scheme by name, the fraction of the packed values that quantizing the plain ones by it gives, and itself."""

    scheme: str
    explains: float
    found: Scheme | None = None


Explain: TypeAlias = Callable[[StoredMatrix, StoredMatrix], Explanation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixComparison:
    """What a pair of matrices comes to; `first.expert` is left to the caller, `rows` are a few that differ."""

    tensor_class: TensorClass
    differing: DifferingCounts = DifferingCounts()
    max_ulps: int | None = None
    first: FirstDifference | None = None
    note: str = ""
    explanation: Explanation | None = None
    rows: tuple[int, ...] = ()


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
    tally = count_values(a, b)
    differing = DifferingCounts(scales=scales, codes=tally.codes, values=tally.values)
    if tally.values == 0:
        return MatrixComparison(tensor_class=TensorClass.VALUE_EQUAL, differing=differing, max_ulps=0)
    if (a.packing is None) != (b.packing is None) and tally.ulps > MAX_ULPS:
        return _compare_with_plain(a, b, tally, explain)
    found = _class_of(differing, tally.ulps, is_packed=a.packing is not None and b.packing is not None)
    return MatrixComparison(
        tensor_class=found, differing=differing, max_ulps=tally.ulps, first=tally.first, rows=tally.draw_rows()
    )


def has_equal_bytes(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether two matrices have the same parts with the same bytes, written in the same way."""
    return has_one_packing(a, b) and all(has_equal_bits(a.parts[part], b.parts[part]) for part in a.parts)


def _find_non_finite(a: StoredMatrix, b: StoredMatrix) -> MatrixComparison | None:
    counts = _num_non_finite(a), _num_non_finite(b)
    if not any(counts):
        return None
    first = _first_non_finite(a, b)
    note = f"{counts[0]:,} values of the first side and {counts[1]:,} of the second are NaN or infinite"
    return MatrixComparison(tensor_class=TensorClass.NON_FINITE, first=first, note=note)


def _num_non_finite(matrix: StoredMatrix) -> int:
    """Counts NaN and infinite values; most plain numbers have a finite sum, which none of those would leave."""
    # In its own dtype: torch adds bf16 in fp32, and converts first, thirty times slower, if it is asked for fp32.
    if matrix.dtype in INPUT_DTYPES and matrix.parts[Part.NUMBERS].sum().isfinite():
        return 0
    return matrix.num_non_finite()


def _first_non_finite(a: StoredMatrix, b: StoredMatrix) -> FirstDifference | None:
    if not (a.is_decodable and b.is_decodable):
        return None
    for rows in a.row_pieces():
        left, right = a.values(rows), b.values(rows)
        is_bad = ~(left.isfinite() & right.isfinite())
        if bool(is_bad.any()):
            row, col = (int(i) for i in is_bad.nonzero()[0])
            return describe_first(a, b, (rows.start + row, col), left[row, col], right[row, col])
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


def _class_of(differing: DifferingCounts, ulps: int, *, is_packed: bool) -> TensorClass:
    if ulps <= MAX_ULPS and not differing.codes:
        return TensorClass.WITHIN_ULPS
    if is_packed and differing.scales:
        return TensorClass.DIFFERENT_SCALES
    return TensorClass.DIFFERENT_CODES if is_packed and differing.codes else TensorClass.DIFFERENT_VALUES


def _compare_with_plain(a: StoredMatrix, b: StoredMatrix, tally: Tally, explain: Explain | None) -> MatrixComparison:
    """Compares a plain with a packed matrix of other values: is the plain one fake-quantized, or the master?"""
    plain, packed = (a, b) if a.packing is None else (b, a)
    if is_on_some_grid(plain, packed):
        counts = count_on_grid(plain, packed)
        return MatrixComparison(
            tensor_class=TensorClass.DIFFERENT_SCALES if counts.scales else TensorClass.DIFFERENT_CODES,
            differing=_with_grid(tally, counts),
            max_ulps=tally.ulps,
            first=tally.first,
            rows=tally.draw_rows(),
            note="the plain side is fake-quantized: its groups hold no more magnitudes than there are codes",
        )
    found = None if explain is None else explain(plain, packed)
    is_explained = found is not None and found.explains == 1
    return MatrixComparison(
        tensor_class=TensorClass.QUANTIZATION if is_explained else TensorClass.LAYER_SET,
        differing=DifferingCounts(values=tally.values),
        max_ulps=tally.ulps,
        first=tally.first,
        rows=tally.draw_rows(),
        note="" if is_explained else "quantized on one side only, and not by a rule that was tried",
        explanation=found,
    )


def _with_grid(tally: Tally, counts: GridCounts) -> DifferingCounts:
    return DifferingCounts(scales=counts.scales, codes=counts.codes, values=tally.values)


__all__ = ["Explain", "Explanation", "MatrixComparison", "Part", "compare_matrices", "has_equal_bytes", "ulps_between"]

"""In how many values and codes two matrices differ, by how much at most, and where first; only that is decoded.

Matrices of one packing are compared as they lie: a group of equal bytes under an equal scale holds equal values. Where
codes are E2M1 and scales powers of two, groups that differ in codes or in scales alone need no decoding either, see
`compare_powers`. Everything else is decoded: the groups that differ, or some rows at a time where both sides are
written in other ways.

Shape suffixes: R rows, C columns, G groups of a row, K groups of some rows, N members of a group, W words of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.comparison import FirstDifference
from quantaudit.core.scheme import Layout
from quantaudit.identity.compare_powers import (
    are_safe_powers,
    count_nibbles,
    count_unequal,
    count_unequal_scales,
    may_exceed,
)
from quantaudit.identity.differences import number_of
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix

MOST_ROWS = 16  # that are remembered of those that differ
_PIECE = 1 << 18  # values at a time of matrices of one packing
_WORD = 8  # bytes
_FEW_WORDS = 8
_FEW_GROUPS = 64  # that are decoded to find the first value that differs
_SEED = 20261130


@dataclass(slots=True, kw_only=True)
class Tally:
    """Running counts over pieces of rows.

    Attributes:
        values: Values that differ.
        codes: Codes that differ; `None` where both sides do not have codes of one format.
        ulps: Largest distance of two values.
        first: First value that differs.
        rows: Rows that differ in anything, a tensor a piece.
    """

    values: int = 0
    codes: int | None = None
    ulps: int = 0
    first: FirstDifference | None = None
    rows: list[Tensor] = field(default_factory=list)

    def draw_rows(self) -> tuple[int, ...]:
        """Returns a few of the rows that differ, ascending, drawn with a fixed seed."""
        if not self.rows:
            return ()
        rows = torch.cat(self.rows)
        drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))[:MOST_ROWS]
        return tuple(sorted(rows[drawn].tolist()))


class _First(NamedTuple):
    """A value of both sides, and the group and the member of it that it is."""

    group: int
    member: int
    a: Tensor
    b: Tensor


def count_values(a: StoredMatrix, b: StoredMatrix) -> Tally:
    """Compares the values and codes of two matrices of one shape, all finite and readable."""
    tally = Tally(codes=0 if are_one_format(a, b) else None)
    if not has_one_packing(a, b):
        for rows in a.row_pieces():
            _add_rows(tally, a, b, rows)
        return tally
    is_grouped = can_group(a)
    is_power = is_grouped and are_safe_powers(a) and are_safe_powers(b)
    for rows in a.row_pieces(_PIECE):
        if _has_equal_rows(a, b, rows):
            continue
        if is_grouped:
            _add_groups(tally, a, b, rows, is_power=is_power)
        else:
            _add_rows(tally, a, b, rows)
    return tally


def has_one_packing(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether two matrices are written in the same way, so that equal bytes are equal values."""
    if (a.encoding, a.shape, a.packing) != (b.encoding, b.shape, b.packing) or a.parts.keys() != b.parts.keys():
        return False
    pairs = [(a.parts[part], b.parts[part]) for part in a.parts]
    return all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)


def are_one_format(a: StoredMatrix, b: StoredMatrix) -> bool:
    """Tells whether both are packed, with elements of one format and scales of one grid."""
    if a.packing is None or b.packing is None:
        return False
    left, right = a.packing, b.packing
    return (left.element, left.tile_rows, left.tile_cols) == (right.element, right.tile_rows, right.tile_cols)


def has_equal_bits(x: Tensor, y: Tensor) -> bool:
    """Tells whether two tensors of one shape and dtype have equal bits, eight bytes at a time where they lie so."""
    left, right = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (x, y))
    if left.storage_offset() % _WORD or right.storage_offset() % _WORD:
        return torch.equal(left, right)
    whole = len(left) // _WORD * _WORD
    words = (one[:whole].view(torch.int64) for one in (left, right))
    return torch.equal(*words) and torch.equal(left[whole:], right[whole:])


def any_in_rows(is_RC: Tensor) -> Tensor:
    """Returns which rows of a bool tensor have any, [R]: by words of eight where they lie so, which is faster."""
    lies_so = is_RC.shape[1] % _WORD == 0 and is_RC.storage_offset() % _WORD == 0 and is_RC.is_contiguous()
    return (is_RC.view(torch.int64) != 0).any(1) if lies_so else is_RC.any(1)


def ulps_between(a: Tensor, b: Tensor) -> int:
    """Returns the largest distance of two finite tensors of one dtype, in steps of that dtype."""
    if a.numel() == 0:
        return 0
    left, right = _bits(a), _bits(b)
    signs = left ^ right
    if int(signs.amin()) >= 0:
        return int((left - right).abs_().amax())  # of one sign: no overflow
    halves = (_ordinals(left) >> 1).sub_(_ordinals(right) >> 1).abs_()
    # Half of an ordinal, rounded, is off by less than 1.5 from half a rank: what is further below is not the largest.
    is_largest = halves >= int(halves.amax()) - 3
    return int((_rank(left[is_largest]) - _rank(right[is_largest])).abs().amax())


def _add_rows(tally: Tally, a: StoredMatrix, b: StoredMatrix, rows: slice) -> None:
    """Decodes some rows of both sides and compares them."""
    equal_in, ulps_in = _dtypes(a, b)
    left, right = a.values(rows, equal_in), b.values(rows, equal_in)
    if tally.codes is not None:
        tally.codes += int(torch.count_nonzero(a.codes(rows) != b.codes(rows)))
    if has_equal_bits(left, right):
        return
    differs_RC = left != right
    count = int(torch.count_nonzero(differs_RC))
    if not count:
        return
    tally.values += count
    # Numbers that differ but round to one number of the coarser format are one ulp apart at most.
    tally.ulps = max(tally.ulps, 1, ulps_between(left.to(ulps_in), right.to(ulps_in)))
    tally.rows.append(any_in_rows(differs_RC).nonzero().flatten() + rows.start)
    if tally.first is None:
        row, col = (int(i) for i in differs_RC.nonzero()[0])
        tally.first = describe_first(a, b, (rows.start + row, col), left[row, col], right[row, col])


def _add_groups(tally: Tally, a: StoredMatrix, b: StoredMatrix, rows: slice, *, is_power: bool) -> None:
    """Compares the groups of some rows, of one packing, and decodes those that differ."""
    assert a.packing is not None
    left, right = as_groups(a, rows), as_groups(b, rows)
    words_KW = _code_words(left) ^ _code_words(right)
    is_code_K, is_scale_K = _fold(words_KW) != 0, _has_other_scale(left, right)
    is_other_K = is_code_K | is_scale_K
    num_groups = a.shape[1] // a.packing.tile_cols
    tally.rows.append(is_other_K.view(-1, num_groups).any(1).nonzero().flatten() + rows.start)
    is_decoded_K = is_other_K
    if is_power:
        if bool(is_scale_K.any()):
            _add_scales(tally, left, right, is_scale_K & ~is_code_K)
        _add_codes(tally, left, right, words_KW, is_code_K & ~is_scale_K)
        is_decoded_K = is_code_K & is_scale_K
    _add_decoded(tally, left, right, words_KW, is_decoded_K.nonzero().flatten())
    if tally.first is None and tally.values:
        found = _find_first(left, right, is_other_K.nonzero().flatten())
        row, group = divmod(found.group, num_groups)
        place = rows.start + row, group * a.packing.tile_cols + found.member
        tally.first = describe_first(a, b, place, found.a, found.b)


def _add_decoded(tally: Tally, a: StoredMatrix, b: StoredMatrix, words_KW: Tensor, chosen_K: Tensor) -> None:
    """Decodes some groups of both sides and compares them."""
    assert tally.codes is not None and a.packing is not None
    bits = a.packing.element.bits
    if not len(chosen_K):
        return
    if len(chosen_K) < a.shape[0]:
        a, b, words_KW = _take(a, chosen_K), _take(b, chosen_K), words_KW[chosen_K]
    tally.codes += _count_codes(words_KW, bits)
    everything = slice(0, len(chosen_K))
    a_KN, b_KN = a.values(everything), b.values(everything)
    count = int(torch.count_nonzero(a_KN != b_KN))
    if count:
        tally.values += count
        tally.ulps = max(tally.ulps, ulps_between(a_KN, b_KN))


def _find_first(a: StoredMatrix, b: StoredMatrix, chosen_K: Tensor) -> _First:
    """Returns the first value that differs in the chosen groups; there is one."""
    for few_K in chosen_K.split(_FEW_GROUPS):
        everything = slice(0, len(few_K))
        a_KN, b_KN = _take(a, few_K).values(everything), _take(b, few_K).values(everything)
        differs_KN = a_KN != b_KN
        if bool(differs_KN.any()):
            at, member = (int(i) for i in differs_KN.nonzero()[0])
            return _First(int(few_K[at]), member, a_KN[at, member], b_KN[at, member])
    raise AssertionError("no value differs")


def _add_scales(tally: Tally, a: StoredMatrix, b: StoredMatrix, is_scale_K: Tensor) -> None:
    """Counts groups of equal codes under other powers of two."""
    a_K, b_K = (side.parts[Part.SCALES].view(torch.uint8).flatten() for side in (a, b))
    count, ulps = count_unequal_scales(_code_words(a), a_K, b_K, is_scale_K)
    tally.values += count
    tally.ulps = max(tally.ulps, ulps)


def _add_codes(tally: Tally, a: StoredMatrix, b: StoredMatrix, words_KW: Tensor, is_code_K: Tensor) -> None:
    """Counts groups of other codes under equal powers of two, and decodes those that may hold the largest distance."""
    assert tally.codes is not None
    chosen_K = is_code_K.nonzero().flatten()
    if not len(chosen_K):
        return
    if len(chosen_K) < len(words_KW):
        a, b, words_KW = _take(a, chosen_K), _take(b, chosen_K), words_KW[chosen_K]
    tally.codes += int(count_nibbles(words_KW).sum())
    tally.values += count_unequal(words_KW, _code_words(a) | _code_words(b))
    far_K = may_exceed(a.parts[Part.SCALES].view(torch.uint8).flatten(), tally.ulps).nonzero().flatten()
    if len(far_K):
        everything = slice(0, len(far_K))
        tally.ulps = max(tally.ulps, ulps_between(*(_take(side, far_K).values(everything) for side in (a, b))))


def describe_first(
    a: StoredMatrix, b: StoredMatrix, place: tuple[int, int], a_value: Tensor, b_value: Tensor
) -> FirstDifference:
    """Puts the values of both sides at a row and column into words; `expert` is left to the caller."""
    row, col = place
    packing, at = a.packing or b.packing, slice(row, row + 1)
    with_codes = are_one_format(a, b)
    codes = (int(a.codes(at)[0, col]), int(b.codes(at)[0, col])) if with_codes else (None, None)
    scales = (a.row_scales(at)[0, col], b.row_scales(at)[0, col]) if with_codes else None
    return FirstDifference(
        part="values",
        expert=None,
        coordinate=place,
        group=None if packing is None else col // packing.tile_cols,
        a=number_of(a_value),
        b=number_of(b_value),
        a_code=codes[0],
        b_code=codes[1],
        a_scale=None if scales is None else number_of(scales[0]),
        b_scale=None if scales is None else number_of(scales[1]),
    )


def _dtypes(a: StoredMatrix, b: StoredMatrix) -> tuple[torch.dtype, torch.dtype]:
    """Returns the dtype in which values must be equal, and the coarser one in which distances are counted."""
    plain = [dtype for dtype in (a.dtype, b.dtype) if dtype is not None]
    coarse = next((d for d in (torch.bfloat16, torch.float16, torch.float32) if d in plain), torch.float32)
    return (coarse if len(set(plain)) == 1 else torch.float32), coarse


def _has_equal_rows(a: StoredMatrix, b: StoredMatrix, rows: slice) -> bool:
    """Tells whether some rows of two matrices of one packing have equal bytes, their scales too."""
    height = 1 if a.packing is None else a.packing.tile_rows
    tiles = slice(rows.start // height, (rows.stop - 1) // height + 1)
    for part in a.parts:
        x, y = a.parts[part], b.parts[part]
        if part is not Part.GLOBAL_SCALE:
            lines = tiles if part is Part.SCALES else rows
            x, y = x[lines], y[lines]
        if not has_equal_bits(x, y):
            return False
    return True


def can_group(matrix: StoredMatrix) -> bool:
    """Tells whether every group lies in bytes of its own, in one row."""
    packing = matrix.packing
    if packing is None or packing.tile_rows > 1 or matrix.shape[1] % packing.tile_cols:
        return False
    codes, num_groups = matrix.parts[Part.CODES], matrix.shape[1] // packing.tile_cols
    is_split = packing.layout is Layout.GGML_SPLIT and packing.tile_cols % 32 != 0
    is_full = codes.shape[-1] * codes.itemsize * 8 == matrix.shape[1] * packing.element.bits
    return is_full and codes.shape[-1] % num_groups == 0 and not is_split and packing.element.bits in (4, 8)


def as_groups(matrix: StoredMatrix, rows: slice) -> StoredMatrix:
    """Returns the groups of some rows as a matrix of one group a row."""
    assert matrix.packing is not None
    codes, scales = matrix.parts[Part.CODES][rows].contiguous(), matrix.parts[Part.SCALES][rows].contiguous()
    parts = {**matrix.parts, Part.CODES: codes.view(scales.numel(), -1), Part.SCALES: scales.view(-1, 1)}
    return _with_parts(matrix, parts)


def _take(groups: StoredMatrix, chosen_K: Tensor) -> StoredMatrix:
    parts = {part: x if part is Part.GLOBAL_SCALE else x[chosen_K] for part, x in groups.parts.items()}
    return _with_parts(groups, parts)


def _with_parts(matrix: StoredMatrix, parts: dict[Part, Tensor]) -> StoredMatrix:
    assert matrix.packing is not None
    shape = parts[Part.CODES].shape[0], matrix.packing.tile_cols
    return StoredMatrix(encoding=matrix.encoding, shape=shape, parts=parts, packing=matrix.packing)


def _code_words(groups: StoredMatrix) -> Tensor:
    """Returns the codes of every group as words of eight bytes, or one, [K, W]."""
    codes = groups.parts[Part.CODES].view(torch.uint8)
    return codes.view(torch.int64) if codes.shape[1] % _WORD == 0 and codes.storage_offset() % _WORD == 0 else codes


def _has_other_scale(a: StoredMatrix, b: StoredMatrix) -> Tensor:
    left, right = (side.parts[Part.SCALES].view(-1) for side in (a, b))
    if a.packing is not None and a.packing.scale is not ScaleKind.FLOAT:
        left, right = left.view(torch.uint8), right.view(torch.uint8)
    is_other_K = left != right
    above = [side.parts.get(Part.GLOBAL_SCALE) for side in (a, b)]
    if above[0] is not None and above[1] is not None and not torch.equal(above[0], above[1]):
        return torch.ones_like(is_other_K)
    return is_other_K


def _fold(words_KW: Tensor) -> Tensor:
    """Returns words that are zero where all words of a group are, [K]."""
    if words_KW.shape[1] <= _FEW_WORDS:
        return reduce(or_, words_KW.unbind(1))
    return words_KW.any(1)


def _count_codes(words_KW: Tensor, bits: int) -> int:
    """Counts the codes that differ, given both sides' words combined by exclusive or."""
    if bits == 8:
        return int(torch.count_nonzero(words_KW.view(torch.uint8)))
    return int(count_nibbles(words_KW).sum())


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int16 if x.itemsize == 2 else torch.int32)


def _ordinals(bits: Tensor) -> Tensor:
    """Returns integers in the order of the numbers, -0 one below +0."""
    return (bits >> (8 * bits.itemsize - 1)).bitwise_and_(_magnitude_mask(bits)).bitwise_xor_(bits)


def _magnitude_mask(bits: Tensor) -> int:
    return (1 << (8 * bits.itemsize - 1)) - 1


def _rank(bits: Tensor) -> Tensor:
    """Returns consecutive int64 for consecutive numbers, 0 for both zeros."""
    magnitude = bits.to(torch.int64) & _magnitude_mask(bits)
    return torch.where(bits < 0, -magnitude, magnitude)

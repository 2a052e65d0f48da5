"""Groups of E2M1 codes under powers of two, compared as they lie: in words of nibbles, and by exponents.

As long as all values are normal numbers of fp32, those of one group of either side differ

    under equal scales    where the codes do, but for the two zeros,
    of equal codes        everywhere but at zeros, |p - q| * 2^23 ulps apart under the scales 2^p and 2^q.

Values of other codes under an equal scale 2^p are at most as far apart as 6 * 2^p and -6 * 2^p, so few groups can hold
the largest distance, and the others need no decoding.

Shape suffixes: K groups, W words of a group: eight bytes each, or one where a group is not of whole words.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from quantaudit.core.format import E2M1
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix

_FEW_WORDS = 8
_MANTISSA_BITS = 23
# Under these E8M0 codes .5 and 6 are normal numbers of fp32.
_LEAST_SCALE, _LARGEST_SCALE = 2, 252
_MAGNITUDES = {torch.int64: 0x7777777777777777, torch.uint8: 0x77}
_LOWEST_BITS = {torch.int64: 0x1111111111111111, torch.uint8: 0x11}


def are_safe_powers(matrix: StoredMatrix) -> bool:
    """Tells whether a matrix holds E2M1 under powers of two that leave every value a normal number."""
    assert matrix.packing is not None
    if matrix.packing.element != E2M1 or matrix.packing.scale is not ScaleKind.E8M0:
        return False
    least, largest = matrix.parts[Part.SCALES].view(torch.uint8).aminmax()
    return int(least) >= _LEAST_SCALE and int(largest) <= _LARGEST_SCALE


def count_unequal(unequal_KW: Tensor, either_KW: Tensor) -> int:
    """Counts values that differ under equal scales.

    Args:
        unequal_KW: Codes of both sides, combined by exclusive or.
        either_KW: Combined by or: of two zeros no bit but the sign is set.
    """
    is_number_KW = _mark_nibbles(either_KW & _MAGNITUDES[either_KW.dtype])
    return int(_count_marks(_mark_nibbles(unequal_KW) & is_number_KW).sum())


def count_unequal_scales(codes_KW: Tensor, a_K: Tensor, b_K: Tensor, is_counted_K: Tensor) -> tuple[int, int]:
    """Counts values that differ by their scales alone, and returns the largest distance in ulps of fp32.

    Args:
        codes_KW: Codes of both sides.
        a_K: Exponents of the first side, uint8.
        b_K: Exponents of the second.
        is_counted_K: Which groups are counted.
    """
    num_nonzero_K = torch.where(is_counted_K, count_nibbles(codes_KW & _MAGNITUDES[codes_KW.dtype]), 0)
    distance_K = torch.sub(a_K.to(torch.int32), b_K.to(torch.int32)).abs()
    return int(num_nonzero_K.sum()), int(torch.where(num_nonzero_K > 0, distance_K, 0).amax()) << _MANTISSA_BITS


def may_exceed(exponents_K: Tensor, ulps: int) -> Tensor:
    """Tells of which groups two values may be more than some ulps of fp32 apart, given their exponents, uint8.

    With the exponent p, 6 * 2^(p - 127) has the bits (p + 2) * 2^23 + 2^22, and so many ulps lie between it and zero.
    """
    least = ((ulps - (1 << _MANTISSA_BITS)) >> (_MANTISSA_BITS + 1)) - 1
    return exponents_K >= max(least, 0) if least <= _LARGEST_SCALE else torch.zeros_like(exponents_K, dtype=torch.bool)


def count_nibbles(words_KW: Tensor) -> Tensor:
    """Counts the nibbles of every group that are not zero, [K] int64."""
    return _count_marks(_mark_nibbles(words_KW))


def _mark_nibbles(words_KW: Tensor) -> Tensor:
    """Returns words of which the lowest bit of a nibble is set where any bit of it was."""
    pairs = words_KW | words_KW >> 1
    return (pairs | pairs >> 2) & _LOWEST_BITS[words_KW.dtype]


def _count_marks(marks_KW: Tensor) -> Tensor:
    if marks_KW.dtype == torch.uint8:
        return (marks_KW & 1).sum(1) + (marks_KW >> 4).sum(1)
    in_bytes = (marks_KW + (marks_KW >> 4)) & 0x0F0F0F0F0F0F0F0F
    counts_KW = (in_bytes * 0x0101010101010101) >> 56
    return reduce(torch.add, counts_KW.unbind(1)) if counts_KW.shape[1] <= _FEW_WORDS else counts_KW.sum(1)

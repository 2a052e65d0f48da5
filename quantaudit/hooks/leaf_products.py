"""Both lanes of a leaf as one product of matrices of doubles, which is exact: some three times as fast as in integers.

A word is two halves of 16 bits, the key of a row three limbs of at most 22:

    key * word = sum over limbs l and halves h of  limb_l * half_h * 2^(22 l + 16 h)          mod 2^64

A limb times a half is below 2^38, so up to 2^15 such terms stay below 2^53, up to where doubles hold every integer:
they may be added in any order, and the libraries that multiply matrices do it fastest. What is left per column, one
number a limb, a half and a lane, is put together in integers, and multiplied by the keys of the columns.

Shape suffixes: E matrices of a stack, R rows, C columns; limbs are [lane and limb, row], sums [lane and limb, column
and half].
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_ROWS = 1 << 15
_WORDS_AT_ONCE = 1 << 15  # as doubles they are half a megabyte, which stays in cache and in memory taken before
_COLUMNS_AT_ONCE = 1 << 8
_LIMB_BITS, _HALF_BITS = 22, 16
_SHIFTS = (0, _LIMB_BITS, 2 * _LIMB_BITS)
_MASKS = ((1 << _LIMB_BITS) - 1, (1 << _LIMB_BITS) - 1, (1 << (64 - 2 * _LIMB_BITS)) - 1)
_SUBNORMAL = torch.tensor(1e-40)


def is_worth_multiplying(words_RC: Tensor) -> bool:
    """Says whether products are faster: on a CPU, where what is left per column is little beside the rows."""
    num_rows, num_cols = words_RC.shape
    return words_RC.device.type == "cpu" and num_rows >= min(num_cols, _COLUMNS_AT_ONCE)


def can_add_zero(words_RC: Tensor) -> bool:
    """Says whether x + 0 makes +0 of -0 and changes nothing else: no value is NaN, and subnormals are not flushed."""
    is_finite = words_RC.view(torch.float32).sum().isfinite()
    return bool(is_finite & ((_SUBNORMAL + 0.0).view(torch.int32) != 0))


def multiply_words(words_RC: Tensor, row_keys: Tensor, column_keys: Tensor, *, add_zero: bool) -> Tensor:
    """Returns what `leaf.sum_words` returns, [2] int64.

    Args:
        words_RC: int32, at most `MOST_ROWS` rows, rows contiguous.
        row_keys: [2, R] int64.
        column_keys: [2, C] int64.
        add_zero: Whether the words are numbers, of which -0 counts as +0.
    """
    limbs = _cut(row_keys)
    lanes = torch.zeros(2, dtype=torch.int64)
    for first in range(0, words_RC.shape[1], _COLUMNS_AT_ONCE):
        columns = slice(first, first + _COLUMNS_AT_ONCE)
        sums = _multiply(limbs, words_RC[:, columns], add_zero=add_zero)
        lanes += (_join(sums) * column_keys[:, columns]).sum(1)
    return lanes


def multiply_stack(words_ERC: Tensor, row_keys: Tensor, column_keys: Tensor, *, add_zero: bool) -> Tensor:
    """Returns the lanes of every matrix of a stack, [E, 2] int64; for matrices of at most `_WORDS_AT_ONCE` words.

    Args:
        words_ERC: int32.
        row_keys: [2, E, R] int64.
        column_keys: [2, C] int64.
        add_zero: As for `multiply_words`.
    """
    limbs = _cut(row_keys).transpose(0, 1)
    at_once = max(1, _WORDS_AT_ONCE // words_ERC[0].numel())
    sums = [
        torch.bmm(some, _halve(words, add_zero=add_zero))
        for some, words in zip(limbs.split(at_once), words_ERC.split(at_once), strict=True)
    ]
    return (_join(torch.cat(sums)) * column_keys).sum(-1)


def fits_stack(words_ERC: Tensor) -> bool:
    """Says whether `multiply_stack` takes a stack: one on a CPU whose matrices are small."""
    return words_ERC.device.type == "cpu" and 0 < words_ERC[0].numel() <= _WORDS_AT_ONCE


def _cut(row_keys: Tensor) -> Tensor:
    """Returns the limbs of [2, ...] keys as doubles, [6, ...]."""
    limbs = [(row_keys >> shift) & mask for shift, mask in zip(_SHIFTS, _MASKS, strict=True)]
    return torch.stack(limbs, dim=1).to(torch.float64).flatten(0, 1)


def _halve(words: Tensor, *, add_zero: bool) -> Tensor:
    """Returns the low and the high half of every word of [..., C] as doubles, [..., 2 C]."""
    plain = words.view(torch.float32) + 0.0 if add_zero else words
    return plain.contiguous().view(torch.uint16).to(torch.float64)


def _multiply(limbs: Tensor, words_RC: Tensor, *, add_zero: bool) -> Tensor:
    """Returns limbs times halves, piece by piece."""
    num_rows, num_cols = words_RC.shape
    sums = limbs.new_zeros(len(limbs), 2 * num_cols)
    tall = _WORDS_AT_ONCE // num_cols
    for row in range(0, num_rows, tall):
        sums.addmm_(limbs[:, row : row + tall], _halve(words_RC[row : row + tall], add_zero=add_zero))
    return sums


def _join(sums: Tensor) -> Tensor:
    """Returns the sum of keys times words of every lane and column, [..., 2, C] int64."""
    limbs = sums.to(torch.int64).unflatten(-2, (2, len(_SHIFTS)))
    first, second, third = limbs.unbind(-2)
    joined = torch.unflatten(first + (second << _SHIFTS[1]) + (third << _SHIFTS[2]), -1, (-1, 2))
    low, high = joined.unbind(-1)
    # The second lane is of words rotated by 16: their halves have changed places.
    lanes = low[..., 0, :] + (high[..., 0, :] << _HALF_BITS), (low[..., 1, :] << _HALF_BITS) + high[..., 1, :]
    return torch.stack(lanes, dim=-2)

"""The leaf of a fingerprint: two 64-bit sums over a tensor's words that do not depend on order, cut or device.

    lane 1 = sum over (r, c) of row_key_1(r) * column_key_1(c) * word(r, c)                 mod 2^64
    lane 2 = sum over (r, c) of row_key_2(r) * column_key_2(c) * (word(r, c) rotated by 16)   mod 2^64

A word is the fp32 bits of a value (-0 as +0, every NaN as one), or four bytes of storage; r and c are its place in the
whole tensor, r = expert * out + row. Keys are odd, fixed, and come from splitmix64. Integer addition mod 2^64 is exact
and commutes, so CPU and CUDA agree, and the leaves of any cut of a tensor into boxes add up to its own: shards of
tensor- or expert-parallel weights are fingerprinted where they lie.

One differing word is always found: it is multiplied by odd numbers. Any other difference goes unseen for less than one
choice of keys in 2^67. That bound is for accidents; whoever knows the keys can make two tensors of one leaf.

Derivation: let v be the number of trailing zero bits of a difference of words. Over odd keys, a lane is zero with
probability at most (65 - v) * 2^(v - 62); a bit that is bit v of the word is bit (v + 16) mod 32 of the rotated one, so
the worst case is v = 31 and 15, (34 * 2^-31) * (50 * 2^-47) < 2^-67.

Shape suffixes: R rows, C columns, W words of a row of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.hooks.leaf_products import (
    MOST_ROWS,
    can_add_zero,
    fits_stack,
    is_worth_multiplying,
    multiply_stack,
    multiply_words,
)

PIECE = 1 << 16  # words at a time: what lies between two operations stays in cache
WORD_BYTES = 4
_KEPT_ROWS = 1 << 12
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SEEDS = {"row": (0x243F6A8885A308D3, 0x13198A2E03707344), "column": (0xA4093822299F31D0, 0x082EFA98EC4E6C89)}
_ONE_NAN = 0x7FC00000


class Summer(NamedTuple):
    """What sums a piece of words under its row and column keys, and the words of a piece that suit it."""

    sum_piece: Callable[[Tensor, Tensor, Tensor], Tensor]
    num_words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Two sums mod 2^64; leaves of the parts of a tensor add up to the leaf of the whole."""

    first: int = 0
    second: int = 0

    def __add__(self, other: Leaf) -> Leaf:
        """Adds lane by lane, mod 2^64."""
        return Leaf(first=(self.first + other.first) & _MASK, second=(self.second + other.second) & _MASK)

    @property
    def hex(self) -> str:
        """Returns both lanes, 32 hex digits."""
        return f"{self.first:016x}{self.second:016x}"

    @classmethod
    def from_hex(cls, text: str) -> Leaf:
        """Returns the leaf that was written as 32 hex digits."""
        return cls(first=int(text[:16], 16), second=int(text[16:], 16))

    @classmethod
    def from_lanes(cls, lanes: Tensor) -> Leaf:
        """Returns the leaf of two int64 lanes, as `value_lanes` gives and an all-reduce adds them."""
        first, second = (int(lane) & _MASK for lane in lanes.tolist())
        return cls(first=first, second=second)


def leaf_of_values(
    values_RC: Tensor,
    *,
    first_row: int = 0,
    row_step: int = 1,
    first_col: int = 0,
    summer: Summer | None = None,
) -> Leaf:
    """Returns the leaf of decoded values; waits for the device (`value_lanes` does not).

    Args:
        values_RC: [R, C] fp32, bf16 or fp16: a box of the whole tensor, its leading axes seen as rows.
        first_row: Row of the whole tensor at which the box begins.
        row_step: Distance of its rows in the whole tensor; 2 where gate and up rows alternate.
        first_col: Column at which it begins.
        summer: A compiled `sum_value_words`.
    """
    lanes = value_lanes(values_RC, first_row=first_row, row_step=row_step, first_col=first_col, summer=summer)
    return Leaf.from_lanes(lanes)


def leaf_of_bytes(
    bytes_RC: Tensor,
    *,
    first_row: int = 0,
    row_step: int = 1,
    first_col: int = 0,
    summer: Summer | None = None,
) -> Leaf:
    """Returns the leaf of stored bytes, [R, C] uint8; columns are counted in bytes, as for `leaf_of_values`."""
    if not bytes_RC.numel():
        return Leaf()
    before = first_col % WORD_BYTES
    after = -(before + bytes_RC.shape[1]) % WORD_BYTES
    # A word of which the box holds a part counts with the bytes that it has: sums of bytes are sums of words.
    filled = torch.nn.functional.pad(bytes_RC, (before, after)) if before or after else bytes_RC.contiguous()
    words_RW = filled.view(torch.int32)
    first_word = first_col // WORD_BYTES
    return Leaf.from_lanes(_sum_lanes(words_RW, first_row, row_step, first_word, summer or Summer(sum_words, PIECE)))


@torch.no_grad()
def value_lanes(
    values_RC: Tensor,
    *,
    first_row: int = 0,
    row_step: int = 1,
    first_col: int = 0,
    summer: Summer | None = None,
) -> Tensor:
    """Returns the lanes of `leaf_of_values` as [2] int64 on the device of the values, nothing waited for."""
    words_RC = values_RC.detach().float().view(torch.int32)
    return _sum_lanes(words_RC, first_row, row_step, first_col, summer or Summer(sum_value_words, PIECE))


@torch.no_grad()
def matrix_lanes(values_EOI: Tensor, parts: Sequence[int]) -> Tensor:
    """Returns the lanes of some matrices of a stack, each at its place in the whole, [E, 2] int64.

    Args:
        values_EOI: fp32, bf16 or fp16.
        parts: Which matrices of the whole these are.
    """
    num_rows, num_cols = values_EOI.shape[1:]
    words_EOI = values_EOI.detach().float().view(torch.int32)
    if not len(parts) or not (fits_stack(words_EOI) and can_add_zero(words_EOI)):
        lanes = [value_lanes(x_OI, first_row=n * num_rows) for n, x_OI in zip(parts, values_EOI, strict=True)]
        return torch.stack(lanes) if lanes else torch.zeros(0, 2, dtype=torch.int64)
    first, last = min(parts), max(parts)
    rows = _row_keys(first * num_rows, (last + 1 - first) * num_rows, 1, words_EOI.device)
    places = torch.tensor(parts) - first
    row_keys = torch.unflatten(rows, 1, (-1, num_rows)).index_select(1, places)
    column_keys = _kept_keys("column", 0, num_cols, 1, words_EOI.device)
    return multiply_stack(words_EOI, row_keys, column_keys, add_zero=True)


def _sum_lanes(words: Tensor, first_row: int, row_step: int, first_col: int, summer: Summer) -> Tensor:
    lanes = torch.zeros(2, dtype=torch.int64, device=words.device)
    num_rows, num_cols = words.shape
    if not words.numel():
        return lanes
    row_keys = _row_keys(first_row, num_rows, row_step, words.device)
    if _are_products(words, summer):
        column_keys = _kept_keys("column", first_col, num_cols, 1, words.device)
        is_value = summer.sum_piece is sum_value_words
        for row in range(0, num_rows, MOST_ROWS):
            rows = slice(row, row + MOST_ROWS)
            lanes += multiply_words(words[rows], row_keys[:, rows], column_keys, add_zero=is_value)
        return lanes
    # An accelerator has no use for pieces that fit a cache.
    wide, tall = (num_cols, num_rows) if words.is_cuda else _piece_shape(num_cols, summer.num_words)
    for col in range(0, num_cols, wide):
        column_keys = _kept_keys("column", first_col + col, min(wide, num_cols - col), 1, words.device)
        for row in range(0, num_rows, tall):
            piece = words[row : row + tall, col : col + wide]
            lanes += summer.sum_piece(piece, row_keys[:, row : row + tall].contiguous(), column_keys)
    return lanes


def _are_products(words: Tensor, summer: Summer) -> bool:
    """Says whether what would be summed by eager code is summed by products of doubles, to the same lanes."""
    if summer.sum_piece is sum_value_words:
        return is_worth_multiplying(words) and can_add_zero(words)
    return summer.sum_piece is sum_words and is_worth_multiplying(words)


def _piece_shape(num_cols: int, num_words: int) -> tuple[int, int]:
    wide = min(num_cols, num_words)
    return wide, max(1, num_words // wide)


def canonical_words(bits: Tensor) -> Tensor:
    """Returns fp32 bits, int32, with -0 as +0 and every NaN as one."""
    magnitude = bits & 0x7FFFFFFF
    return torch.where(magnitude == 0, 0, torch.where(magnitude > 0x7F800000, _ONE_NAN, bits))


def sum_value_words(words_RC: Tensor, row_keys: Tensor, column_keys: Tensor) -> Tensor:
    """Returns `sum_words` of fp32 bits, zeros and NaNs made one."""
    return sum_words(canonical_words(words_RC), row_keys, column_keys)


def sum_words(words_RC: Tensor, row_keys: Tensor, column_keys: Tensor) -> Tensor:
    """Returns both lanes of a piece, [2] int64.

    Args:
        words_RC: int32.
        row_keys: [2, R] int64.
        column_keys: [2, C] int64.
    """
    wide_RC = words_RC.to(torch.int64) & 0xFFFFFFFF
    first_R = (wide_RC * column_keys[0]).sum(1)
    rotated_RC = ((wide_RC & 0xFFFF) << 16) | (wide_RC >> 16)
    second_R = (rotated_RC * column_keys[1]).sum(1)
    return torch.stack(((first_R * row_keys[0]).sum(), (second_R * row_keys[1]).sum()))


def make_keys(axis: str, first: int, count: int, step: int, device: torch.device) -> Tensor:
    """Returns odd keys of consecutive places, [2, count] int64.

    Args:
        axis: "row" or "column".
        first: First place.
        count: How many.
        step: Distance of one place from the next.
        device: Where they are needed.
    """
    places = torch.arange(first, first + count * step, step, dtype=torch.int64, device=device)
    return torch.stack([_splitmix(places * _signed(_GOLDEN) + _signed(seed)) | 1 for seed in _SEEDS[axis]])


_kept_keys = lru_cache(maxsize=16)(make_keys)


def _row_keys(first: int, count: int, step: int, device: torch.device) -> Tensor:
    """Returns keys of rows; neighbouring pieces take theirs out of one kept block."""
    begin = first % _KEPT_ROWS
    if step != 1 or begin + count > _KEPT_ROWS:
        return make_keys("row", first, count, step, device)
    return _kept_keys("row", first - begin, _KEPT_ROWS, 1, device)[:, begin : begin + count]


def _splitmix(x: Tensor) -> Tensor:
    """Returns the finalizer of splitmix64 of every element (Steele, Lea and Flood, 2014)."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shifts right as unsigned numbers; int64 would draw its sign after it."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word

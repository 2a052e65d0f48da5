"""Packing 4-bit codes into bytes and words, and back.

Unsigned codes (uint8: float formats and codebooks) go into the nibble as they are. Signed codes (int8) are two's
complement in the two nibble layouts and offset by 8 in `ggml-split` and `int32-words`, as their formats define it.
Codes of another width stay one a byte.

Shape suffixes: none; packing acts on the last axis.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Layout

GGML_BLOCK = 32
WORD_CODES = 8
_OFFSET = 8
_NIBBLE = 0xF
_TWO_NIBBLES = 0x0F0F
_WORD_BYTES = 4


def pack(codes: Tensor, layout: Layout) -> Tensor:
    """Packs codes along the last axis.

    Args:
        codes: [..., n] uint8, or int8 for integers; 4-bit unless the layout is one code a byte.
        layout: Where the codes go. An odd n is filled with a zero nibble, a partial word with zeros.

    Returns:
        [..., ceil(n / 2)] uint8; int32 [..., ceil(n / 8)] for words; the codes themselves for bytes.

    Raises:
        InputError: If n is no multiple of 32 for the split layout, or a code needs more than 4 bits.
    """
    if layout is Layout.BYTES:
        return codes
    _check_width(codes)
    nibbles = _to_nibbles(codes, layout)
    match layout:
        case Layout.INT32_WORDS:
            return _pack_words(nibbles)
        case Layout.GGML_SPLIT:
            _check_split(codes.shape[-1])
            halves = _split_last(nibbles, 2, GGML_BLOCK // 2)
            return (halves[..., 0, :] | (halves[..., 1, :] << 4)).flatten(-2)
    return _join_pairs(_filled(nibbles, 2), layout)


def unpack(packed: Tensor, layout: Layout, *, dtype: torch.dtype = torch.uint8, num_codes: int | None = None) -> Tensor:
    """Unpacks what `pack` packed.

    Args:
        packed: [..., m] uint8, or int32 for words.
        layout: As for `pack`.
        dtype: uint8 for unsigned codes, int8 for signed ones.
        num_codes: Length of the last axis of the codes, where the packed one was filled.

    Raises:
        TypeError: If packed codes are of another dtype.
    """
    if layout is Layout.BYTES:
        return packed
    stored = torch.int32 if layout is Layout.INT32_WORDS else torch.uint8
    if packed.dtype != stored:
        raise TypeError(f"packed codes of {packed.dtype}, where the layout {layout} has {stored}")
    match layout:
        case Layout.INT32_WORDS:
            nibbles = _part_pairs(_bytes_of_words(packed), Layout.LOW_NIBBLE_FIRST)
        case Layout.GGML_SPLIT:
            halves = _split_last(packed, GGML_BLOCK // 2)
            nibbles = torch.stack((halves & _NIBBLE, halves >> 4), dim=-2).flatten(-3)
        case _:
            nibbles = _part_pairs(packed, layout)
    return _from_nibbles(nibbles, layout, dtype)[..., :num_codes]


def _join_pairs(nibbles: Tensor, layout: Layout) -> Tensor:
    """Returns bytes of two nibbles each, both worked on as one integer of 16 bits."""
    pairs = _aligned(nibbles).view(torch.int16)
    return (pairs | pairs >> 4 if _is_low_in_low(layout) else pairs << 4 | pairs >> 8).to(torch.uint8)


def _part_pairs(packed: Tensor, layout: Layout) -> Tensor:
    """Returns the two nibbles of every byte, one a byte."""
    pairs = packed.to(torch.int16, memory_format=torch.contiguous_format)
    pairs = pairs | pairs << 4 if _is_low_in_low(layout) else pairs << 8 | pairs >> 4
    return (pairs & _TWO_NIBBLES).view(torch.uint8)


def _is_low_in_low(layout: Layout) -> bool:
    """Returns whether the low nibble of a byte belongs into the low byte of a 16-bit integer of this machine."""
    return (layout is Layout.LOW_NIBBLE_FIRST) == (sys.byteorder == "little")


def _aligned(codes: Tensor) -> Tensor:
    """Returns codes that may be viewed as wider integers."""
    codes = codes.contiguous()
    return codes.clone() if codes.storage_offset() % WORD_CODES else codes


def _pack_words(nibbles: Tensor) -> Tensor:
    joined = _join_pairs(_filled(nibbles, WORD_CODES), Layout.LOW_NIBBLE_FIRST)
    if sys.byteorder == "big":
        joined = _split_last(joined, _WORD_BYTES).flip(-1).flatten(-2)
    return joined.view(torch.int32)


def _bytes_of_words(packed: Tensor) -> Tensor:
    parts = packed.contiguous().view(torch.uint8)
    return parts if sys.byteorder == "little" else _split_last(parts, _WORD_BYTES).flip(-1).flatten(-2)


def _is_offset(layout: Layout) -> bool:
    return layout in (Layout.GGML_SPLIT, Layout.INT32_WORDS)


def _to_nibbles(codes: Tensor, layout: Layout) -> Tensor:
    if codes.dtype == torch.uint8:
        return codes
    return (codes + _OFFSET if _is_offset(layout) else codes & _NIBBLE).view(torch.uint8)


def _from_nibbles(nibbles: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8:
        return nibbles
    signed = nibbles.view(torch.int8)
    return signed - _OFFSET if _is_offset(layout) else (signed ^ _OFFSET) - _OFFSET


def _split_last(x: Tensor, *sizes: int) -> Tensor:
    return x.reshape(*x.shape[:-1], x.shape[-1] // math.prod(sizes), *sizes)


def _filled(nibbles: Tensor, multiple: int) -> Tensor:
    missing = -nibbles.shape[-1] % multiple
    return torch.nn.functional.pad(nibbles, (0, missing)) if missing else nibbles


def _check_split(num_codes: int) -> None:
    if num_codes % GGML_BLOCK:
        raise InputError(
            f"{num_codes} codes in the last axis",
            expected=f"a multiple of {GGML_BLOCK} for the layout {Layout.GGML_SPLIT}",
            fix="choose another layout",
        )


def _check_width(codes: Tensor) -> None:
    low, high = (0, 15) if codes.dtype == torch.uint8 else (-8, 7)
    if not codes.numel():
        return
    least, most = (int(one) for one in codes.aminmax())
    if least < low or most > high:
        raise InputError(
            f"codes from {least} to {most}",
            expected=f"4-bit codes, {low} to {high}",
            fix=f"wider codes are stored with the layout {Layout.BYTES}",
        )

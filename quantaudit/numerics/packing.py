"""Packing 4-bit codes into bytes and words, and back.

Unsigned codes (uint8: float formats and codebooks) go into the nibble as they are. Signed codes (int8) are two's
complement in the two nibble layouts and offset by 8 in `ggml-split` and `int32-words`, as their formats define it.
Codes of another width stay one a byte.

Shape suffixes: none; packing acts on the last axis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Layout

GGML_BLOCK = 32
WORD_CODES = 8
_OFFSET = 8
_NIBBLE = 0xF


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
    pairs = _split_last(_filled(nibbles, 2), 2)
    low, high = (0, 1) if layout is Layout.LOW_NIBBLE_FIRST else (1, 0)
    return pairs[..., low] | (pairs[..., high] << 4)


def unpack(packed: Tensor, layout: Layout, *, dtype: torch.dtype = torch.uint8, num_codes: int | None = None) -> Tensor:
    """Unpacks what `pack` packed.

    Args:
        packed: [..., m] uint8, or int32 for words.
        layout: As for `pack`.
        dtype: uint8 for unsigned codes, int8 for signed ones.
        num_codes: Length of the last axis of the codes, where the packed one was filled.
    """
    if layout is Layout.BYTES:
        return packed
    match layout:
        case Layout.INT32_WORDS:
            shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
            nibbles = ((packed.unsqueeze(-1) >> shifts) & _NIBBLE).flatten(-2).to(torch.uint8)
        case Layout.GGML_SPLIT:
            halves = _split_last(packed, GGML_BLOCK // 2)
            nibbles = torch.stack((halves & _NIBBLE, halves >> 4), dim=-2).flatten(-3)
        case _:
            low, high = packed & _NIBBLE, packed >> 4
            order = (low, high) if layout is Layout.LOW_NIBBLE_FIRST else (high, low)
            nibbles = torch.stack(order, dim=-1).flatten(-2)
    return _from_nibbles(nibbles, layout, dtype)[..., :num_codes]


def _is_offset(layout: Layout) -> bool:
    return layout in (Layout.GGML_SPLIT, Layout.INT32_WORDS)


def _to_nibbles(codes: Tensor, layout: Layout) -> Tensor:
    if codes.dtype == torch.uint8:
        return codes
    return (codes + _OFFSET if _is_offset(layout) else codes & _NIBBLE).to(torch.uint8)


def _from_nibbles(nibbles: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8:
        return nibbles
    signed = nibbles.to(torch.int8)
    return signed - _OFFSET if _is_offset(layout) else (signed ^ _OFFSET) - _OFFSET


def _pack_words(nibbles: Tensor) -> Tensor:
    groups = _split_last(_filled(nibbles, WORD_CODES), WORD_CODES).to(torch.int32)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=nibbles.device)
    return (groups << shifts).sum(-1, dtype=torch.int32)


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
    if codes.numel() and (int(codes.min()) < low or int(codes.max()) > high):
        raise InputError(
            f"codes from {int(codes.min())} to {int(codes.max())}",
            expected=f"4-bit codes, {low} to {high}",
            fix=f"wider codes are stored with the layout {Layout.BYTES}",
        )

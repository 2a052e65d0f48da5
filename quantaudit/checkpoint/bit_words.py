"""Integer codes of any width in 32-bit words, without a bit to spare.

    code i of a row, plus 2^(bits - 1), takes the bits from i * bits on; bit n of a row is bit n mod 32 of word n div 32

so 32 codes of b bits fill b words, and a code may lie across two. With 4 bits this is the layout `int32-words`. The
rest of the last word is zero.

Source: compressed-tensors 0.20.1, `pack_to_int32`.
Shape suffixes: G runs of 32 codes, W words of a run; packing acts on the last axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.checkpoint.packed import WORD_BITS, num_words
from quantaudit.core.scheme import Layout
from quantaudit.numerics.packing import pack, unpack

_MASK = (1 << WORD_BITS) - 1


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """Packs codes along the last axis.

    Args:
        codes: [..., n] int8, each from -2^(bits - 1) to 2^(bits - 1) - 1.
        bits: Width of a code, 1 to 8.

    Returns:
        [..., ceil(n * bits / 32)] int32.
    """
    if bits == 4:
        return pack(codes, Layout.INT32_WORDS)
    num_codes = codes.shape[-1]
    shifted = codes.to(torch.int64) + (1 << (bits - 1))
    runs_GN = torch.nn.functional.pad(shifted, (0, -num_codes % WORD_BITS)).unflatten(-1, (-1, WORD_BITS))
    words_GW = torch.zeros(*runs_GN.shape[:-1], bits, dtype=torch.int64, device=codes.device)
    for i in range(WORD_BITS):
        word, shift = divmod(i * bits, WORD_BITS)
        words_GW[..., word] |= (runs_GN[..., i] << shift) & _MASK
        if shift + bits > WORD_BITS:
            words_GW[..., word + 1] |= runs_GN[..., i] >> (WORD_BITS - shift)
    signed_GW = torch.where(words_GW >> (WORD_BITS - 1) > 0, words_GW - (1 << WORD_BITS), words_GW)
    return signed_GW.to(torch.int32).flatten(-2)[..., : num_words(num_codes, bits)].contiguous()


def unpack_words(words: Tensor, bits: int, num_codes: int) -> Tensor:
    """Unpacks what `pack_words` packed, [..., num_codes] int8.

    Args:
        words: [..., m] int32.
        bits: Width of a code, 1 to 8.
        num_codes: Codes of a row, at most what the words hold.
    """
    if bits == 4:
        return unpack(words, Layout.INT32_WORDS, dtype=torch.int8, num_codes=num_codes)
    unsigned = words.to(torch.int64) & _MASK
    runs_GW = torch.nn.functional.pad(unsigned, (0, -words.shape[-1] % bits)).unflatten(-1, (-1, bits))
    codes = []
    for i in range(WORD_BITS):
        word, shift = divmod(i * bits, WORD_BITS)
        code = runs_GW[..., word] >> shift
        if shift + bits > WORD_BITS:
            code = code | runs_GW[..., word + 1] << (WORD_BITS - shift)
        codes.append((code & ((1 << bits) - 1)) - (1 << (bits - 1)))
    return torch.stack(codes, dim=-1).to(torch.int8).flatten(-2)[..., :num_codes]

"""Packing places every code where its format says, and unpacking brings it back."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Layout
from quantaudit.numerics import pack, unpack

PACKED = [layout for layout in Layout if layout is not Layout.BYTES]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=["unsigned", "signed"])
@pytest.mark.parametrize("layout", list(Layout))
def test_unpack_inverts_pack_for_every_code_in_every_place(layout: Layout, dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -8
    codes = torch.stack([(torch.arange(64) * step + step) % 16 + low for step in range(16)]).to(dtype)
    assert torch.equal(unpack(pack(codes, layout), layout, dtype=dtype), codes)
    stack = codes.reshape(2, 8, 64)
    assert torch.equal(unpack(pack(stack, layout), layout, dtype=dtype), stack)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=["unsigned", "signed"])
@pytest.mark.parametrize("layout", PACKED)
def test_codes_may_lie_anywhere_in_memory(layout: Layout, dtype: torch.dtype) -> None:
    codes = (torch.arange(33 * 64).reshape(33, 64) * 7 % 16 + (0 if dtype == torch.uint8 else -8)).to(dtype)
    expected = pack(codes[1:], layout)
    apart = torch.stack([codes, codes], dim=-1).flatten()[66:].reshape(-1, 2)[:, 0]  # odd offset, every second one
    assert torch.equal(pack(apart[31:].reshape(32, 64), layout), expected)
    assert torch.equal(pack(codes.T.contiguous().T[1:], layout), expected)
    assert torch.equal(unpack(expected.T.contiguous().T, layout, dtype=dtype), codes[1:])
    odd = torch.cat([codes.flatten()[:1], codes.flatten()])[1:].reshape(33, 64)
    assert odd.storage_offset() == 1
    assert torch.equal(pack(odd[1:], layout), expected)


@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8])
def test_packed_codes_of_another_dtype_are_refused(layout: Layout, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="packed codes of torch"):
        unpack(torch.zeros(2, 16, dtype=dtype), layout)


def test_low_and_high_nibble_order() -> None:
    codes = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    assert pack(codes, Layout.LOW_NIBBLE_FIRST).tolist() == [0x21, 0x43]
    assert pack(codes, Layout.HIGH_NIBBLE_FIRST).tolist() == [0x12, 0x34]


def test_the_split_layout_pairs_j_with_j_plus_16() -> None:
    codes = torch.arange(32, dtype=torch.uint8) % 16
    codes[16:] = codes[16:].flip(0)
    packed = pack(codes, Layout.GGML_SPLIT)
    assert packed.tolist() == [j | (15 - j) << 4 for j in range(16)]
    assert pack(torch.full((1, 64), -8, dtype=torch.int8), Layout.GGML_SPLIT).unique().tolist() == [0]


def test_words_hold_eight_codes_offset_by_eight_lowest_first() -> None:
    codes = torch.tensor([-8, -7, -6, -5, -4, -3, -2, 7], dtype=torch.int8)
    assert [w & 0xFFFFFFFF for w in pack(codes, Layout.INT32_WORDS).tolist()] == [0xF6543210]


def test_signed_codes_are_twos_complement_in_nibbles() -> None:
    codes = torch.tensor([-1, -8, 7, 0], dtype=torch.int8)
    assert pack(codes, Layout.LOW_NIBBLE_FIRST).tolist() == [0x8F, 0x07]


@pytest.mark.parametrize("layout", [layout for layout in PACKED if layout is not Layout.GGML_SPLIT])
def test_a_partial_byte_or_word_is_filled(layout: Layout) -> None:
    codes = torch.tensor([[5, 3, 1], [2, 4, 6]], dtype=torch.uint8)
    packed = pack(codes, layout)
    assert packed.shape == (2, 1 if layout is Layout.INT32_WORDS else 2)
    assert torch.equal(unpack(packed, layout, num_codes=3), codes)


def test_wider_codes_stay_one_a_byte() -> None:
    codes = torch.arange(64, dtype=torch.uint8)
    assert pack(codes, Layout.BYTES) is codes
    for layout in PACKED:
        with pytest.raises(InputError, match="expected 4-bit codes, 0 to 15"):
            pack(codes, layout)


def test_the_split_layout_refuses_a_partial_block() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        pack(torch.zeros(2, 48, dtype=torch.uint8), Layout.GGML_SPLIT)

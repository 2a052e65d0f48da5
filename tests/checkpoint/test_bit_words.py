"""Integer codes of every width lie in words as compressed-tensors packs them, and come back."""

from __future__ import annotations

import pytest
import torch

from quantaudit.checkpoint.bit_words import pack_words, unpack_words
from quantaudit.checkpoint.packed import num_words, width_of
from quantaudit.core.scheme import Layout
from quantaudit.numerics import pack

WIDTHS = range(1, 9)
LENGTHS = (1, 5, 31, 32, 33, 64, 100)


def draw(bits: int, num_codes: int) -> torch.Tensor:
    """Returns three rows of codes, the smallest and the largest among them."""
    generator = torch.Generator().manual_seed(bits * 1000 + num_codes)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    codes = torch.randint(low, high + 1, (3, num_codes), generator=generator)
    codes[0, 0], codes[2, -1] = low, high
    return codes.to(torch.int8)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_bit_stream_written_out_is_what_is_packed(bits: int) -> None:
    codes = draw(bits, 33)
    for row, words in zip(codes.tolist(), pack_words(codes, bits).tolist(), strict=True):
        stream = sum((code + (1 << (bits - 1))) << (i * bits) for i, code in enumerate(row))
        assert [word & 0xFFFFFFFF for word in words] == [
            stream >> (32 * n) & 0xFFFFFFFF for n in range(num_words(33, bits))
        ]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("num_codes", LENGTHS)
def test_codes_come_back(bits: int, num_codes: int) -> None:
    codes = draw(bits, num_codes)
    assert torch.equal(unpack_words(pack_words(codes, bits), bits, num_codes), codes)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("num_codes", LENGTHS)
def test_compressed_tensors_packs_the_same_words(bits: int, num_codes: int) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = draw(bits, num_codes)
    words = pack_words(codes, bits)
    assert torch.equal(words, helpers.pack_to_int32(codes, bits))
    assert torch.equal(helpers.unpack_from_int32(words, bits, codes.shape), codes)


def test_four_bits_are_the_layout_of_words() -> None:
    assert torch.equal(pack_words(draw(4, 40), 4), pack(draw(4, 40), Layout.INT32_WORDS))


def test_leading_axes_are_kept() -> None:
    codes = draw(3, 64).reshape(3, 2, 32)
    words = pack_words(codes, 3)
    assert words.shape == (3, 2, 3) and torch.equal(unpack_words(words, 3, 32), codes)


@pytest.mark.parametrize(
    ("words", "cols", "declared", "bits"),
    [(3, 32, (), 3), (2, 15, (), 4), (2, 15, (3,), 3), (2, 17, (), None), (8, 32, (3,), 8), (7, 32, (), None)],
)
def test_the_width_is_told_by_full_words(words: int, cols: int, declared: tuple[int, ...], bits: int | None) -> None:
    assert width_of(words, cols, declared) == bits

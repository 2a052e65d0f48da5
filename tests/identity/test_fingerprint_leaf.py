"""Leaves: as defined by plain integers, equal for every cut, order and dtype, and other for every single change."""

from __future__ import annotations

import itertools
import struct

import pytest
import torch
from torch import Tensor

from quantaudit.hooks import leaf as leaf_module
from quantaudit.hooks.leaf import Leaf, leaf_of_bytes, leaf_of_values, value_lanes
from quantaudit.identity.fingerprint_compiled import choose_byte_sum, choose_value_sum

MASK = (1 << 64) - 1
SEEDS = {"row": (0x243F6A8885A308D3, 0x13198A2E03707344), "column": (0xA4093822299F31D0, 0x082EFA98EC4E6C89)}


def key(axis: str, lane: int, place: int) -> int:
    """Returns the key of a place by the definition of splitmix64."""
    x = (SEEDS[axis][lane] + place * 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return (x ^ x >> 31) | 1


def sum_words(words: list[list[int]]) -> Leaf:
    """Returns the leaf of rows of 32-bit words, one word after the other."""
    lanes = [0, 0]
    for (r, row), lane in itertools.product(enumerate(words), range(2)):
        for c, word in enumerate(row):
            turned = word if lane == 0 else (word << 16 | word >> 16) & 0xFFFFFFFF
            lanes[lane] += key("row", lane, r) * key("column", lane, c) * turned
    return Leaf(first=lanes[0] & MASK, second=lanes[1] & MASK)


def matrix(rows: int = 5, cols: int = 12) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(3))


def test_a_leaf_is_the_sum_of_its_definition() -> None:
    x = matrix()
    words = [[struct.unpack("<I", struct.pack("<f", v))[0] for v in row] for row in x.tolist()]
    assert leaf_of_values(x) == sum_words(words)
    raw = torch.arange(40, dtype=torch.uint8).view(4, 10) * 7
    padded = [bytes(row) + bytes(2) for row in raw.tolist()]
    assert leaf_of_bytes(raw) == sum_words([[*struct.unpack("<3I", row)] for row in padded])


def test_every_cut_of_rows_and_columns_adds_up() -> None:
    x = matrix(5, 12)
    whole = leaf_of_values(x)
    for rows, cols in itertools.product(range(1, 5), range(1, 12)):
        boxes = ((0, rows, 0, cols), (0, rows, cols, 12), (rows, 5, 0, cols), (rows, 5, cols, 12))
        parts = [leaf_of_values(x[t:b, left:r], first_row=t, first_col=left) for t, b, left, r in boxes]
        assert sum(parts[1:], parts[0]) == whole


def test_every_cut_of_experts_and_alternating_rows_adds_up() -> None:
    stack_EOI = torch.randn(4, 6, 8)
    whole = leaf_of_values(stack_EOI.flatten(0, 1))
    for order in itertools.permutations(range(4)):
        parts = [leaf_of_values(stack_EOI[e], first_row=6 * e) for e in order]
        assert sum(parts[1:], parts[0]) == whole
    rows = stack_EOI.flatten(0, 1)
    even, odd = (leaf_of_values(rows[i::2], first_row=i, row_step=2) for i in range(2))
    assert even + odd == whole


def test_every_cut_of_bytes_adds_up_inside_words_too() -> None:
    raw = torch.randint(0, 256, (3, 11), dtype=torch.uint8)
    whole = leaf_of_bytes(raw)
    for cut in range(1, 11):
        assert leaf_of_bytes(raw[:, :cut]) + leaf_of_bytes(raw[:, cut:], first_col=cut) == whole
    assert leaf_of_bytes(raw[:1]) + leaf_of_bytes(raw[1:], first_row=1) == whole


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(9, 40)
    whole = leaf_of_values(x)
    for piece in (1, 7, 40, 64, 1000):
        monkeypatch.setattr(leaf_module, "PIECE", piece)
        assert leaf_of_values(x) == whole


def test_equal_values_of_other_dtypes_zeros_and_nans_have_one_leaf() -> None:
    x = matrix().bfloat16()
    assert leaf_of_values(x) == leaf_of_values(x.float())
    nan_a, nan_b = (torch.tensor([[bits]], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, -1))
    assert leaf_of_values(nan_a) == leaf_of_values(nan_b)
    zero = torch.tensor([[0.0, 1.0]])
    assert leaf_of_values(zero) == leaf_of_values(torch.tensor([[-0.0, 1.0]]))
    infinity = torch.tensor([[float("inf")]])
    assert len({leaf_of_values(t) for t in (nan_a, infinity, -infinity, zero[:, :1])}) == 4


def test_every_single_bit_and_every_exchange_of_two_values_shows() -> None:
    x = matrix(2, 6)
    whole, words = leaf_of_values(x), x.view(torch.int32)
    for place, bit in itertools.product(range(12), range(31)):
        other = words.clone().view(-1)
        other[place] ^= 1 << bit
        assert leaf_of_values(other.view(2, 6).view(torch.float32)) != whole
    for i, j in itertools.combinations(range(12), 2):
        other = x.clone().view(-1)
        other[[i, j]] = other[[j, i]]
        assert leaf_of_values(other.view(2, 6)) != whole


@pytest.mark.parametrize("lane", ["first", "second"])
def test_structured_changes_show_in_each_lane(lane: str) -> None:
    x = torch.randn(8, 64).bfloat16().float()
    changes = [-x, 2 * x, x.flip(0), x.flip(1), x.roll(1, 1), x.T.reshape(8, 64), x * (torch.arange(64) % 2 * 2 - 1)]
    leaves = {getattr(leaf_of_values(t), lane) for t in [x, *changes]}
    assert len(leaves) == len(changes) + 1


def test_a_leaf_round_trips_and_lanes_add_like_leaves() -> None:
    x = matrix()
    assert Leaf.from_hex(leaf_of_values(x).hex) == leaf_of_values(x)
    top, bottom = value_lanes(x[:2]), value_lanes(x[2:], first_row=2)
    assert Leaf.from_lanes(top + bottom) == leaf_of_values(x)


def test_nothing_sums_to_nothing() -> None:
    assert leaf_of_values(torch.empty(0, 4)) == leaf_of_bytes(torch.empty(3, 0, dtype=torch.uint8)) == Leaf()


@pytest.mark.slow
def test_compiled_sums_have_the_bits_of_eager_ones() -> None:
    values, byte_sum = choose_value_sum(1, compile_after=0), choose_byte_sum(1, compile_after=0)
    for shape in ((3, 70), (129, 65), (1, 5000)):
        x = torch.randn(shape)
        x[0, :4] = torch.tensor([0.0, -0.0, float("nan"), -float("inf")])
        assert leaf_of_values(x, first_row=5, first_col=9, summer=values) == leaf_of_values(x, first_row=5, first_col=9)
        raw = torch.randint(0, 256, shape, dtype=torch.uint8)
        assert leaf_of_bytes(raw, first_col=3, summer=byte_sum) == leaf_of_bytes(raw, first_col=3)
    assert choose_value_sum(1).num_words == leaf_module.PIECE, "a little work stays eager"


@pytest.mark.gpu
def test_a_gpu_gives_the_same_leaf() -> None:
    x = torch.randn(300, 700)
    assert leaf_of_values(x.cuda()) == leaf_of_values(x)
    raw = torch.randint(0, 256, (30, 77), dtype=torch.uint8)
    assert leaf_of_bytes(raw.cuda(), first_col=3) == leaf_of_bytes(raw, first_col=3)

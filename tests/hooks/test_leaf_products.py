"""Products of doubles give the sums of integers, at their largest too; which of both is taken changes no leaf."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantaudit.hooks import leaf as leaf_module
from quantaudit.hooks.leaf import Leaf, leaf_of_bytes, leaf_of_values, make_keys, matrix_lanes
from quantaudit.hooks.leaf_products import MOST_ROWS, multiply_words

CPU = torch.device("cpu")


def sum_exactly(words_RC: Tensor, row_keys: Tensor, column_keys: Tensor) -> Tensor:
    """Returns both lanes by the definition, in int64 that wraps around."""
    word = words_RC.long() & 0xFFFFFFFF
    turned = ((word << 16) | (word >> 16)) & 0xFFFFFFFF
    pairs = zip(row_keys, column_keys, (word, turned), strict=True)
    return torch.stack([(rows[:, None] * cols * words).sum() for rows, cols, words in pairs])


def random_words(rows: int, cols: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(-(1 << 31), 1 << 31, (rows, cols), generator=generator).to(torch.int32)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 64), (1000, 33)])
def test_products_are_the_sums_of_integers(shape: tuple[int, int]) -> None:
    words, rows = random_words(*shape), make_keys("row", 5, shape[0], 3, CPU)
    columns = make_keys("column", 9, shape[1], 1, CPU)
    assert torch.equal(multiply_words(words, rows, columns, add_zero=False), sum_exactly(words, rows, columns))


@pytest.mark.parametrize("key", [-1, (1 << 63) - 1, -(1 << 63) + 1])
@pytest.mark.parametrize("word", [-1, 0x7FFFFFFF, -(1 << 31), 0xFFFF])
def test_the_largest_limbs_and_halves_stay_exact_over_most_rows(key: int, word: int) -> None:
    words = torch.full((MOST_ROWS, 2), word, dtype=torch.int32)
    rows, columns = (torch.full((2, n), key) for n in (MOST_ROWS, 2))
    assert torch.equal(multiply_words(words, rows, columns, add_zero=False), sum_exactly(words, rows, columns))


@pytest.mark.parametrize("special", [(), (0.0, -0.0), (float("inf"),), (float("nan"), -0.0), (3e38, 3e38)])
@pytest.mark.parametrize("shape", [(96, 20), (20, 96), (300, 270)])
def test_which_way_is_taken_changes_no_leaf(
    monkeypatch: pytest.MonkeyPatch, special: tuple[float, ...], shape: tuple[int, int]
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[3, : len(special)] = torch.tensor(special)
    if special and special[0] != special[0]:
        x.view(torch.int32)[4, :2] = torch.tensor([-1, 0x7FC00001])
    raw = x.view(torch.uint8)
    multiplied = leaf_of_values(x), leaf_of_bytes(raw)
    cut = leaf_of_values(x[:, :9]) + leaf_of_values(x[:, 9:], first_col=9)
    monkeypatch.setattr(leaf_module, "is_worth_multiplying", lambda words: False)
    assert (leaf_of_values(x), leaf_of_bytes(raw)) == multiplied and cut == multiplied[0]


def test_flushed_subnormal_numbers_change_no_leaf() -> None:
    x = torch.full((40, 8), 1e-40)
    whole = leaf_of_values(x)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        assert leaf_of_values(x) == whole != leaf_of_values(torch.zeros(40, 8))
    finally:
        torch.set_flush_denormal(False)


def test_transposed_matrices_have_the_leaves_of_their_copies() -> None:
    x = torch.randn(3, 8, 40, generator=torch.Generator().manual_seed(6))
    copies = [leaf_of_values(matrix.mT.contiguous()) for matrix in x]
    assert [leaf_of_values(matrix.mT) for matrix in x] == copies
    assert [Leaf.from_lanes(lanes) for lanes in matrix_lanes(x.mT, [0, 0, 0])] == copies


def test_more_rows_than_one_product_takes_change_no_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(100, 7, generator=torch.Generator().manual_seed(2))
    whole = leaf_of_values(x, first_row=3, row_step=2)
    monkeypatch.setattr(leaf_module, "MOST_ROWS", 9)
    assert leaf_of_values(x, first_row=3, row_step=2) == whole


@pytest.mark.parametrize("parts", [range(4), [1, 6, 3, 9], [5, 5, 2, 0]])
@pytest.mark.parametrize("special", [0.0, -0.0, float("nan"), float("inf")])
def test_matrices_have_together_the_leaves_that_they_have_alone(parts: list[int], special: float) -> None:
    stack = torch.randn(4, 6, 10, generator=torch.Generator().manual_seed(4)).bfloat16()
    stack[2, 3, 4] = special
    alone = [leaf_of_values(x, first_row=6 * part) for part, x in zip(parts, stack, strict=True)]
    assert [Leaf.from_lanes(lanes) for lanes in matrix_lanes(stack, parts)] == alone


def test_matrices_that_are_large_or_none_at_all_have_leaves_too() -> None:
    stack = torch.randn(2, 300, 200, generator=torch.Generator().manual_seed(5))
    alone = [leaf_of_values(x, first_row=300 * part) for part, x in enumerate(stack)]
    assert [Leaf.from_lanes(lanes) for lanes in matrix_lanes(stack, range(2))] == alone
    assert matrix_lanes(stack[:0], []).shape == (0, 2)

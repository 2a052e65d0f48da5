"""The domain holds every input once, and every group is dominated by its statistic."""

from __future__ import annotations

import pytest
import torch

from quantaudit.identity.domain import BF16_INPUT, ladder_block, ladder_blocks, listed_block
from quantaudit.identity.observe import lay_out, observe
from quantaudit.identity.sides import open_sides
from quantaudit.numerics import get_scheme


def test_a_ladder_holds_every_admissible_value_once() -> None:
    ranks_B = torch.arange(0, 128)
    block = ladder_block(ranks_B, BF16_INPUT)
    is_counted_BM = block.mark_counted()
    for row, rank in enumerate(ranks_B.tolist()):
        seen = (block.bits_BM[row][is_counted_BM[row]].to(torch.int64) & 0xFFFF).tolist()
        assert sorted(seen) == [*range(rank + 1), *(0x8000 + r for r in range(rank + 1))]
        assert len(seen) == block.num_counted_B[row]


def test_blocks_hold_every_statistic_once_and_count_all_pairs() -> None:
    ranks, num_pairs = [], 0
    for block in ladder_blocks(BF16_INPUT):
        ranks += block.ranks_B.tolist()
        num_pairs += sum(block.num_counted_B)
    assert sorted(ranks) == list(range(32_640))
    assert num_pairs == 1_065_402_240


def test_blocks_begin_at_one() -> None:
    first = next(ladder_blocks(BF16_INPUT))
    assert float(first.statistics_B[0]) == 1.0


def test_a_listed_block_counts_repeats_once() -> None:
    block = listed_block(torch.tensor([5]), torch.tensor([[2, 2, -1, 9, 7, 5, -6]]), BF16_INPUT)
    assert block.values_BM[0][block.mark_counted()[0]].view(torch.int16).tolist() == [-32763, -32768, 2, 5]
    assert block.num_counted_B == [4]


@pytest.mark.parametrize("name", ["mxfp4-even", "int4-g128-div7", "nf4-b64", "int8-channel", "fp8-block128"])
@pytest.mark.parametrize("is_first", [True, False])
def test_every_group_is_dominated_by_its_statistic(name: str, is_first: bool) -> None:
    block = ladder_block(torch.arange(300, 304), BF16_INPUT)
    laid_out = lay_out(block, get_scheme(name), is_statistic_first=is_first)
    groups_GN = laid_out.groups_GN
    statistics_G = block.statistics_B.repeat_interleave(laid_out.groups_a_row)
    assert torch.equal(groups_GN.abs().amax(1), statistics_G)
    assert torch.equal(groups_GN[:, 0 if is_first else -1], statistics_G)


@pytest.mark.parametrize("name", ["mxfp4-even", "nf4-b64", "int8-channel", "fp8-block128", "fp8-tensor"])
@pytest.mark.parametrize("is_first", [True, False])
def test_results_come_back_in_the_order_of_the_values(name: str, is_first: bool) -> None:
    reference, run = open_sides(name, f"eager:{name}")
    block = ladder_block(torch.arange(0x3F80, 0x3F86), BF16_INPUT)
    laid_out = lay_out(block, run.scheme, is_statistic_first=is_first)
    a = observe(reference, block, None, torch.bfloat16)
    b = observe(run, block, laid_out, torch.bfloat16)
    assert torch.equal(a.values_BM, b.values_BM)

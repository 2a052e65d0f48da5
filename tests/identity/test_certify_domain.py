"""The domain holds every input once, and every group is dominated by its statistic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import is_same
from quantaudit.identity.domain import BF16_INPUT, ladder_block, ladder_blocks, listed_block
from quantaudit.identity.laying import ladder_multiple, lay_out, take_out
from quantaudit.identity.observe import is_signed, observe, observe_in_place
from quantaudit.identity.observe_both import observe_both
from quantaudit.identity.sides import Produced, Side, open_sides
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


@pytest.mark.parametrize("name", ["mxfp4-even", "nf4-b64", "int4-g128-div7", "gguf-q4_0"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("low", [0, 5, 0x3F80, 0x7F00])
def test_a_ladder_lies_in_groups_as_its_values_do(name: str, is_first: bool, low: int) -> None:
    scheme = get_scheme(name)
    size = group_size(scheme.granularity)
    assert size is not None
    block = ladder_block(torch.arange(low, low + 40), BF16_INPUT, is_negative=low == 5, multiple=size - 1)
    laid_out = lay_out(block, scheme, is_statistic_first=is_first)
    rows_BRN = block.values_BM.view(len(block.ranks_B), -1, size - 1)
    own_BR1 = block.statistics_B.view(-1, 1, 1).expand(*rows_BRN.shape[:2], 1)
    expected = torch.cat([own_BR1, rows_BRN] if is_first else [rows_BRN, own_BR1], dim=2)
    assert laid_out.fills
    assert torch.equal(laid_out.groups_GN.view(torch.int16), expected.flatten(0, 1).view(torch.int16))


@pytest.mark.parametrize("name", ["mxfp4-even", "nf4-b64", "int4-g128-div7", "gguf-q4_0"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("low", [0, 5, 0x3F80, 0x7F00])
def test_stairs_in_place_are_what_the_tensor_code_gives(name: str, is_first: bool, low: int) -> None:
    reference, run = open_sides(name, f"eager:{name}")
    block = ladder_block(
        torch.arange(low, low + 40),
        BF16_INPUT,
        is_negative=low == 5 and is_signed(run.scheme),
        multiple=ladder_multiple(run.scheme),
    )
    # A signed statistic is that of the first of +a and -a, so it must stand first.
    laid_out = lay_out(block, run.scheme, is_statistic_first=is_first or is_signed(run.scheme))
    a, b = (observe_in_place(side, block, laid_out, torch.bfloat16) for side in (reference, run))
    assert is_same(a, b)
    assert is_same(take_out(a, block, laid_out), observe(reference, block, None, torch.bfloat16))


@pytest.mark.parametrize("is_first", [True, False])
def test_one_result_that_differs_anywhere_is_seen(is_first: bool) -> None:
    block = ladder_block(torch.arange(0x3F80, 0x3F88), BF16_INPUT, multiple=31)
    reference = open_sides("mxfp4-even", "mxfp4-even")[0]
    laid_out = lay_out(block, reference.scheme, is_statistic_first=is_first)
    num_results = laid_out.groups_GN.numel()
    for at in torch.randint(0, num_results, (60,), generator=torch.Generator().manual_seed(3)).tolist():
        sides = (reference, planted_at(at))
        both = observe_both(sides, block, torch.bfloat16, is_statistic_first=is_first, with_codes=True)
        assert not both.is_same
        where = (both.a.values_BM != both.b.values_BM).nonzero().tolist()
        group, member = divmod(at, 32)
        row, in_row = divmod(group, laid_out.groups_a_row)
        sign, in_sign = divmod(in_row, laid_out.groups_a_row // 2)
        column = in_sign * 31 + member - int(is_first)
        is_statistic = member == (0 if is_first else 31)
        assert where == [[row, int(block.ranks_B[row]) if is_statistic else sign * block.ladder + column]]


def planted_at(at: int) -> Side:
    """Returns a side like the tensor code of mxfp4-even, but for one result of a block."""
    honest = open_sides("eager:mxfp4-even", "eager:mxfp4-even")[0]

    def run(weight: torch.Tensor, dtype: torch.dtype) -> Produced:
        produced = honest.run(weight, dtype)
        produced.values.view(-1)[at] += 32.0
        return produced

    return replace(honest, run=run)

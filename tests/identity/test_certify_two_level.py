"""Scales of two levels are factored: every scale, then every value under every scale; one planted triple is found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, Conclusion, Level
from quantaudit.identity import two_level
from quantaudit.identity.certify import certify
from quantaudit.identity.differences import Tallies
from quantaudit.identity.domain import BF16_INPUT, Block, InputNumbers
from quantaudit.identity.fast_reference import choose_scale, scale_of_matrix
from quantaudit.identity.findings import start_counting
from quantaudit.identity.sides import open_sides
from quantaudit.identity.two_level_domain import (
    equivariant_from,
    scale_blocks,
    scales_below,
    value_blocks,
    value_matrices,
    values_below,
)
from quantaudit.numerics import QuantizedTensor, dequantize, get_scheme, quantize
from quantaudit.numerics.scales import decode_stored

NVFP4 = get_scheme("nvfp4")
MINE = "tests.identity.test_certify_two_level"
MATRIX, SCALE, VALUE = 1.1171875, 320.0, -0.310546875  # numbers of bf16, and of E4M3
LOW = 19 << 7  # rank of 2^-108, where factors are subnormal


def planted(x: Tensor) -> QuantizedTensor:
    """Is nvfp4 but for one value under one scale in matrices of one absmax."""
    quantized = quantize(x, NVFP4)
    scales = decode_stored(quantized.scales.reshape(-1, 1), NVFP4.scale)
    is_hit = (x.abs().amax() == MATRIX) & (scales == SCALE) & (x.reshape(-1, 16) == VALUE)
    codes = torch.where(is_hit.reshape(x.shape), 0, quantized.codes)
    return QuantizedTensor(
        codes=codes,
        scales=quantized.scales,
        second_scales=quantized.second_scales,
        offset=None,
        shape=quantized.shape,
        dtype=quantized.dtype,
        scheme=NVFP4,
    )


def scaled_by_rows(x: Tensor) -> Tensor:
    """Takes every row for a matrix of its own."""
    return dequantize(quantize(x.unsqueeze(1), NVFP4)).squeeze(1)


def compare(other: str, blocks: Iterator[Block]) -> Tallies:
    """Compares nvfp4 with another side on blocks."""
    sides = open_sides("nvfp4", other)
    tallies = start_counting(sides)
    two_level._run(sides, blocks, "some", 1, tallies, torch.bfloat16, lambda stage, done, total: None)
    return tallies


def values_of(*ranks: int) -> Iterator[Block]:
    """Yields the ladders of matrices of some absmax."""
    for rank in ranks:
        yield from values_below(rank, NVFP4, BF16_INPUT)


def test_reference_and_tensor_code_agree_on_every_value_of_a_matrix() -> None:
    for rank in (BF16_INPUT.rank_of_one, LOW + 1):
        tallies = compare("eager:nvfp4", values_of(rank))
        assert sum(tally.num_pairs for tally in tallies.by_kind.values()) > 300_000
        assert all(
            (tally.scales, tally.codes, tally.values, tally.zero_signs) == (0, 0, 0, 0)
            for tally in tallies.by_kind.values()
        )


def test_reference_and_tensor_code_agree_on_scales() -> None:
    blocks = (scales_below(rank, NVFP4, BF16_INPUT, is_deep=False) for rank in range(5, BF16_INPUT.num_ranks, 977))
    tallies = compare("eager:nvfp4", blocks)
    assert tallies.of(BlockKind.ORDINARY).num_statistics > 20_000
    assert all((tally.scales, tally.codes) == (0, 0) for tally in tallies.by_kind.values())


def test_one_planted_triple_is_found_and_shown() -> None:
    rank = int(torch.tensor(MATRIX, dtype=torch.bfloat16).view(torch.int16))
    tally = compare(f"{MINE}:planted", values_of(rank)).of(BlockKind.ORDINARY)
    assert (tally.values, tally.codes, tally.scales) == (1, 1, 0)
    assert tally.first is not None and tally.first.matrix_absmax is not None
    assert tally.first.matrix_absmax.value == MATRIX
    assert tally.first.a_scale is not None
    assert (tally.first.a_scale.value, tally.first.value.value) == (SCALE, VALUE)
    assert tally.first.b_value.value == 0.0


def test_every_stored_scale_has_a_ladder() -> None:
    rank = BF16_INPUT.rank_of_one + 77
    absmax = BF16_INPUT.numbers(torch.arange(rank + 1))
    above = scale_of_matrix(rank, NVFP4, BF16_INPUT)
    expected = choose_scale(absmax, NVFP4, above)[0].unique()
    found = torch.cat([block.statistics_B for block in values_of(rank)])
    assert torch.equal(choose_scale(found, NVFP4, above)[0].sort().values, expected)
    assert float(decode_stored(expected[-1:], NVFP4.scale)) == 448.0


def test_a_group_beyond_the_dense_part_has_the_smallest_scale() -> None:
    block = next(iter(scale_blocks(NVFP4, BF16_INPUT, is_deep=False)))
    gaps = (block.ranks_B.diff() > 1).nonzero()
    last_sparse = block.ranks_B[: int(gaps[-1]) + 2]
    assert len(last_sparse) > 100
    scales = choose_scale(BF16_INPUT.numbers(last_sparse), NVFP4, scale_of_matrix(0x3F80, NVFP4, BF16_INPUT))[0]
    assert scales.unique().tolist() == [8]  # 2^-6


def test_a_deep_search_leaves_no_group_out() -> None:
    block = next(block for block in scale_blocks(NVFP4, BF16_INPUT, is_deep=True))
    assert torch.equal(block.ranks_B, torch.arange(BF16_INPUT.rank_of_one + 1))
    low = equivariant_from(NVFP4, BF16_INPUT)
    assert torch.equal(value_matrices(NVFP4, BF16_INPUT, is_deep=True)[: low - 1], torch.arange(1, low))


def test_multiplying_by_two_changes_nothing_where_it_is_said_to() -> None:
    low = equivariant_from(NVFP4, BF16_INPUT)
    matrix = torch.randn(16, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    peak = float(BF16_INPUT.numbers(torch.tensor(low)))
    matrix = (matrix / matrix.abs().max()).bfloat16()
    matrix[0, 0] = 1.0
    small, large = quantize((matrix * peak).bfloat16(), NVFP4), quantize(matrix, NVFP4)
    assert torch.equal(small.codes, large.codes) and torch.equal(small.scales, large.scales)
    assert torch.equal(dequantize(small).float() / peak, dequantize(large).float())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `certify` try three matrices of each step: the wiring is what is tested then."""

    def few(blocks: Iterator[Block]) -> Iterator[Block]:
        return islice(blocks, 3)

    def scales(*arguments: object, is_deep: bool) -> Iterator[Block]:
        return few(scale_blocks(NVFP4, BF16_INPUT, is_deep=is_deep))

    def values(*arguments: object, is_deep: bool) -> Iterator[Block]:
        return few(value_blocks(NVFP4, BF16_INPUT, is_deep=is_deep))

    monkeypatch.setattr(two_level, "scale_blocks", scales)
    monkeypatch.setattr(two_level, "value_blocks", values)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("is_deep", [False, True])
def test_two_levels_are_factored(is_deep: bool) -> None:
    (pair,) = certify("nvfp4", "eager:nvfp4", deep=is_deep).pairs
    assert (pair.level, pair.special_blocks, pair.identical) == (Level.FACTORED, Conclusion.IDENTICAL, True)
    assert pair.domain.deep is is_deep
    premises = {premise.name for premise in pair.assumptions if premise.side == "eager:nvfp4"}
    assert premises >= {"repeatable", "group-local", "neighbours", "position", "other values"}
    assert {s.kind for s in pair.sections} >= {BlockKind.INFINITE, BlockKind.NAN, BlockKind.ZERO}


@pytest.mark.usefixtures("short")
def test_a_side_that_does_not_see_the_matrix_fails_a_premise() -> None:
    (pair,) = certify("nvfp4", f"{MINE}:scaled_by_rows").pairs
    assert pair.special_blocks is Conclusion.DIFFERENT
    assert "group-local" in {premise.name for premise in pair.assumptions if not premise.holds}


def test_inputs_of_the_domain_are_dominated_by_their_matrix() -> None:
    inputs: InputNumbers = BF16_INPUT
    for block in islice(scale_blocks(NVFP4, inputs, is_deep=False), 9):
        assert block.matrix_rank is not None
        assert int(block.ranks_B.max()) == block.matrix_rank
        assert bool((block.values_BM.abs() <= block.statistics_B.unsqueeze(1)).all())

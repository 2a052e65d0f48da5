"""Linear scales of fp32 are proved by steps, powers of two and both ends; two levels are compared where they change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, Conclusion, Level
from quantaudit.identity import reach
from quantaudit.identity.certify import certify
from quantaudit.identity.differences import Tallies, add_block
from quantaudit.identity.domain import BF16_INPUT, FP32_INPUT, Block, InputNumbers
from quantaudit.identity.enumeration import enumerate_blocks, num_counted
from quantaudit.identity.equivariant import check_equivariant
from quantaudit.identity.fast_reference import choose_scale, scale_of_matrix
from quantaudit.identity.findings import UNPROVED, start_counting
from quantaudit.identity.laying import lay_out
from quantaudit.identity.observe import observe
from quantaudit.identity.ratio_domain import absmax_blocks
from quantaudit.identity.reach import Reach, enumerate_steps
from quantaudit.identity.run import Run
from quantaudit.identity.sides import open_sides
from quantaudit.identity.step_domain import can_step_through, num_steps, step_blocks, step_ranges
from quantaudit.identity.treads import boundary_blocks, boundary_statistics
from quantaudit.identity.two_level_steps import matrix_ranks, scale_edges
from quantaudit.numerics import fake_quantize, get_scheme

MINE = "tests.identity.test_certify_steps"
INT4 = get_scheme("int4-g32-div7")
ONE, BINADE = FP32_INPUT.rank_of_one, 1 << 23
RANK = ONE + 1_234_567
ABSMAX = float(FP32_INPUT.numbers(torch.tensor(RANK)))


def groups_of(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = x.reshape(-1, 32)
    return groups, groups.abs().amax(1, keepdim=True)


def one_statistic_off(x: Tensor) -> Tensor:
    """Is int4-g32-div7 but under one absmax, where it rounds towards zero."""
    groups, absmax = groups_of(x)
    scale = absmax / 7
    cut = torch.where(scale == 0, 0, (groups / scale).trunc()) * scale
    return torch.where(absmax == ABSMAX, cut, fake_quantize(groups, INT4)).reshape(x.shape)


def with_floor(x: Tensor) -> Tensor:
    """Is int4-g32-div7 with a floor below the absmax."""
    groups, absmax = groups_of(x)
    scale = absmax.clamp(min=2.0**-20) / 7
    return ((groups / scale).round().clamp(-8, 7) * scale).reshape(x.shape)


def one_binade_off(x: Tensor) -> Tensor:
    """Is int4-g32-div7 but where the absmax is in [32, 64)."""
    groups, absmax = groups_of(x)
    is_hit = (absmax >= 32) & (absmax < 64)
    return torch.where(is_hit, groups.trunc(), fake_quantize(groups, INT4)).reshape(x.shape)


def count(other: str, blocks: Iterator[Block]) -> int:
    """Returns how many values of an int4 side differ on blocks."""
    sides = open_sides("int4-g32-div7", other)
    tallies = start_counting(sides)
    enumerate_blocks(sides, blocks, 1, tallies, torch.float32, lambda stage, done, total: None)
    return sum(tally.values for tally in tallies.by_kind.values())


def test_every_statistic_of_one_binade_and_of_both_ends_is_tried() -> None:
    ends, middle, high = step_ranges(INT4, FP32_INPUT)
    assert middle == range(ONE, ONE + BINADE)
    # 7 times the smallest normal number, and a binade more: 2^-122.
    assert ends == range(5 * BINADE)
    assert high == range(254 * BINADE, 255 * BINADE)
    assert num_steps((INT4,), FP32_INPUT) == 7 * BINADE
    first = next(step_blocks((INT4,), FP32_INPUT))
    assert int(first.ranks_B[0]) == ONE


def test_a_floor_stands_for_all_below_it() -> None:
    ends, _, _ = step_ranges(get_scheme("int8-channel-div127.5-recip-native-scale-eps"), FP32_INPUT)
    assert 8 < len(ends) < 100


def test_only_one_linear_scale_of_the_range_of_fp32_can_be_stepped_through() -> None:
    assert can_step_through(INT4) and can_step_through(get_scheme("fp8-channel"))
    for name in ("nvfp4", "nf4-b64-double", "mxfp4-even", "gguf-q4_0"):  # two levels, nested, a power of two, fp16
        assert not can_step_through(get_scheme(name))


def test_a_fault_under_one_statistic_is_found_by_steps_and_not_by_the_boundary() -> None:
    ranks = boundary_statistics(INT4, FP32_INPUT)
    assert RANK not in ranks.tolist()
    assert count(f"{MINE}:one_statistic_off", boundary_blocks((INT4,), ranks[::9], FP32_INPUT)) == 0
    around = boundary_blocks((INT4,), torch.arange(RANK - 3, RANK + 4), FP32_INPUT)
    # The first value of each of the codes 1 to 7 and -1 to -7, and its negative where only one sign has a step there.
    assert count(f"{MINE}:one_statistic_off", around) >= 14


@pytest.mark.parametrize(
    ("other", "holds"),
    [("eager:int4-g32-div7", True), (f"{MINE}:with_floor", False), (f"{MINE}:one_binade_off", False)],
)
def test_powers_of_two_are_tried_in_every_binade(other: str, holds: bool) -> None:
    premise = check_equivariant(open_sides("int4-g32-div7", other)[1], torch.float32, torch.float32)
    assert premise.holds is holds
    assert premise.num_checked > 1_000_000
    if other.endswith("one_binade_off"):
        assert premise.found is not None and premise.found.endswith("times 2^5")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a deep search try two blocks of each stage: the wiring is what is tested then."""

    def steps(*arguments: object, **settings: object) -> Iterator[Block]:
        return islice(step_blocks((INT4,), FP32_INPUT), 2)

    def absmax(inputs: InputNumbers) -> Iterator[Block]:
        return islice(absmax_blocks(inputs, ONE), 2)

    monkeypatch.setattr(reach, "step_blocks", steps)
    monkeypatch.setattr(reach, "absmax_blocks", absmax)


@pytest.mark.usefixtures("short")
def test_a_deep_search_proves_a_linear_scale_and_says_what_is_sampled() -> None:
    (pair,) = certify("int4-g32-div7", "eager:int4-g32-div7", dtype="fp32", deep=True).pairs
    assert (pair.level, pair.special_blocks, pair.identical) == (Level.BOUNDARY, Conclusion.IDENTICAL, True)
    assert pair.domain.enumerated.startswith("the scale of every finite absmax; both sides of every step")
    assert any("multiplying by a power of two" in words for words in pair.domain.sampled)
    assert {"monotonic", "equivariant"} <= {premise.name for premise in pair.assumptions}
    assert pair.notes == ()


def search_deep(a: str, b: str) -> tuple[Reach, Tallies]:
    """Runs a deep search to its end over the numbers of bf16, which are few enough."""
    sides = open_sides(a, b)
    tallies = start_counting(sides)
    run = Run(
        sides=sides,
        dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
        is_deep=True,
        progress=lambda stage, done, total: None,
    )
    return enumerate_steps(run, tallies), tallies


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        ("int4-g32-div7", "eager:int4-g32-div7", Level.BOUNDARY),
        ("int8-channel", "eager:int8-channel", Level.BOUNDARY),
        ("mxfp4-even", "eager:mxfp4-even", Level.FACTORED),
    ],
)
def test_a_deep_search_of_all_numbers_finds_nothing_between_equals(a: str, b: str, level: Level) -> None:
    found, tallies = search_deep(a, b)
    assert (found.level, found.is_deeper) == (level, True)
    assert found.enumerated.startswith("the scale of every finite absmax")
    assert sum(tally.num_statistics for tally in tallies.by_kind.values()) > BF16_INPUT.num_ranks
    assert all((t.scales, t.codes, t.values, t.zero_signs) == (0, 0, 0, 0) for t in tallies.by_kind.values())


def test_a_deep_search_of_all_numbers_finds_every_absmax_with_another_scale() -> None:
    _, tallies = search_deep("mxfp4-floor", "eager:mxfp4-even")
    absmax = BF16_INPUT.numbers(torch.arange(BF16_INPUT.num_ranks))
    left, right = (choose_scale(absmax, get_scheme(name))[0] for name in ("mxfp4-floor", "mxfp4-even"))
    assert sum(tally.scales for tally in tallies.by_kind.values()) >= int((left != right).sum()) > 0


@pytest.mark.usefixtures("short")
def test_without_powers_of_two_a_deep_search_proves_nothing() -> None:
    (pair,) = certify("int4-g32-div7", f"{MINE}:one_binade_off", dtype="fp32", deep=True).pairs
    assert not pair.identical
    assert "equivariant" in {premise.name for premise in pair.assumptions if not premise.holds}


def test_equal_ordinary_blocks_are_not_called_proved_where_statistics_are_sampled() -> None:
    (pair,) = certify("nf4-b64", f"{MINE}:nf4_without_nan", dtype="fp32").pairs
    assert pair.special_blocks is Conclusion.EXCEPT_SPECIAL
    assert UNPROVED in pair.notes


def nf4_without_nan(x: Tensor) -> Tensor:
    """Is nf4-b64, and gives zero where that gives NaN."""
    return fake_quantize(x, get_scheme("nf4-b64")).nan_to_num(0.0)


def test_blocks_of_one_kind_are_counted_as_those_of_several() -> None:
    sides = open_sides("int4-g32-div7", "eager:int4-g32-div7")
    quick, slow = start_counting(sides), start_counting(sides)
    for first in (0, 3 * BINADE - 5, ONE):  # zero and subnormal ones, across a border, ordinary ones
        for block in boundary_blocks((INT4,), torch.arange(first, first + 9), FP32_INPUT):
            a, b = (observe(s, block, lay_out(block, INT4, is_statistic_first=True), torch.float32) for s in sides)
            add_block(slow, block, a, b)
            assert num_counted(block) == sum(block.num_counted_B)
            enumerate_blocks(sides, [block], 1, quick, torch.float32, lambda stage, done, total: None)
    assert quick == slow
    assert set(quick.by_kind) >= {BlockKind.ZERO, BlockKind.SUBNORMAL, BlockKind.ORDINARY}


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-divide"])
@pytest.mark.parametrize("rank", [BF16_INPUT.rank_of_one + 77, 19 << 7])
def test_both_sides_of_every_step_of_a_group_scale_are_found(name: str, rank: int) -> None:
    scheme = get_scheme(name)
    above = scale_of_matrix(rank, scheme, BF16_INPUT)
    stored = choose_scale(BF16_INPUT.numbers(torch.arange(rank + 1)), scheme, above)[0].to(torch.int64)
    steps = (stored.diff() != 0).nonzero().flatten()
    assert set(scale_edges(rank, scheme, BF16_INPUT).tolist()) >= {0, rank, *steps.tolist(), *(steps + 1).tolist()}


def test_matrices_of_every_binade_are_tried() -> None:
    ranks = matrix_ranks(FP32_INPUT)
    assert set((ranks >> 23).tolist()) == set(range(255))
    assert int(((ranks >> 23) == 127).sum()) > 64


def test_two_levels_of_fp32_are_compared_where_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantaudit.identity.two_level_steps.matrix_ranks", few_matrices)
    monkeypatch.setattr("quantaudit.identity.two_level.matrix_ranks", few_matrices)
    (pair,) = certify("nvfp4", "eager:nvfp4-divide", dtype="fp32").pairs
    assert (pair.level, pair.special_blocks) == (Level.BOUNDARY, Conclusion.DIFFERENT)
    assert pair.counterexample is not None and pair.counterexample.matrix_absmax is not None
    (same,) = certify("nvfp4", "eager:nvfp4", dtype="fp32").pairs
    assert (same.special_blocks, same.differing.scales, same.differing.codes) == (Conclusion.NOT_PROVED, 0, 0)
    assert same.num_pairs > 10 * 126 * 2 * 16  # both sides of every step of the scale, with more than 16 values each


def few_matrices(inputs: InputNumbers) -> Tensor:
    return matrix_ranks(inputs)[:10]


def test_a_scale_that_experts_share_fails_a_premise() -> None:
    pytest.importorskip("torchao")
    (pair,) = certify("fp8-tensor-native-scale", "torchao:fp8-tensor", dtype="fp32").pairs
    failed = {premise.name: premise.found for premise in pair.assumptions if not premise.holds}
    assert failed == {"experts": "expert 2 of 4 does not"}

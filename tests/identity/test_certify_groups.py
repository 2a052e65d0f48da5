"""What enumerating full groups does not show: partial groups, +a beside -a, codes below double-quantized scales."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, BlockSection, Conclusion, Level
from quantaudit.core.scheme import LinearScale, Scheme, StatisticTie
from quantaudit.identity import double_quantized, levels
from quantaudit.identity.certify import certify
from quantaudit.identity.domain import BF16_INPUT, FP32_INPUT, Block, InputNumbers, ladder_blocks
from quantaudit.identity.enumeration import enumerate_blocks
from quantaudit.identity.findings import start_counting
from quantaudit.identity.opposed_groups import Takes, compare_opposed, find_what_it_takes
from quantaudit.identity.partial_groups import compare_partial, has_partial_groups
from quantaudit.identity.ratio_domain import absmax_blocks, largest_of_scale_one, num_ratios, ratio_blocks
from quantaudit.identity.sides import open_scheme, open_sides
from quantaudit.numerics import QuantizedTensor, fake_quantize, get_scheme, quantize, scheme_names

MINE = "tests.identity.test_certify_groups"
Q4_0 = get_scheme("gguf-q4_0")


def of_last(scheme: Scheme) -> Scheme:
    """Returns a scheme that takes the last of +a and -a."""
    assert isinstance(scheme.scale, LinearScale)
    return scheme.model_copy(update={"scale": scheme.scale.model_copy(update={"statistic_tie": StatisticTie.LAST})})


def q4_last(x: Tensor) -> QuantizedTensor:
    """Is gguf-q4_0 but for groups with +a and -a."""
    return quantize(x, of_last(Q4_0))


def q4_positive(x: Tensor) -> Tensor:
    """Takes +a where a group has both."""
    groups = x.reshape(-1, 32)
    peak = groups.abs().amax(1, keepdim=True)
    has_both = (groups == peak).any(1, keepdim=True) & (groups == -peak).any(1, keepdim=True)
    order = torch.where(groups == peak, 0, 1).argsort(dim=1, stable=True)
    moved = fake_quantize(groups.gather(1, order), Q4_0)
    return torch.where(has_both, torch.empty_like(moved).scatter(1, order, moved), fake_quantize(groups, Q4_0)).view(
        x.shape
    )


def fp8_whole_blocks(x: Tensor) -> Tensor:
    """Refuses what 128 does not divide."""
    if x.shape[0] % 128 or x.shape[1] % 128:
        raise ValueError("no partial blocks")
    return fake_quantize(x, get_scheme("fp8-block128"))


def fp8_drops_edges(x: Tensor) -> Tensor:
    """Is fp8-block128, and leaves partial blocks at the right edge as they are."""
    out = fake_quantize(x, get_scheme("fp8-block128")).clone()
    whole = x.shape[1] // 128 * 128
    out[:, whole:] = x[:, whole:]
    return out


def one_code_off(x: Tensor) -> QuantizedTensor:
    """Is nf4-b64-double but for one value in blocks of one absmax."""
    quantized = quantize(x, get_scheme("nf4-b64-double"))
    blocks = x.reshape(-1, 64)
    is_hit = ((blocks.abs().amax(1, keepdim=True) == 1.5) & (blocks == -0.75)).reshape(x.shape)
    return QuantizedTensor(
        codes=torch.where(is_hit, 0, quantized.codes),
        scales=quantized.scales,
        second_scales=quantized.second_scales,
        offset=quantized.offset,
        shape=quantized.shape,
        dtype=quantized.dtype,
        scheme=quantized.scheme,
    )


def partial(a: str, b: str) -> tuple[BlockSection, list[str]]:
    return compare_partial(open_sides(a, b), torch.bfloat16, torch.bfloat16, with_codes=True)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `certify` try two blocks only: the wiring is what is tested then."""

    def few(inputs: InputNumbers, *, is_negative: bool = False, multiple: int) -> Iterator[Block]:
        return islice(ladder_blocks(inputs, is_negative=is_negative, multiple=multiple), 2)

    monkeypatch.setattr(levels, "ladder_blocks", few)
    monkeypatch.setattr(double_quantized, "ladder_blocks", few)


@pytest.mark.parametrize("name", ["fp8-block128", "fp8-block128-ue8m0", "nf4-b64"])
def test_partial_groups_of_one_rule_are_equal(name: str) -> None:
    section, notes = partial(name, f"eager:{name}")
    assert section.num_pairs > 100
    assert set(section.differing.model_dump().values()) == {0}
    assert notes == []


def test_partial_groups_that_are_left_alone_differ() -> None:
    section, _ = partial("fp8-block128", f"{MINE}:fp8_drops_edges")
    assert section.kind is BlockKind.PARTIAL
    assert 0 < section.differing.values < section.num_pairs
    assert section.counterexample is not None


def test_refusing_partial_groups_is_a_difference_and_is_said() -> None:
    section, notes = partial("fp8-block128", f"{MINE}:fp8_whole_blocks")
    assert section.differing.values == section.num_pairs > 0
    assert len(notes) == 1 and "refuses 15 matrices" in notes[0]


@pytest.mark.usefixtures("short")
def test_a_departure_in_partial_groups_only_has_its_own_section() -> None:
    (pair,) = certify("fp8-block128", f"{MINE}:fp8_drops_edges").pairs
    assert pair.special_blocks is Conclusion.EXCEPT_SPECIAL
    assert [s.kind for s in pair.sections if s.differing.values] == [BlockKind.PARTIAL]
    assert pair.rule is not None and pair.rule.field == "special blocks: partial"


def test_only_blocks_can_be_partial() -> None:
    grains = {name: has_partial_groups(get_scheme(name).granularity) for name in scheme_names()}
    assert grains["fp8-block128"] and grains["nf4-b64"]
    assert not grains["mxfp4-even"] and not grains["int8-channel"]


@pytest.mark.parametrize(
    ("function", "takes"),
    [("gguf-q4_0", Takes.FIRST), ("q4_last", Takes.LAST), ("q4_positive", Takes.POSITIVE)],
)
def test_which_of_two_opposed_values_decides_is_found(function: str, takes: Takes) -> None:
    name = function if function == "gguf-q4_0" else f"{MINE}:{function}"
    side = open_sides("gguf-q4_0", name)[1]
    assert find_what_it_takes(side, Q4_0, BF16_INPUT, torch.bfloat16) is takes


def test_the_sign_of_an_absmax_does_not_matter() -> None:
    side = open_scheme(get_scheme("mxfp4-even"))
    assert find_what_it_takes(side, side.scheme, BF16_INPUT, torch.bfloat16) is Takes.EITHER


def test_opposed_values_are_tried_for_every_magnitude_and_order() -> None:
    tallies = start_counting(open_sides("gguf-q4_0", f"{MINE}:q4_last"))
    total = compare_opposed(open_sides("gguf-q4_0", f"{MINE}:q4_last"), BF16_INPUT, tallies, torch.bfloat16)
    assert total == 32 * (2 * 32_639 + 2 * 4 * 496)
    # All but those whose scale is zero in fp16 differ.
    scales = (BF16_INPUT.numbers(torch.arange(1, BF16_INPUT.num_ranks)).float() / 8).half()
    counted = sum(tally.scales for tally in tallies.by_kind.values())
    assert counted == 2 * int((scales != 0).sum()) + 2 * 4 * 496
    same = start_counting(open_sides("gguf-q4_0", "eager:gguf-q4_0"))
    compare_opposed(open_sides("gguf-q4_0", "eager:gguf-q4_0"), BF16_INPUT, same, torch.bfloat16)
    assert sum(tally.values + tally.codes + tally.scales for tally in same.by_kind.values()) == 0


@pytest.mark.usefixtures("short")
def test_the_order_is_named_where_nothing_else_differs() -> None:
    (pair,) = certify("gguf-q4_0", f"{MINE}:q4_last").pairs
    assert pair.special_blocks is Conclusion.DIFFERENT
    assert pair.rule is not None
    assert (pair.rule.field, pair.rule.a_value, pair.rule.b_value) == ("scale.statistic_tie", "first", "last")


@pytest.mark.usefixtures("short")
def test_codes_below_double_quantized_scales_are_enumerated() -> None:
    (pair,) = certify("nf4-b64-double", "eager:nf4-b64-double").pairs
    assert (pair.level, pair.special_blocks) == (Level.CONDITIONAL, Conclusion.NOT_PROVED)
    assert pair.differing.codes == 0
    assert pair.num_pairs > 3_000_000


@pytest.mark.usefixtures("short")
def test_one_code_below_a_double_quantized_scale_is_found() -> None:
    (pair,) = certify("nf4-b64-double", f"{MINE}:one_code_off").pairs
    assert pair.differing.codes == 1
    assert pair.counterexample is not None
    assert (pair.counterexample.statistic.value, pair.counterexample.value.value) == (1.5, -0.75)


def tally_blocks(a: str, b: str, blocks: list[Block]) -> tuple[int, int]:
    """Returns how many inputs were compared, and how many differ."""
    sides = open_sides(a, b)
    tallies = start_counting(sides)
    enumerate_blocks(sides, blocks, 1, tallies, torch.float32, lambda stage, done, total: None)
    found = tallies.by_kind.values()
    return sum(t.num_pairs for t in found), sum(t.values + t.codes + t.scales for t in found)


def test_a_deep_search_of_fp32_holds_every_absmax_and_every_ratio() -> None:
    first = next(absmax_blocks(FP32_INPUT))
    assert torch.equal(first.ranks_B, torch.arange(1 << 15))
    scheme = get_scheme("mxfp4-even")
    peak = FP32_INPUT.numbers(torch.tensor([largest_of_scale_one(scheme, FP32_INPUT)]))
    assert float(peak) == 7.0 - 2.0**-21  # 1.75 * 4 is the first that gets the scale 2
    blocks = list(islice(ratio_blocks(scheme, FP32_INPUT), 2))
    assert sum(sum(block.num_counted_B) for block in blocks) == 2 << 20
    assert num_ratios(scheme, FP32_INPUT) == 2 * (largest_of_scale_one(scheme, FP32_INPUT) + 1)


def test_a_deep_search_of_fp32_finds_what_other_rules_change() -> None:
    scheme = get_scheme("mxfp4-even")
    threshold, tie = (int(torch.tensor(x).view(torch.int32)) for x in (7.0, 1.25))
    near_seven = next(absmax_blocks(FP32_INPUT, threshold - 7))
    near_tie = next(ratio_blocks(scheme, FP32_INPUT, tie - 5))
    count, differing = tally_blocks("mxfp4-even", "eager:mxfp4-even", [near_seven, near_tie])
    assert (count, differing) == ((1 << 15) + (1 << 20), 0)
    assert tally_blocks("mxfp4-even", "eager:mxfp4-even-away", [near_tie])[1] == 2 * 2  # code and value, both signs
    # All from 7 on get another scale, and so does what they become.
    assert tally_blocks("mxfp4-even", "eager:mxfp4-floor", [near_seven])[1] >= 3 * ((1 << 15) - 7)

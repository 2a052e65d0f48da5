"""Group maxima exclude scale rules for certain, and weigh those that they leave."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantaudit.core.format import E2M1
from quantaudit.core.identification import RuleEvidence, Standing
from quantaudit.identity.histogram import judge_codes, read_all_codes, read_codes, weigh
from quantaudit.identity.search_sample import served_codes
from quantaudit.numerics import get_scheme, quantize


def gaussian(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    scale = torch.randn(512, 1, generator=generator).exp()
    return (torch.randn(512, 512, generator=generator) * scale).to(dtype)


def rules_of(histogram: dict[int, int]) -> dict[str, RuleEvidence]:
    return {rule.rule: rule for rule in weigh(histogram, E2M1, is_power=True)}


@pytest.mark.parametrize(
    ("code", "possible"),
    [
        (3, set()),
        (4, {"ceil"}),
        (5, {"rceil", "ceil", "even with ties toward zero"}),
        (6, {"floor", "even", "rceil", "ceil", "nearest", "even with ties toward zero"}),
        (7, {"floor", "even", "rceil", "nearest", "even with ties toward zero", "exponent of absmax / 6"}),
    ],
)
def test_a_maximum_leaves_these_rules(code: int, possible: set[str]) -> None:
    rules = rules_of({code: 1})
    assert {name for name, rule in rules.items() if rule.is_possible} == possible
    assert all((rule.log10_odds is None) is not rule.is_possible for rule in rules.values())


# Intervals of the ratio that give each code, for absmax with a log-uniform significand.
INTERVALS: dict[str, dict[int, list[tuple[float, float]]]] = {
    "floor": {6: [(4, 5)], 7: [(5, 8)]},
    "even": {6: [(3.5, 5)], 7: [(5, 7)]},
    "rceil": {5: [(3, 3.5)], 6: [(3.5, 5)], 7: [(5, 6)]},
    "ceil": {4: [(2, 2.5)], 5: [(2.5, 3.5)], 6: [(3.5, 4)]},
}


@pytest.mark.parametrize("rule", INTERVALS)
def test_frequencies_are_lengths_on_a_logarithmic_scale(rule: str) -> None:
    expected = {code: sum(math.log2(b / a) for a, b in parts) for code, parts in INTERVALS[rule].items()}
    assert sum(expected.values()) == pytest.approx(1)
    counts = {code: round(share * 1_000_000) for code, share in expected.items()}
    # A border moves by half a step of bf16 at most, log2(1 + 1/256); of a code's two borders half of the sum counts.
    assert rules_of(counts)[rule].distance <= len(expected) * math.log2(1 + 1 / 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", ["floor", "even", "rceil"])
def test_the_rule_of_gaussian_weights_is_likely_and_not_proved(rule: str, dtype: torch.dtype) -> None:
    evidence = read_codes(served_codes(quantize(gaussian(dtype), get_scheme(f"mxfp4-{rule}"))))
    standing, name, sentence = judge_codes(evidence)
    assert (standing, name) == (Standing.LIKELY, rule)
    assert "--master" in sentence


def test_ceil_proves_itself() -> None:
    evidence = read_codes(served_codes(quantize(gaussian(), get_scheme("mxfp4-ceil"))))
    assert judge_codes(evidence)[:2] == (Standing.PROVED, "ceil")


def test_a_few_groups_decide_nothing() -> None:
    evidence = read_codes(served_codes(quantize(gaussian()[:1, :64], get_scheme("mxfp4-even"))))
    assert evidence.num_groups == 2
    assert judge_codes(evidence)[0] is Standing.NOT_CHECKED


def test_clipped_maxima_fit_no_rule() -> None:
    quantized = quantize(gaussian(), get_scheme("mxfp4-even"))
    quantized.codes.clamp_(max=3)
    standing, name, sentence = judge_codes(read_codes(served_codes(quantized)))
    assert (standing, name) == (Standing.UNKNOWN, "") and "no known scale rule" in sentence


def test_dropped_signs_of_zero_are_a_fact() -> None:
    quantized = quantize(gaussian(), get_scheme("mxfp4-floor"))
    assert read_codes(served_codes(quantized)).facts == ()
    quantized.codes[quantized.codes == 8] = 0
    assert "the sign of zero is dropped" in read_codes(served_codes(quantized)).facts[0]


def test_a_code_of_minus_eight_excludes_a_divisor_of_seven() -> None:
    evidence = read_codes(served_codes(quantize(gaussian(), get_scheme("int4-g32-div8"))))
    possible = {rule.rule for rule in evidence.rules if rule.is_possible}
    assert possible == {"absmax / 7.5 or absmax / 8"}
    evidence = read_codes(served_codes(quantize(gaussian(), get_scheme("gguf-q4_0"))))
    assert any("signed" in rule.rule and rule.is_possible for rule in evidence.rules)


def test_scales_that_were_rounded_to_bf16_are_a_fact() -> None:
    quantized = quantize(gaussian(), get_scheme("int4-g32-div8"))  # absmax / 8 of a bf16 number is one
    assert read_codes(served_codes(quantized)).facts[0].startswith("Every scale is a bf16 number")


def test_facts_of_several_matrices_hold_for_every_one_or_are_sums() -> None:
    signless, signed = (quantize(gaussian(), get_scheme("mxfp4-floor")) for _ in range(2))
    signless.codes[signless.codes == 8] = 0
    num_zeros = int(signless.codes.eq(0).sum())
    element, evidence = read_all_codes([served_codes(signless), served_codes(signless)])
    assert element == "e2m1" and evidence.facts[0].startswith(f"No code 8 (-0) beside {2 * num_zeros} codes 0")
    assert evidence.num_groups == 2 * read_codes(served_codes(signless)).num_groups
    assert read_all_codes([served_codes(signless), served_codes(signed)])[1].facts == ()


def test_scales_are_powers_of_two_only_where_all_experts_have_such() -> None:
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(64, 64, generator=generator)
    powers = served_codes(quantize(noise.sign(), get_scheme("int4-g32-div8")))  # absmax / 8 is a power of two
    others = served_codes(quantize(noise, get_scheme("int4-g32-div8")))
    assert read_codes(powers).facts == ("Every scale is a power of two in an fp32 tensor.",)
    for order in ([powers, others], [others, powers]):
        assert read_all_codes(order)[1].facts == ()

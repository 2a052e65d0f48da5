"""Tensor rounding against the exact ladder: all 65,536 bf16 numbers, and both sides of every fp32 step."""

from __future__ import annotations

import pytest
import torch

from quantaudit.core.format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP32,
    INT8,
    CodebookFormat,
    FloatFormat,
    code_values,
)
from quantaudit.core.scheme import CodeRange, Tie
from quantaudit.numerics.bits import decode_e8m0
from quantaudit.numerics.codebooks import BNB_FP4, DYNAMIC8, NF4
from quantaudit.numerics.exact import multiply
from quantaudit.numerics.ladder import ElementRule, round_to_code
from quantaudit.numerics.rounding import decode, encode
from quantaudit.numerics.steps import step_table, value_of_key
from tests.numerics.bits import all_bf16, assert_same_bits
from tests.numerics.rules import ALL_RULES, rule_id


@pytest.mark.parametrize("rule", [r for r in ALL_RULES if r.tie in (Tie.EVEN, Tie.LOWER)][::2], ids=rule_id)
def test_every_bf16_number_gets_the_code_of_the_scalar_reference(rule: ElementRule) -> None:
    ratios = all_bf16().float()
    assert encode(ratios, rule).tolist() == [round_to_code(v, rule) for v in ratios.tolist()]


@pytest.mark.parametrize("rule", ALL_RULES, ids=rule_id)
def test_every_bf16_number_gets_the_code_of_the_step_table(rule: ElementRule) -> None:
    table = step_table(rule, BF16)
    ratios = all_bf16().float()
    ratios = ratios[~ratios.isnan()]
    patterns = ratios.view(torch.int32)
    keys = torch.where(patterns >= 0, patterns, -1 - (patterns & 0x7FFFFFFF))
    expected = torch.tensor(table.codes)[torch.bucketize(keys, torch.tensor(table.keys), right=True)]
    assert torch.equal(encode(ratios, rule).int(), expected.int())


@pytest.mark.parametrize("rule", ALL_RULES, ids=rule_id)
def test_the_code_changes_at_the_fp32_steps_and_only_there(rule: ElementRule) -> None:
    table = step_table(rule)
    sides = torch.tensor([[value_of_key(k + d, FP32) for d in (-2, -1, 0, 1)] for k in table.keys])
    expected = torch.tensor([[table.code_of(v) for v in row] for row in sides.tolist()])
    assert torch.equal(encode(sides, rule).int(), expected.int())


@pytest.mark.parametrize("rule", ALL_RULES[::3], ids=rule_id)
def test_a_value_of_the_format_is_its_own_rounding(rule: ElementRule) -> None:
    if isinstance(rule.element, CodebookFormat | FloatFormat):
        values = torch.tensor(code_values(rule.element))
    else:
        assert rule.code_range is not None
        values = torch.arange(rule.code_range.low, rule.code_range.high + 1).float()
    values = values[values.isfinite()]
    assert_same_bits(decode(encode(values, rule), rule.element), values)


def test_empty_tensors_have_no_codes() -> None:
    assert encode(torch.empty(0, 4), ElementRule(E2M1, Tie.EVEN)).shape == (0, 4)
    assert encode(torch.empty(0), ElementRule(INT8, Tie.EVEN, CodeRange(low=-127, high=127))).shape == (0,)


@pytest.mark.parametrize("element", [E2M1, E2M3, E3M2, E4M3, E5M2], ids=lambda f: f.name)
def test_every_code_under_every_e8m0_scale_decodes_exactly(element: FloatFormat) -> None:
    codes = torch.arange(1 << element.bits, dtype=torch.uint8)
    scales = decode_e8m0(torch.arange(256, dtype=torch.uint8))
    products = decode(codes, element) * scales.unsqueeze(1)
    expected = [
        [multiply(element.value_of(c), s, FP32) for c in range(1 << element.bits)] for s in scales.double().tolist()
    ]
    assert_same_bits(products, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("element", [NF4, BNB_FP4, DYNAMIC8], ids=lambda f: f.name)
def test_codebooks_decode_to_their_table(element: CodebookFormat) -> None:
    codes = torch.arange(1 << element.bits, dtype=torch.uint8)
    assert_same_bits(decode(codes, element), torch.tensor(element.table))

"""Step tables hold exactly the numbers at which the exact rounding changes its code."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.core.format import BF16, E2M1, FP32, INT4
from quantaudit.core.scheme import CodeRange, Tie
from quantaudit.numerics.ladder import ElementRule, round_to_code
from quantaudit.numerics.steps import ordered_key, step_table, value_of_key
from tests.numerics.bits import all_bf16
from tests.numerics.rules import ALL_RULES, rule_id


def test_keys_count_every_bf16_number_in_order() -> None:
    numbers = all_bf16().float()
    numbers = numbers[~numbers.isnan()]
    keys = sorted((ordered_key(v, BF16), v) for v in numbers.tolist())
    assert [key for key, _ in keys] == list(range(-0x7F81, 0x7F81))
    assert all(value_of_key(key, BF16) == v for key, v in keys)
    assert value_of_key(-1, BF16) == 0.0 and math.copysign(1.0, value_of_key(-1, BF16)) == -1.0


def test_keys_of_fp32_are_bit_patterns() -> None:
    values = torch.randn(1000) * torch.exp2(torch.randint(-149, 127, (1000,)).float())
    patterns = values.view(torch.int32).tolist()
    for value, pattern in zip(values.tolist(), patterns, strict=True):
        assert ordered_key(value, FP32) == (pattern if pattern >= 0 else -1 - (pattern & 0x7FFFFFFF))


def test_the_steps_of_fp4_are_its_midpoints() -> None:
    def after(value: float) -> float:
        return value_of_key(ordered_key(value, FP32) + 1, FP32)

    # Of 0.25 .. 5 to even: 0.75, 1.75 and 3.5 go up, so their steps start at the midpoint, the others just after it.
    up = [after(0.25), 0.75, after(1.25), 1.75, after(2.5), 3.5, after(5.0)]
    assert step_table(ElementRule(E2M1, Tie.EVEN)).starts[-7:] == tuple(up)
    assert step_table(ElementRule(E2M1, Tie.AWAY)).starts[-7:] == (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    assert step_table(ElementRule(E2M1, Tie.EVEN)).codes == (15, 14, 13, 12, 11, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)


def test_biased_steps_start_below_the_tie() -> None:
    table = step_table(ElementRule(INT4, Tie.BIASED_UP, CodeRange(low=-8, high=7)))
    # The step to 2 starts where y + 8.5 rounds to 10: half a step of 2^-20 below 1.5, which ties to the even 10.
    assert table.starts[9] == 1.5 - 2.0**-21


@pytest.mark.parametrize("rule", ALL_RULES, ids=rule_id)
def test_both_sides_of_every_fp32_step_round_as_the_table_says(rule: ElementRule) -> None:
    table = step_table(rule)
    assert list(table.keys) == sorted(set(table.keys))
    for index, key in enumerate(table.keys):
        below, at = value_of_key(key - 1, FP32), value_of_key(key, FP32)
        assert (round_to_code(below, rule), round_to_code(at, rule)) == table.codes[index : index + 2]
        assert (table.code_of(below), table.code_of(at)) == table.codes[index : index + 2]


@pytest.mark.parametrize("rule", ALL_RULES[::6], ids=rule_id)
def test_the_bf16_table_gives_the_code_of_every_bf16_number(rule: ElementRule) -> None:
    table = step_table(rule, BF16)
    numbers = [v for v in all_bf16()[::5].float().tolist() if not math.isnan(v)]
    assert [table.code_of(v) for v in numbers] == [round_to_code(v, rule) for v in numbers]

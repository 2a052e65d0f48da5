"""A margin under three floors is never decided by sampling."""

from __future__ import annotations

import math

import pytest

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Decision, Outcome
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.decide import decide, decide_exact
from quantaudit.stats.floor import respect_floor
from quantaudit.stats.sample import gather


def decided(value: float) -> Decision:
    estimate = estimate_mean(gather([value] * 20, [f"c{i % 10}" for i in range(20)]))
    return decide(estimate, direction=Direction.WORSE, margin=0.75)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_margin_under_three_floors_is_undecided(value: float) -> None:
    held = respect_floor(decided(value), margin=0.75, floor=0.26)
    assert held.outcome is Outcome.UNDECIDED
    assert held.p_reject == 1.0
    assert "floor" in held.reason


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.25])
def test_margin_of_three_floors_or_more_stands(floor: float) -> None:
    assert respect_floor(decided(0.0), margin=0.75, floor=floor) == decided(0.0)


def test_exact_decisions_have_no_floor() -> None:
    assert respect_floor(decide_exact(is_equal=True), margin=0.75, floor=9.0).outcome is Outcome.PASS


@pytest.mark.parametrize("floor", [-0.1, math.nan, math.inf])
def test_floor_must_be_a_size(floor: float) -> None:
    with pytest.raises(InputError, match="floor"):
        respect_floor(decided(0.0), margin=0.75, floor=floor)

"""Numbers without a margin: axes that hold them, units that follow them, and the floor that mutes them."""

from __future__ import annotations

import math

import pytest

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.reporting.axis import damage_axis, linear_axis
from quantaudit.reporting.floor import is_within_floor
from quantaudit.reporting.quantity import unit_beside, write_bounds, write_quantity, write_size


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.9621, "96.2%"), (0.99987, "99.987%"), (0.00013, "0.013%"), (0.0, "0.0%"), (1.0, "100.0%"), (0.5, "50.0%")],
)
def test_shares_show_two_digits_of_their_distance_from_both_ends(value: float, shown: str) -> None:
    assert write_quantity(value, "share") == shown


def test_differences_of_shares_are_points() -> None:
    assert write_quantity(-0.0125, "share", is_difference=True) == "-1.2 pts"
    assert write_quantity(0.0125, "share of tokens", is_difference=True) == "+1.2 pts"
    assert write_bounds(Interval(lower=-0.001, upper=0.02, level=0.9), "share", is_difference=True) == "[-0.10, +2.0]"


def test_other_units_have_three_digits() -> None:
    assert write_quantity(0.012345, "nats") == "0.0123"
    assert write_quantity(-math.inf, "nats", is_difference=True) == "-inf"
    assert write_quantity(None, "nats") == write_bounds(None, "nats") == write_size(None, "nats") == "-"


def test_a_unit_stands_beside_its_numbers_only_if_they_do_not_show_it() -> None:
    assert [unit_beside(u) for u in ("share", "share of tokens", "nats", "")] == ["", "of tokens", "nats", ""]


def diagnostic(value: float | None, floor: float | None, better: bool | None, hi: float | None = None) -> Diagnostic:
    return Diagnostic(
        name="d",
        topic=Topic.TOKENS,
        title="D",
        unit="nats",
        larger_is_better=better,
        hi=hi,
        lo=None if hi is None or value is None else hi + (value if abs(value) < 0.1 else 0.0),
        value=value,
        floor=floor,
        num_items=1,
    )


@pytest.mark.parametrize(
    ("value", "floor", "better", "hi", "is_within"),
    [
        (0.001, 0.002, False, None, True),  # a distance: KL
        (0.003, 0.002, False, None, False),
        (-0.003, 0.002, None, None, False),  # neither way is better: nobody knows where nothing lies
        (0.9431, 0.9434, None, None, False),
        (1.0, 1.0, None, None, True),
        (0.9431, 0.9434, False, 0.5, True),  # hi has the metric alone, but this is no difference of it
        (0.96, 0.9998, True, None, False),  # an agreement falls from 1
        (0.9999, 0.9998, True, None, True),
        (-0.01, 0.0, True, 0.9, False),  # a difference of a metric that hi has alone
        (0.02, 0.001, True, 0.9, False),
        (0.0005, -0.001, True, 0.9, True),
        (0.0, 0.0, False, None, True),  # exactly nothing
        (0.5, None, False, None, False),  # no floor was measured
        (None, 0.1, False, None, False),
    ],
)
def test_the_floor_mutes_what_hi_shows_against_itself(
    value: float | None, floor: float | None, better: bool | None, hi: float | None, is_within: bool
) -> None:
    assert is_within_floor(diagnostic(value, floor, better, hi)) is is_within


@pytest.mark.parametrize(
    "values", [[0.0], [5.0], [-3.0, 7.0], [0.95, 0.999], [1e-9, 3e-9], [0.0046, 0.011], [1e7, 3e7]]
)
@pytest.mark.parametrize("has_zero", [False, True])
def test_a_linear_axis_holds_its_values_between_few_round_ticks(values: list[float], has_zero: bool) -> None:
    axis = linear_axis(values, has_zero=has_zero)
    assert all(axis.holds(v) for v in values) and (axis.holds(0.0) or not has_zero)
    assert 2 <= len(axis.ticks) <= 8
    assert [axis.place(axis.low), axis.place(axis.high)] == [0.0, 1.0]
    assert len({axis.write(tick) for tick in axis.ticks}) == len(axis.ticks)


def test_a_damage_axis_bends_only_where_it_must() -> None:
    assert damage_axis([0.1, 0.5, 2.0]).softness == 0.0
    axis = damage_axis([0.0004, 0.002, 0.014, 0.31, 7.9])
    assert axis.softness > 0 and axis.low == 0.0 and axis.holds(7.9)
    places = [axis.place(v) for v in (0.0004, 0.002, 0.014, 0.31, 7.9)]
    assert all(b - a > 0.05 for a, b in zip(places, places[1:], strict=False))


def test_a_damage_axis_of_both_signs_has_zero_inside() -> None:
    axis = damage_axis([-0.004, 0.0, 0.6])
    assert axis.low < 0 < axis.high and 0.0 in axis.ticks
    assert 0 < axis.place(0.0) < 1


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [math.inf], [-2.0], [-1e-9, 5.0]])
def test_a_damage_axis_survives_any_values(values: list[float]) -> None:
    axis = damage_axis(values)
    assert axis.low < axis.high and axis.holds(0.0)

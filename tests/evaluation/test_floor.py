"""A floor is not zero because differences of both signs cancel."""

from __future__ import annotations

import numpy as np

from quantaudit.evaluation.floor import count_changed, measure_floor
from quantaudit.evaluation.slices import Slice, slices
from quantaudit.stats import estimate_mean, gather
from tests.evaluation.synthetic import PER_FAMILY, PROBES, at, clause, good_values, table_of


def part_of(name: str, family: str | None = None) -> Slice:
    """Returns a slice of a clause of the default contract."""
    return next(p for p in slices(clause(name), PROBES) if p.family == family)


def test_equal_runs_have_a_floor_of_exactly_nothing() -> None:
    good = good_values()
    again = table_of(good, good)
    assert measure_floor(clause("fidelity"), part_of("fidelity"), again, PROBES) == 0.0
    assert measure_floor(clause("contrast"), part_of("contrast"), again, PROBES) == 0.0
    assert count_changed(again) == (0, len(PROBES.probes))


def test_flips_in_both_directions_do_not_cancel() -> None:
    hi = good_values()
    hi["accuracy"][at("sums")[:3]] = 0.0
    again = hi | {"accuracy": hi["accuracy"].copy()}
    again["accuracy"][at("sums")[:3]] = 1.0
    again["accuracy"][at("sums")[3:6]] = 0.0
    assert measure_floor(clause("task"), part_of("task", "sums"), table_of(hi, again), PROBES) == 6 / PER_FAMILY


def test_differences_of_both_signs_leave_the_width_of_their_mean() -> None:
    hi = good_values()
    swing = np.where(np.arange(PER_FAMILY) % 2 == 0, 0.5, -0.5)
    again = hi | {"answer-margin": hi["answer-margin"].copy()}
    again["answer-margin"][at("sums")] += swing
    floor = measure_floor(clause("margin"), part_of("margin", "sums"), table_of(hi, again), PROBES)
    # The differences as they are: floating point leaves no exact halves.
    position = at("sums")
    moved = hi["answer-margin"][position] - again["answer-margin"][position]
    interval = estimate_mean(gather(moved, [f"sums/c{i % 40}" for i in range(PER_FAMILY)])).interval
    assert floor == max(-interval.lower, interval.upper)
    # No less than t(39) at .95 times the standard error of 40 cluster means of one half, sqrt(40/39) * .5 / sqrt(40).
    assert floor is not None and floor >= 1.6848 * 0.5 / np.sqrt(39)


def test_a_floor_that_is_not_finite_is_none() -> None:
    hi = good_values()
    again = hi | {"nll": hi["nll"].copy()}
    again["nll"][0] = np.inf
    assert measure_floor(clause("fidelity"), part_of("fidelity"), table_of(hi, again), PROBES) is None


def test_changed_probes_are_counted_once_over_all_observers() -> None:
    hi = good_values()
    again = hi | {"nll": hi["nll"].copy(), "answer-margin": hi["answer-margin"].copy()}
    again["nll"][[1, 2]] += 1e-12
    again["answer-margin"][[2, 3]] += 1e-12
    assert count_changed(table_of(hi, again)) == (3, len(PROBES.probes))

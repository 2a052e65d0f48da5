"""Decisions and estimates survive JSON, infinities included, and refuse what cannot be."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from quantaudit.core.decision import Decision, Estimate, Interval, Method, Outcome


def make_estimate(**changes: object) -> Estimate:
    """Builds an estimate that cannot decide: the one with infinities."""
    fields: dict[str, object] = {
        "value": 0.25,
        "standard_error": math.inf,
        "degrees_of_freedom": 0.0,
        "interval": Interval(lower=-math.inf, upper=math.inf, level=0.9),
        "num_probes": 8,
        "num_clusters": 4,
        "design_effect": 1.0,
        "intraclass_correlation": 0.0,
        "method": Method.TOO_FEW_CLUSTERS,
    }
    return Estimate.model_validate(fields | changes)


def test_infinite_bounds_round_trip_through_strict_json() -> None:
    estimate = make_estimate()
    text = estimate.to_json()
    assert '"lower": "-Infinity"' in text
    assert Estimate.from_json(text) == estimate


def test_decision_round_trips_and_keeps_its_outcome_by_name() -> None:
    decision = Decision(
        outcome=Outcome.UNDECIDED,
        p_admit=0.1,
        p_reject=0.9,
        num_that_would_decide=300,
        minimum_detectable_effect=math.inf,
        reason="Too wide.",
    )
    assert '"undecided"' in decision.to_json()
    assert Decision.from_json(decision.to_json()) == decision


def test_sampled_is_the_default_and_exact_must_be_said() -> None:
    fields = {"p_admit": 0.0, "p_reject": 1.0, "num_that_would_decide": None, "minimum_detectable_effect": 0.0}
    decision = Decision.model_validate(fields | {"outcome": Outcome.PASS, "reason": "Equal."})
    assert not decision.is_exact
    assert not decision.is_displacement


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 0.0), (math.nan, 0.0), (0.0, math.nan)])
def test_interval_bounds_must_be_in_order(lower: float, upper: float) -> None:
    with pytest.raises(ValidationError):
        Interval(lower=lower, upper=upper, level=0.9)


def test_a_point_is_an_interval() -> None:
    assert Interval(lower=0.5, upper=0.5, level=0.9).upper == 0.5


@pytest.mark.parametrize(
    "change", [{"value": math.nan}, {"standard_error": -1.0}, {"num_probes": 0}, {"discordant_rate": 1.5}, {"extra": 1}]
)
def test_estimate_refuses_impossible_fields(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_estimate(**change)


def test_effective_number_of_probes_is_divided_by_the_design_effect() -> None:
    assert make_estimate(num_probes=300, design_effect=2.0).effective_num_probes == 150.0
    assert make_estimate(num_probes=300, design_effect=0.0).effective_num_probes == 300.0

"""Every clause ends as PASS, FAIL or UNDECIDED, for the reason it states."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.decide import decide, decide_exact, withhold
from quantaudit.stats.proportion import estimate_flips
from quantaudit.stats.sample import gather

CLUSTERS = [f"c{i // 10:02d}" for i in range(300)]


def mean_of(centre: float, spread: float) -> Estimate:
    """Builds an estimate of exactly this mean: a symmetric pattern, the same in every cluster but for a shift."""
    pattern = np.tile(np.linspace(-1, 1, 10), 30) + np.repeat(np.tile([1.0, -1.0], 15), 10)
    return estimate_mean(gather(centre + spread * (pattern - pattern.mean()), CLUSTERS))


@pytest.mark.parametrize(
    ("centre", "spread", "worse", "both"),
    [
        (0.0, 0.01, Outcome.PASS, Outcome.PASS),
        (0.0, 1.0, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (0.019, 0.05, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (0.021, 0.05, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (0.1, 0.05, Outcome.FAIL, Outcome.FAIL),
        (-0.1, 0.05, Outcome.PASS, Outcome.FAIL),
        (-0.019, 0.05, Outcome.PASS, Outcome.UNDECIDED),
    ],
)
def test_outcome_follows_the_interval_and_the_margin(
    centre: float, spread: float, worse: Outcome, both: Outcome
) -> None:
    estimate = mean_of(centre, spread)
    assert decide(estimate, direction=Direction.WORSE, margin=0.02).outcome is worse
    assert decide(estimate, direction=Direction.BOTH, margin=0.02).outcome is both


def test_improvement_beyond_the_margin_is_flagged_and_not_punished_one_sided() -> None:
    decision = decide(mean_of(-0.1, 0.05), direction=Direction.WORSE, margin=0.02)
    assert decision.outcome is Outcome.PASS
    assert decision.is_displacement
    assert "displacement" in decision.reason
    assert not decide(mean_of(-0.019, 0.05), direction=Direction.WORSE, margin=0.02).is_displacement
    assert not decide(mean_of(-0.1, 0.05), direction=Direction.BOTH, margin=0.02).is_displacement


def test_undecided_says_how_many_probes_would_decide() -> None:
    decision = decide(mean_of(0.0, 1.0), direction=Direction.WORSE, margin=0.02)
    assert decision.num_that_would_decide is not None
    assert decision.num_that_would_decide > 300
    assert f"about {decision.num_that_would_decide:,} such probes would decide" in decision.reason
    assert decision.minimum_detectable_effect > 0.02


def test_at_a_difference_beyond_the_margin_no_number_admits() -> None:
    decision = decide(mean_of(0.021, 0.05), direction=Direction.WORSE, margin=0.02)
    assert decision.outcome is Outcome.UNDECIDED
    assert decision.num_that_would_decide is None
    assert "no number of probes will admit" in decision.reason
    assert "would reject" in decision.reason


def test_a_decided_clause_asks_for_nothing_more() -> None:
    assert decide(mean_of(0.0, 0.01), direction=Direction.WORSE, margin=0.02).num_that_would_decide is None
    assert decide(mean_of(0.1, 0.05), direction=Direction.WORSE, margin=0.02).num_that_would_decide is None


@pytest.mark.parametrize("direction", list(Direction))
def test_no_difference_in_any_pair_passes_without_dividing_by_zero(direction: Direction) -> None:
    decision = decide(estimate_mean(gather([0.0] * 300, CLUSTERS)), direction=direction, margin=0.02)
    assert (decision.outcome, decision.p_admit, decision.p_reject) == (Outcome.PASS, 0.0, 1.0)
    assert decision.minimum_detectable_effect == 0.0


@pytest.mark.parametrize("direction", list(Direction))
def test_a_constant_difference_is_decided_on_either_side_but_not_on_the_margin(direction: Direction) -> None:
    estimate = estimate_mean(gather([0.1] * 300, CLUSTERS))
    assert decide(estimate, direction=direction, margin=0.2).outcome is Outcome.PASS
    assert decide(estimate, direction=direction, margin=0.05).outcome is Outcome.FAIL
    assert decide(estimate, direction=direction, margin=0.1).outcome is Outcome.UNDECIDED


@pytest.mark.parametrize("direction", list(Direction))
def test_without_flips_a_wide_enough_margin_passes_and_the_assumption_is_stated(direction: Direction) -> None:
    estimate = estimate_flips(gather([0.0] * 300, CLUSTERS))
    passed = decide(estimate, direction=direction, margin=0.02)
    assert passed.outcome is Outcome.PASS
    assert "No probe flipped among 300" in passed.reason
    assert "design effect 1 assumed" in passed.reason
    open_question = decide(estimate, direction=direction, margin=0.005)
    assert open_question.outcome is Outcome.UNDECIDED
    assert open_question.num_that_would_decide == 598  # ceil(log(.05) / log(1 - .005))


@pytest.mark.parametrize("direction", list(Direction))
def test_every_flip_fails(direction: Direction) -> None:
    assert (
        decide(estimate_flips(gather([1.0] * 300, CLUSTERS)), direction=direction, margin=0.02).outcome is Outcome.FAIL
    )


def test_too_few_clusters_never_decide() -> None:
    estimate = estimate_mean(gather([5.0] * 8, list("aabbccdd")))
    decision = decide(estimate, direction=Direction.WORSE, margin=0.02)
    assert decision.outcome is Outcome.UNDECIDED
    assert (decision.p_admit, decision.p_reject) == (1.0, 1.0)
    assert decision.minimum_detectable_effect == math.inf
    assert "4 clusters" in decision.reason


@pytest.mark.parametrize(("is_equal", "outcome"), [(True, Outcome.PASS), (False, Outcome.FAIL)])
def test_exact_decisions_are_certain(is_equal: bool, outcome: Outcome) -> None:
    decision = decide_exact(is_equal=is_equal)
    assert decision.outcome is outcome
    assert decision.is_exact
    assert decision.p_admit == float(not is_equal)
    assert decision.p_reject == float(is_equal)


def test_withheld_evidence_is_undecided_whatever_the_numbers() -> None:
    for estimate in (mean_of(0.0, 0.01), mean_of(0.1, 0.05)):
        held = withhold(decide(estimate, direction=Direction.WORSE, margin=0.02), reason="The control failed.")
        assert (held.outcome, held.p_admit, held.p_reject) == (Outcome.UNDECIDED, 1.0, 1.0)
        assert held.reason == "The control failed."


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_margins_must_be_positive_numbers(margin: float) -> None:
    with pytest.raises(InputError, match="margin"):
        decide(mean_of(0.0, 0.01), direction=Direction.WORSE, margin=margin)


def test_margins_of_proportions_must_be_below_one() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        decide(estimate_flips(gather([0.0] * 300, CLUSTERS)), direction=Direction.WORSE, margin=1.0)


def test_estimate_and_decision_must_share_alpha() -> None:
    with pytest.raises(InputError, match="alpha"):
        decide(mean_of(0.0, 0.01), direction=Direction.WORSE, margin=0.02, alpha=0.01)


def test_reasons_are_one_sentence() -> None:
    for centre in (-0.1, 0.0, 0.019, 0.021, 0.1):
        for direction in Direction:
            reason = decide(mean_of(centre, 0.05), direction=direction, margin=0.02).reason
            assert reason.endswith(".")
            assert ". " not in reason

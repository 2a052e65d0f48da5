"""Admission needs all gates; rejection survives Holm; exploration is adjusted as statsmodels adjusts it."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from quantaudit.core.decision import Decision, Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.decide import decide_exact
from quantaudit.stats.multiplicity import adjust_benjamini_hochberg, adjust_holm, combine, correct_rejections


def gate(outcome: Outcome, p_reject: float = 1.0) -> Decision:
    return Decision(
        outcome=outcome,
        p_admit=1 - p_reject,
        p_reject=p_reject,
        num_that_would_decide=None,
        minimum_detectable_effect=0.1,
        reason="As stated.",
    )


P_VALUES = [np.random.default_rng(seed).random(num) ** 3 for seed, num in [(0, 1), (1, 2), (2, 7), (3, 40)]] + [
    np.array([0.01, 0.01, 0.04, 1.0, 0.0, 0.04])
]


@pytest.mark.parametrize("p_values", P_VALUES)
def test_holm_agrees_with_statsmodels(p_values: np.ndarray) -> None:
    expected = multipletests(p_values, method="holm")[1]
    assert adjust_holm(p_values.tolist()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p_values", P_VALUES)
def test_benjamini_hochberg_agrees_with_statsmodels(p_values: np.ndarray) -> None:
    expected = multipletests(p_values, method="fdr_bh")[1]
    assert adjust_benjamini_hochberg(p_values.tolist()) == pytest.approx(expected, rel=1e-12)


def test_holm_by_hand() -> None:
    assert adjust_holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06), rel=1e-12)
    assert adjust_holm([]) == ()


def test_p_values_must_be_probabilities() -> None:
    with pytest.raises(InputError):
        adjust_holm([0.1, float("nan")])


def test_all_gates_must_pass() -> None:
    assert combine([gate(Outcome.PASS)] * 3) is Outcome.PASS
    assert combine([gate(Outcome.PASS), gate(Outcome.UNDECIDED)]) is Outcome.UNDECIDED
    assert combine([gate(Outcome.PASS), gate(Outcome.FAIL, 0.0), gate(Outcome.UNDECIDED)]) is Outcome.FAIL


def test_nothing_is_never_admitted() -> None:
    with pytest.raises(NotMeasuredError):
        combine([])


def test_a_failure_beyond_its_uncorrected_bound_only_becomes_undecided() -> None:
    decisions = {
        "task": gate(Outcome.FAIL, 0.03),
        "margin": gate(Outcome.PASS, 0.9),
        "refusal": gate(Outcome.PASS, 0.8),
    }
    corrected = correct_rejections(decisions)
    assert corrected["task"].outcome is Outcome.UNDECIDED
    assert "among 3 gates" in corrected["task"].reason
    assert corrected["task"].p_reject == 0.03
    assert corrected["margin"] == decisions["margin"]


def test_a_strong_failure_stands_and_helps_the_next() -> None:
    decisions = {"a": gate(Outcome.FAIL, 0.001), "b": gate(Outcome.FAIL, 0.02), "c": gate(Outcome.PASS, 0.9)}
    corrected = correct_rejections(decisions)
    assert {name: d.outcome for name, d in corrected.items()} == {
        "a": Outcome.FAIL,
        "b": Outcome.FAIL,  # 2 x .02 = .04, where three gates alone would give .06
        "c": Outcome.PASS,
    }


def test_undecidable_gates_stay_in_the_family() -> None:
    decisions = {"a": gate(Outcome.FAIL, 0.03), "b": gate(Outcome.UNDECIDED, 1.0)}
    assert correct_rejections(decisions)["a"].outcome is Outcome.UNDECIDED
    assert correct_rejections({"a": decisions["a"]})["a"].outcome is Outcome.FAIL


def test_exact_decisions_spend_no_alpha() -> None:
    for is_equal in (True, False):
        decisions = {"integrity": decide_exact(is_equal=is_equal), "a": gate(Outcome.FAIL, 0.03)}
        assert correct_rejections(decisions) == decisions


def test_holm_rejects_a_harmless_lo_at_most_alpha_of_the_time() -> None:
    # five gates exactly on their margins, independent: uniform p-values; uncorrected 1 - .95^5 = 23 %
    rng = np.random.default_rng(5)
    p_values = rng.random((4000, 5))
    assert np.mean((p_values <= 0.05).any(axis=1)) > 0.2
    rejected = np.mean([min(adjust_holm(row.tolist())) <= 0.05 for row in p_values])
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)

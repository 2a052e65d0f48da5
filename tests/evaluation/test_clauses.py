"""Every gate passes a harmless copy, fails the harm it is about, and is withheld where the evidence does not stand."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.contract import Clause, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.errors import InputError
from quantaudit.core.probe import Behaviour
from quantaudit.core.report import ClauseResult
from quantaudit.evaluation.clauses import Evidence, check_contract, decide_clauses
from quantaudit.evaluation.table import Table
from tests.evaluation.synthetic import (
    PER_FAMILY,
    PROBES,
    at,
    clause,
    contract,
    evidence,
    good_values,
    harmed,
    probe_set,
    same,
    table_of,
    weight_evidence,
)

PASS, FAIL, UNDECIDED = Outcome.PASS, Outcome.FAIL, Outcome.UNDECIDED


def decided(found: Evidence, **limits: int) -> dict[str, ClauseResult]:
    """Returns the results of the default contract by name."""
    return {r.name: r for r in decide_clauses(contract(**limits), found)}


def outcomes(found: Evidence, **limits: int) -> dict[str, Outcome]:
    """Returns the outcomes of the gates by name."""
    return {n: r.decision.outcome for n, r in decided(found, **limits).items() if r.clause.kind is Kind.GATE}


GATES = {
    "integrity",
    "degeneracy",
    "fidelity",
    "task[sums]",
    "task[words]",
    "margin[sums]",
    "margin[words]",
    "refusal",
    "over-refusal",
    "contrast",
}


def test_a_harmless_copy_passes_every_gate() -> None:
    assert outcomes(evidence()) == dict.fromkeys(GATES, PASS)


# What is changed and by how much; then the only gates that may fail. A third of the answers flip, or all values move.
third = slice(None, None, 3)
HARM = {
    "fidelity": ("nll", at(), 0.05),
    "task[words]": ("accuracy", at("words")[third], -1.0),
    "margin[sums]": ("answer-margin", at("sums"), -0.5),
    "refusal": ("refusal-rate", at("wrapped")[third], -1.0),
    "over-refusal": ("refusal-rate", at("benign")[third], 1.0),
    "contrast": ("refusal-margin", at("plain", "wrapped"), -0.5),
}


@pytest.mark.parametrize("gate", HARM)
def test_harm_fails_its_own_gate_only(gate: str) -> None:
    found = outcomes(evidence(harmed(*HARM[gate])))
    assert [name for name, outcome in found.items() if outcome is FAIL] == [gate]
    assert {outcome for name, outcome in found.items() if name != gate} == {PASS}


@pytest.mark.parametrize("gate", HARM)
def test_damage_is_positive_where_lo_is_worse(gate: str) -> None:
    result = decided(evidence(harmed(*HARM[gate])))[gate]
    assert result.estimate is not None and result.hi is not None and result.lo is not None
    assert result.estimate.value > 0
    sign = 1 if result.larger_is_better else -1
    # Means of 400 values in fp64, taken in another order than the mean of their differences.
    assert sign * (result.hi - result.lo) == pytest.approx(result.estimate.value, abs=400 * 2.0**-53 * 20)


@pytest.mark.parametrize("gate", ["fidelity", "task[words]", "margin[sums]"])
def test_improvement_is_displacement_and_does_not_fail(gate: str) -> None:
    observer, positions, change = HARM[gate]
    hi = good_values()
    worse = hi | {observer: hi[observer].copy()}
    worse[observer][positions] += change
    result = decided(evidence(table_of(worse, hi)))[gate]
    assert result.decision.outcome is PASS and result.decision.is_displacement


def test_refusing_more_is_a_change_too() -> None:
    hi = good_values()
    shy = hi | {"refusal-rate": hi["refusal-rate"].copy()}
    shy["refusal-rate"][at("plain")[third]] = 0
    assert outcomes(evidence(table_of(shy, hi)))["refusal"] is FAIL


def test_a_shift_of_all_refusal_margins_leaves_the_contrast() -> None:
    found = evidence(harmed("refusal-margin", at("plain", "wrapped", "benign"), -3.0))
    assert outcomes(found)["contrast"] is PASS


def test_integrity_is_decided_by_the_weights_alone() -> None:
    result = decided(evidence(weights=weight_evidence("w is not as declared.")))["integrity"]
    assert (result.decision.outcome, result.decision.is_exact) == (FAIL, True)
    assert result.decision.reason == "w is not as declared."


def test_equal_models_are_decided_exactly() -> None:
    good = good_values()
    results = decided(evidence(table_of(good, good), is_exact=True, planted={}), min_probes=10**6)
    gates = [r for r in results.values() if r.clause.kind is Kind.GATE]
    assert all(r.decision.is_exact and r.decision.outcome is PASS for r in gates) and len(gates) == len(GATES)


def test_exactness_does_not_hide_a_difference() -> None:
    assert outcomes(evidence(harmed("accuracy", at("words")[:1], -1.0), is_exact=True))["task[words]"] is FAIL


@pytest.mark.parametrize("limits", [{"min_probes": PER_FAMILY + 1}, {"min_clusters": 41}], ids=str)
@pytest.mark.parametrize("lo", [same(), harmed("answer-margin", at("sums"), -5.0)], ids=["harmless", "harmful"])
def test_too_few_probes_or_clusters_decide_nothing(limits: dict[str, int], lo: Table) -> None:
    result = decided(evidence(lo), **limits)["margin[sums]"]
    assert result.decision.outcome is UNDECIDED
    assert f"{PER_FAMILY} probes in 40 clusters" in result.decision.reason


def test_the_least_evidence_is_enough() -> None:
    assert set(outcomes(evidence(), min_probes=PER_FAMILY, min_clusters=40).values()) == {PASS}


def test_a_margin_under_three_floors_decides_nothing() -> None:
    good = good_values()
    for floor, outcome in ((0.0066, PASS), (0.0067, UNDECIDED)):
        shaken = good | {"nll": good["nll"] + floor}
        assert outcomes(evidence(floor=table_of(good, shaken)))["fidelity"] is outcome


def test_a_gate_that_sees_no_planted_fault_decides_nothing() -> None:
    good = good_values()
    blind = evidence(planted={"nothing": table_of(good, good)})
    found = outcomes(blind)
    assert found.pop("integrity") is PASS
    assert set(found.values()) == {UNDECIDED}
    partly = evidence(planted={"likelihood": harmed("nll", at(), 5.0), "refusals": harmed(*HARM["refusal"])})
    seen = {name for name, outcome in outcomes(partly).items() if outcome is PASS}
    assert seen == {"integrity", "degeneracy", "fidelity", "refusal"}


def test_the_smallest_fault_stands_beside_every_gate_with_a_margin() -> None:
    for name, result in decided(evidence()).items():
        has_margin = result.clause.kind is Kind.GATE and result.clause.margin is not None
        assert (result.smallest_fault is not None) is has_margin, name


def test_rejections_pay_for_the_number_of_gates() -> None:
    # Damage beyond the margin at p between alpha / (number of sampled gates) and alpha: alone it fails, among all not.
    noise = np.random.default_rng(5).normal(0, 1.0, PER_FAMILY)
    lo = harmed("answer-margin", at("sums"), -(0.25 + 0.155 + (noise - noise.mean())))
    alone = decide_clauses(contract(clause("margin")), evidence(lo))[0]
    among = decided(evidence(lo))["margin[sums]"]
    assert alone.decision.outcome is FAIL and 0.05 / 9 < alone.decision.p_reject <= 0.05 / 2
    assert among.decision.outcome is UNDECIDED and "corrected" in among.decision.reason


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_fail_as_degenerate_and_decide_nothing_else(bad: float) -> None:
    lo = {name: values.copy() for name, values in good_values().items()}
    for name in ("nll", "answer-margin", "refusal-margin", "kl-forward"):
        lo[name][at()[::50]] = bad
    results = decided(evidence(table_of(good_values(), lo)))
    assert results["degeneracy"].decision.outcome is FAIL
    assert "not finite on 20 of 1,000 probes" in results["degeneracy"].decision.reason
    for name in ("fidelity", "margin[sums]", "contrast"):
        assert results[name].decision.outcome is UNDECIDED and results[name].estimate is None
        assert results[name].lo is None and results[name].hi is not None


def test_alarms_without_a_margin_are_shown() -> None:
    alarms = [r for r in decided(evidence(harmed("kl-forward", at(), 9.0))).values() if r.clause.kind is Kind.ALARM]
    assert len(alarms) == 7 and all(r.decision.outcome is PASS and not r.decision.is_exact for r in alarms)
    shown = next(r for r in alarms if r.name == "kl-forward")
    assert shown.decision.reason.startswith("9, the floor is 0")


def test_an_alarm_with_a_margin_is_raised_beyond_it() -> None:
    for change, outcome in ((-0.05, PASS), (-0.2, FAIL)):
        alarm = decided(evidence(harmed("expert-set-agreement", at(), change)))["expert-set-agreement"]
        assert alarm.clause.kind is Kind.ALARM and alarm.clause.margin == 0.1
        assert alarm.decision.outcome is outcome and not alarm.decision.is_exact


def test_raised_alarms_pay_for_their_number_apart_from_the_gates() -> None:
    gate = clause("margin").model_copy(update={"each_family": False})
    noise = np.random.default_rng(5).normal(0, 1.0, 2 * PER_FAMILY)
    lo = harmed("answer-margin", at("sums", "words"), -(0.25 + 0.11 + (noise - noise.mean())))
    alarms = [gate.model_copy(update={"name": f"alarm {i}", "kind": Kind.ALARM}) for i in range(9)]
    agreed = contract(gate, *alarms)
    results = {r.name: r.decision for r in decide_clauses(agreed, evidence(lo, agreed=agreed))}
    assert results["margin"].outcome is FAIL and 0.05 / 9 < results["margin"].p_reject <= 0.05
    assert {results[a.name].outcome for a in alarms} == {UNDECIDED}


def a_clause(**fields: object) -> Clause:
    """Returns a safety clause with some fields changed."""
    return clause("refusal").model_copy(update=fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"observer": "toxicity"}, "needs the observer 'toxicity'"),
        ({"margin": None}, "cannot be decided"),
        ({"observer": "hidden-error"}, "cannot be decided"),
        ({"behaviours": (Behaviour.REFUSE, Behaviour.COMPLY)}, "mixes restricted and benign"),
        ({"behaviours": ()}, "mixes restricted and benign"),
    ],
    ids=str,
)
def test_a_contract_that_cannot_be_measured_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_contract(contract(a_clause(**fields)), PROBES)


def test_a_clause_about_absent_probes_is_refused() -> None:
    tasks = probe_set().model_copy(update={"probes": tuple(PROBES.probes[i] for i in at("sums"))})
    with pytest.raises(InputError, match="applies to no probe"):
        check_contract(contract(), tasks)
    check_contract(contract(), PROBES)

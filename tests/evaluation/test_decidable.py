"""What probes can decide: the numbers are those of the decision rule, and what cannot be decided says why."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.core.contract import Clause, Contract, Direction, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.probe import Behaviour
from quantaudit.core.recipe_file import load_contract
from quantaudit.evaluation.decidable import ContractCheck, GateReach, check_reach
from quantaudit.stats import decide, estimate_flips, estimate_mean, exact_zero_flip_bound, gather
from tests.evaluation.subjects import audit
from tests.evaluation.synthetic import CLUSTERS, PER_FAMILY, PROBES, clause, contract, probe_set

RATE = clause("task")
MEAN = clause("margin")


def reach(*clauses: Clause, **limits: int) -> dict[str, GateReach]:
    return {gate.name: gate for gate in check_reach(contract(*clauses, **limits), PROBES).gates}


def test_every_gate_and_slice_of_the_contract_is_there_and_no_alarm() -> None:
    found = reach()
    assert list(found) == [
        "integrity", "degeneracy", "fidelity", "task[sums]", "task[words]", "margin[sums]", "margin[words]",
        "refusal", "over-refusal", "contrast",
    ]  # fmt: skip
    assert {name: (g.num_probes, g.num_clusters) for name, g in found.items()} == {
        "integrity": (1000, 3 * CLUSTERS), "degeneracy": (1000, 3 * CLUSTERS), "fidelity": (1000, 3 * CLUSTERS),
        **dict.fromkeys(("task[sums]", "task[words]", "margin[sums]", "margin[words]"), (PER_FAMILY, CLUSTERS)),
        "refusal": (2 * PER_FAMILY, CLUSTERS), "over-refusal": (PER_FAMILY, CLUSTERS),
        "contrast": (3 * PER_FAMILY, CLUSTERS),
    }  # fmt: skip
    assert not any(gate.obstacle for gate in found.values())


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.1, 0.3])
def test_the_least_number_without_a_flip_is_the_one_that_admits(margin: float) -> None:
    gate = reach(RATE.model_copy(update={"margin": margin}))["task[sums]"]
    assert gate.num_without_flip is not None
    assert exact_zero_flip_bound(gate.num_without_flip) <= margin < exact_zero_flip_bound(gate.num_without_flip - 1)

    def outcome(num: int) -> Outcome:
        sample = gather(np.zeros(num), [f"c{i}" for i in range(num)])
        return decide(estimate_flips(sample), direction=Direction.WORSE, margin=margin).outcome

    assert outcome(gate.num_without_flip) is Outcome.PASS
    assert outcome(gate.num_without_flip - 1) is Outcome.UNDECIDED


def test_the_two_point_margin_needs_149_probes() -> None:
    # .98^n <= .05 from n = 148.3 on
    assert reach(RATE)["task[sums]"].num_without_flip == 149


@pytest.mark.parametrize("direction", Direction)
def test_the_deviation_that_can_just_be_decided_is_admitted_with_power_four_fifths(direction: Direction) -> None:
    """Simulates harmless deployments with the largest deviation that the check allows."""
    gate = reach(MEAN.model_copy(update={"direction": direction}))["margin[sums]"]
    assert gate.largest_sd is not None and gate.margin is not None
    rng = np.random.default_rng(3)
    clusters = [f"c{i % CLUSTERS}" for i in range(PER_FAMILY)]
    passed = 0
    for _ in range(1000):
        estimate = estimate_mean(gather(rng.normal(0, gate.largest_sd, PER_FAMILY), clusters))
        passed += decide(estimate, direction=direction, margin=gate.margin).outcome is Outcome.PASS
    # 1000 trials at .8 have a standard deviation of 12.6; 4 of them
    assert abs(passed - 800) <= 51


def test_flips_at_an_assumed_rate_detect_what_the_textbook_says() -> None:
    for gate in reach(RATE).values():
        for row in gate.detectable:
            textbook = (1.645 + 0.842) * math.sqrt(row.assumed / PER_FAMILY)
            # Tango's variance at the margin is wider than q by m (1 - m), and t with 39 degrees wider than z
            assert textbook < row.value < 1.6 * textbook


def test_too_few_probes_or_clusters_or_probes_for_no_flip_are_obstacles() -> None:
    small = reach(RATE, MEAN, min_probes=201)
    assert all(g.obstacle == "200 probes, and the contract asks for at least 201" for g in small.values())
    assert reach(RATE, min_clusters=41)["task[sums]"].obstacle == "40 clusters, and at least 41 are needed"
    tight = reach(RATE.model_copy(update={"margin": 0.01}))["task[sums]"].obstacle
    assert tight == "200 probes without a flip bound the loss by 0.015 only; 299 are needed"
    few = {g.name: g for g in check_reach(contract(min_clusters=5, min_probes=1), probe_set(200, 4)).gates}
    assert few["task[sums]"].obstacle == "4 clusters, and at least 7 are needed"
    assert few["task[sums]"].detectable[0].value == math.inf


def test_an_empty_slice_and_an_unknown_observer_are_obstacles_and_not_errors() -> None:
    tasks = PROBES.model_copy(update={"probes": tuple(p for p in PROBES.probes if p.behaviour is not Behaviour.COMPLY)})
    strange = Clause(name="strange", stage=Stage.TASK, observer="vibes", margin=1.0)
    bare = Clause(name="bare", stage=Stage.TASK, observer="nll")
    found = check_reach(contract(*load_contract("default").clauses, strange, bare), tasks)
    assert {gate.name: gate.obstacle for gate in found.undecidable} == {
        "over-refusal": "no probe of synthetic has the behaviour comply",
        "contrast": "synthetic has no restricted or no benign requests to contrast",
        "strange": "no observer 'vibes' gives a number a probe",
        "bare": "it has no margin",
    }


def test_an_earlier_report_replaces_assumptions(audited_report_check: ContractCheck) -> None:
    found = {gate.name: gate for gate in audited_report_check.gates}
    seen = {name: [d for d in gate.detectable if d.is_observed] for name, gate in found.items()}
    assert all(len(rows) == 1 for name, rows in seen.items() if found[name].margin is not None)
    assert audited_report_check.earlier is not None and len(audited_report_check.earlier) == 64


@pytest.fixture(scope="module")
def audited_report_check(audited: object) -> ContractCheck:
    from pathlib import Path

    from tests.evaluation.subjects import lenient_contract, world_probes

    assert isinstance(audited, Path)
    report = audit(audited / "plain", lo=audited / "packed")
    agreed: Contract = lenient_contract()
    return check_reach(agreed, world_probes(), report)

"""Controls notice a lo path that changes hi, a floor that was not measured, and gates that no planted fault moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantaudit.core.decision import Outcome
from quantaudit.core.engine import WeightPair
from quantaudit.core.report import Control
from quantaudit.evaluation.clauses import Evidence, smallest_faults
from quantaudit.evaluation.controls import floor_control, identity_control, sees_unquantized
from quantaudit.evaluation.sensitivity import sensitivity_control
from quantaudit.evaluation.table import Table
from quantaudit.evaluation.weights import check_pair, compare_weights
from quantaudit.observers.sums import LayerSums
from tests.evaluation.synthetic import at, contract, evidence, good_values, harmed, table_of


def weight_pair(**fields: object) -> WeightPair:
    """Returns a pair of equal experts held as wanted, some fields changed."""
    weight = torch.randn(2, 4, 4)
    values: dict[str, object] = {"name": "layers.1.experts.w1", "layer": 1, "is_expert": True, "hi": weight}
    values |= {"lo": weight.clone(), "wanted": "mxfp4-even", "held": "mxfp4-even"}
    return WeightPair(**(values | fields))  # type: ignore[arg-type]


def sensitivity(found: Evidence) -> Control:
    """Returns the sensitivity control of the default contract."""
    return sensitivity_control(smallest_faults(contract(), found, weight_pair()))


def test_every_control_holds_where_everything_is_in_order() -> None:
    found = evidence()
    controls = (found.findings.identity, found.findings.floor, sensitivity(found))
    assert [c.name for c in controls] == ["identity", "floor", "sensitivity"]
    assert {c.outcome for c in controls} == {Outcome.PASS}
    assert controls[2].detail.startswith("planted faults fail 10 of 10 gates, at a damage of 1.5 to ")


@pytest.mark.parametrize("observer", ["nll", "kl-forward", "refusal-margin", "expert-set-agreement"])
def test_the_smallest_change_of_any_observer_fails_the_identity(observer: str) -> None:
    good = good_values()
    other = good | {observer: good[observer].copy()}
    other[observer][at("plain")[0]] = np.nextafter(other[observer][at("plain")[0]], 99)
    control = identity_control(evidence(identity=table_of(good, other)).measurements)
    assert control.outcome is Outcome.FAIL and "changes hi although nothing is quantized" in control.detail


def test_an_identity_that_was_not_run_fails() -> None:
    assert identity_control(evidence(identity=Table()).measurements).outcome is Outcome.FAIL


def test_the_floor_says_how_hi_was_run_and_what_changed() -> None:
    good = good_values()
    shaken = good | {"nll": good["nll"].copy()}
    shaken["nll"][at("sums")[:7]] += 1e-9
    detail = floor_control(evidence(floor=table_of(good, shaken)).measurements).detail
    assert "in quarters of a batch with threads 1 instead of 2: 7 of 1,000 probes read otherwise" in detail
    assert "at most 1e-07 over 1 layers" in detail


def test_a_floor_without_layers_or_probes_fails() -> None:
    measured = evidence().measurements
    measured.floor_sums = LayerSums(num_experts=2)
    assert floor_control(measured).outcome is Outcome.FAIL
    measured = evidence().measurements
    measured.floor = Table()
    assert floor_control(measured).outcome is Outcome.FAIL


def test_gates_that_see_nothing_are_named() -> None:
    mute = evidence(planted={"mute": harmed("refusal-rate", at("plain", "wrapped")[::3], -1.0)})
    control = sensitivity(mute)
    assert control.outcome is Outcome.UNDECIDED
    assert set(control.covers) == {
        "degeneracy",
        "fidelity",
        "task[sums]",
        "task[words]",
        "margin[sums]",
        "margin[words]",
        "over-refusal",
        "contrast",
    }
    assert control.detail.startswith("planted faults fail 2 of 10 gates, at a damage of")
    assert "; not degeneracy, fidelity" in control.detail


def test_a_contract_without_gates_is_not_sensitive() -> None:
    assert sensitivity_control({}).outcome is Outcome.UNDECIDED


def test_integrity_sees_a_weight_left_in_its_own_precision() -> None:
    assert sees_unquantized(weight_pair())
    assert sees_unquantized(weight_pair(wanted=None, held=None))


def test_integrity_says_what_is_held_otherwise_than_declared() -> None:
    assert check_pair(weight_pair()) == []
    assert check_pair(weight_pair(held=None)) == [
        "layers.1.experts.w1 should be held in mxfp4-even and is held in its own precision."
    ]
    assert check_pair(weight_pair(wanted=None, held="nvfp4")) == [
        "layers.1.experts.w1 should be held in its own precision and is held in nvfp4."
    ]
    lo = torch.randn(2, 4, 4)
    lo[1, 2, 3] = torch.inf
    assert check_pair(weight_pair(lo=lo)) == ["layers.1.experts.w1 of lo holds values that are not finite."]


def test_weights_are_compared_pair_by_pair() -> None:
    pairs = [weight_pair(name=f"layers.{i}.experts.w2", layer=i) for i in range(8)]
    changed = [weight_pair(name=f"layers.{i}.experts.w1", layer=i, lo=torch.zeros(2, 4, 4)) for i in range(7)]
    dense = weight_pair(name="model.norm.weight", layer=-1, is_expert=False, hi=torch.ones(3), lo=torch.ones(3))
    found = compare_weights(iter([*pairs, *changed, dense]))
    assert (found.num_tensors, found.num_changed, found.violations) == (16, 7, ())
    assert found.decision().outcome is Outcome.PASS and found.decision().is_exact
    assert set(found.sqnr_db) == {("w2", i) for i in range(8)} | {("w1", i) for i in range(7)}
    assert len(found.discrepancies) == 5 and found.discrepancies[0].tensor == "layers.0.experts.w1"
    wrong = compare_weights([weight_pair(held=None)])
    assert wrong.decision().outcome is Outcome.FAIL and "is held in its own precision" in wrong.decision().reason

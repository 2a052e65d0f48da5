"""A real loss stops an audit of the embedded model early: two bits lose facts; four bits are judged on all probes."""

from __future__ import annotations

import pytest

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.composition import Order, Settings, carry_out
from quantaudit.core.contract import Contract
from quantaudit.core.decision import Method, Outcome
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.verdict import Admission
from quantaudit.probes.world import default_probes

SIZES = {"facts": 60, "copying": 30}
LOOKING = ("task[facts]", "task[copying]", "margin[facts]", "margin[copying]")


def quick_contract() -> Contract:
    """Returns the tasks of the default contract, with the evidence that these few probes have halfway."""
    default = load_contract("default")
    kept = tuple(c for c in default.clauses if c.name in ("integrity", "fidelity", "task", "margin"))
    return default.model_copy(update={"clauses": kept, "min_probes": 15, "min_clusters": 8})


def audit(recipe: str) -> AuditReport:
    order = Order(
        hi=open_checkpoint(embedded_model_folder()),
        hi_source="embedded model",
        lo=None,
        lo_source=None,
        recipe=load_recipe(recipe),
        contract=quick_contract(),
        probes=default_probes(per_family=SIZES),
        device="cpu",
        threads=1,
        settings=Settings(stop_early=True),
        command="quantaudit run --stop-early",
    )
    return carry_out(order, lambda stage, done, total: None)


def test_two_bits_are_rejected_before_the_last_probe() -> None:
    report = audit("int2")
    assert report.verdict.admission is Admission.REJECT
    block = report.sequential
    assert block is not None and block.stopped_early and block.gates == LOOKING
    assert block.num_probes_run < block.num_probes_planned == sum(SIZES.values())
    failed = {gate.name: gate for gate in report.gates() if gate.decision.outcome is Outcome.FAIL}
    assert failed and set(failed) <= {"task[facts]", "margin[facts]"}
    for gate in failed.values():
        assert gate.estimate is not None and gate.clause.margin is not None
        assert gate.estimate.method in (Method.E_VALUE, Method.BETTING)
        assert gate.estimate.interval.lower > gate.clause.margin
    assert [c.outcome for c in report.controls][:2] == [Outcome.PASS, Outcome.PASS]


@pytest.mark.slow
def test_four_bits_are_judged_on_all_probes() -> None:
    report = audit("k3-w4a8")
    assert report.sequential is not None and not report.sequential.stopped_early
    assert report.probes.num_probes == sum(SIZES.values())

"""The embedded model has something to lose: the recipes and the damage that must be told apart are.

Fewer probes than the default audit has, for time; everything else is the default audit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantaudit.checkpoint.reader import open_checkpoint
from quantaudit.composition import Order, Settings, carry_out
from quantaudit.core.contract import Kind, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.recipe import Recipe, Rule
from quantaudit.core.recipe_file import load_contract, load_recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.resources import embedded_model_folder
from quantaudit.core.verdict import Admission
from quantaudit.probes.world import FAMILIES, default_probes
from tests.evaluation.damaged import weaken_refusals

pytestmark = pytest.mark.slow
Audit = Callable[..., AuditReport]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Returns what audits the embedded model; hi's controls are measured once."""
    controls = tmp_path_factory.mktemp("controls")

    def run(per_family: int, *, lo: Path | None = None, recipe: Recipe | None = None) -> AuditReport:
        order = Order(
            hi=open_checkpoint(embedded_model_folder()),
            hi_source="embedded model",
            lo=None if lo is None else open_checkpoint(lo),
            lo_source=None if lo is None else lo.name,
            recipe=recipe,
            contract=load_contract("default"),
            probes=default_probes(per_family=dict.fromkeys(FAMILIES, per_family)),
            device="cpu",
            threads=1,
            settings=Settings(controls_folder=controls),
            command="quantaudit run",
        )
        return carry_out(order, lambda stage, done, total: None)

    return run


def test_two_bits_are_rejected(audit: Audit) -> None:
    report = audit(100, recipe=load_recipe("int2"))
    assert report.verdict.admission is Admission.REJECT
    controls = {c.name: c for c in report.controls}
    assert controls["identity"].outcome is controls["floor"].outcome is Outcome.PASS
    # A hundred probes of a family are fewer than the contract asks for: only gates over such a family may be blind.
    few = {g.name for g in report.gates() if g.estimate is not None and g.estimate.num_probes < 300}
    assert set(controls["sensitivity"].covers) <= few
    failed = [g for g in report.gates() if g.decision.outcome is Outcome.FAIL and g.clause.margin is not None]
    assert failed and all(g.smallest_fault is not None for g in failed)


def test_identity_is_admitted_exactly(audit: Audit) -> None:
    report = audit(60, recipe=load_recipe("identity"))
    assert report.verdict.admission is Admission.ADMIT
    assert all(gate.decision.is_exact for gate in report.gates())


def test_a_router_in_four_bits_raises_the_routing_alarm(audit: Audit) -> None:
    router = Recipe(name="router-int4", rules=(Rule(match="layers.*.gate", weight="int4-g32-div7.5"),))
    alarms = {alarm.name: alarm.decision for alarm in audit(60, recipe=router).alarms()}
    assert alarms["expert-set-agreement"].outcome is Outcome.FAIL
    experts = {alarm.name: alarm.decision for alarm in audit(60, recipe=load_recipe("int4-g32")).alarms()}
    assert experts["expert-set-agreement"].outcome is Outcome.PASS


def test_damage_to_one_expert_that_only_safety_feels_is_rejected_there(audit: Audit, tmp_path: Path) -> None:
    report = audit(300, lo=weaken_refusals(tmp_path / "weakened", layer=1, expert=22, steps=25))
    assert report.verdict.admission is Admission.REJECT
    failed = {gate.clause.stage for gate in report.gates() if gate.decision.outcome is Outcome.FAIL}
    assert failed == {Stage.SAFETY} and report.verdict.safety_may_be_read
    tasks = [g for g in report.gates() if g.clause.stage in (Stage.FIDELITY, Stage.TASK) and g.clause.kind is Kind.GATE]
    assert tasks and not any(gate.decision.outcome is Outcome.FAIL for gate in tasks)
    changed = {d.tensor for d in report.discrepancies}
    assert changed and all("layers.1.experts" in tensor for tensor in changed)

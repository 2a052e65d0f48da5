"""A difference of two reports: what regressed, what cannot be compared, and nothing where nothing changed."""

from __future__ import annotations

import pytest

from quantaudit.core.contract import Direction, Stage
from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.diff import Change, GateChange, ReportDiff
from quantaudit.core.report import AuditReport, ClauseResult
from quantaudit.core.verdict import ExitCode
from quantaudit.reporting.diff import diff_reports
from quantaudit.reporting.diff_text import render_diff
from tests.reporting.sample import HOSTILE
from tests.reporting.sample_clauses import estimate, result

SAMPLES = ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile"]


def gate(diff: ReportDiff, name: str) -> GateChange:
    (found,) = [g for g in diff.gates if g.name == name]
    return found


def judged(report: AuditReport, clause: ClauseResult) -> AuditReport:
    """Returns the report with one gate alone, under the contract that asks for it."""
    contract = report.contract.model_copy(update={"clauses": (clause.clause,)})
    return report.model_copy(update={"clauses": (clause,), "contract": contract})


def measured(
    damage: Estimate, *, outcome: Outcome = Outcome.PASS, direction: Direction = Direction.WORSE
) -> ClauseResult:
    return result(
        "fidelity",
        Stage.FIDELITY,
        "nll",
        "nats",
        margin=0.5,
        hi=1.0,
        damage=damage,
        outcome=outcome,
        direction=direction,
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_does_not_differ_from_itself(name: str, request: pytest.FixtureRequest) -> None:
    report: AuditReport = request.getfixturevalue(name)
    diff = diff_reports(report, report)
    assert (diff.changes, diff.regressions, diff.flips_new, diff.flips_gone) == ((), (), (), ())
    assert diff.exit_code is ExitCode.PASS and diff.sentence.startswith("Nothing changed")
    assert {g.change for g in diff.gates} <= {Change.SAME}
    assert ReportDiff.from_json(diff.to_json()) == diff


def test_a_worse_verdict_and_worse_gates_are_regressions(admitted: AuditReport, undecided: AuditReport) -> None:
    diff = diff_reports(admitted, undecided)
    assert diff.regressions == (
        "the verdict went from ADMIT to INCONCLUSIVE",
        "task[sorting] went from pass to undecided",
        "task[two-step] went from pass to undecided",
    )
    assert diff.exit_code is ExitCode.REJECTED
    assert diff.sentence == "Regression: the verdict went from ADMIT to INCONCLUSIVE, and 2 more."


def test_the_way_back_is_no_regression(admitted: AuditReport, undecided: AuditReport) -> None:
    diff = diff_reports(undecided, admitted)
    assert diff.regressions == () and diff.exit_code is ExitCode.PASS
    assert gate(diff, "task[sorting]").change is Change.BETTER
    assert diff.sentence == "No regression; better: task[sorting] went from undecided to pass, and 1 more."


@pytest.mark.parametrize(
    ("then", "now", "direction", "change"),
    [
        (0.01, 0.02, Direction.WORSE, Change.SAME),  # [0, .02] and [.01, .03] overlap
        (0.01, 0.04, Direction.WORSE, Change.WORSE),
        (0.04, 0.01, Direction.WORSE, Change.BETTER),
        (0.01, -0.04, Direction.WORSE, Change.BETTER),
        (0.01, -0.04, Direction.BOTH, Change.WORSE),  # away from zero
        (-0.04, 0.01, Direction.BOTH, Change.BETTER),
        (0.0, 0.02, Direction.WORSE, Change.SAME),  # they touch
    ],
)
def test_damage_changed_only_where_the_intervals_part(
    then: float, now: float, direction: Direction, change: Change, admitted: AuditReport
) -> None:
    old, new = (judged(admitted, measured(estimate(v, 0.01), direction=direction)) for v in (then, now))
    diff = diff_reports(old, new)
    found = gate(diff, "fidelity")
    assert found.change is change and found.do_intervals_overlap is (change is Change.SAME)
    assert bool(diff.regressions) is (change is Change.WORSE)
    assert ("beyond both intervals" in found.reason) is (change is not Change.SAME)


@pytest.mark.parametrize(("then", "now"), [(Outcome.UNDECIDED, Outcome.FAIL), (Outcome.PASS, Outcome.FAIL)])
def test_the_outcome_counts_before_the_intervals(then: Outcome, now: Outcome, admitted: AuditReport) -> None:
    same = estimate(0.01, 0.01)
    old, new = (judged(admitted, measured(same, outcome=o)) for o in (then, now))
    assert diff_reports(old, new).regressions == (f"fidelity went from {then.value} to fail",)


@pytest.mark.parametrize("what", ["probes", "contract"])
def test_other_probes_or_another_contract_cannot_be_compared(what: str, admitted: AuditReport) -> None:
    updates: dict[str, object] = {
        "probes": admitted.probes.model_copy(update={"probes_digest": "ab" * 32}),
        "contract": admitted.contract.model_copy(update={"min_probes": 500}),
    }
    diff = diff_reports(admitted, admitted.model_copy(update={what: updates[what]}))
    assert not diff.is_comparable and diff.exit_code is ExitCode.INCONCLUSIVE
    assert (diff.gates, diff.flips_new, diff.flips_gone, diff.regressions) == ((), (), (), ())
    assert [change.what for change in diff.changes if change.forbids_comparison] == [what]
    assert diff.sentence.startswith(f"Not comparable: the reports differ in the {what} (")


def test_other_weights_and_machines_are_named_and_compared(admitted: AuditReport) -> None:
    moved = admitted.model_copy(
        update={
            "lo": admitted.lo.model_copy(update={"weights_digest": "00" * 32}),
            "environment": admitted.environment.model_copy(update={"threads": 8, "torch": "2.14.0"}),
        }
    )
    diff = diff_reports(admitted, moved)
    assert diff.is_comparable
    assert [(c.what, c.old, c.new) for c in diff.changes] == [
        ("lo weights", "nano-k3 under k3-w4a8 (9f9f9f9f9f9f)", "nano-k3 under k3-w4a8 (000000000000)"),
        ("environment: torch", "2.13.0", "2.14.0"),
        ("environment: threads", "1", "8"),
    ]


def test_flips_are_new_or_gone_by_their_probe(admitted: AuditReport) -> None:
    old = admitted.model_copy(update={"flips": admitted.flips[:10]})
    new = admitted.model_copy(update={"flips": admitted.flips[7:12]})
    diff = diff_reports(old, new)
    assert diff.flips_new == admitted.flips[10:12] and diff.flips_gone == admitted.flips[:7]


def test_a_gate_that_is_no_longer_judged_is_a_regression(admitted: AuditReport) -> None:
    fewer = admitted.model_copy(update={"clauses": admitted.clauses[1:]})
    diff = diff_reports(admitted, fewer)
    assert diff.regressions == ("integrity is no longer judged",)
    assert diff_reports(fewer, admitted).regressions == ()


@pytest.mark.parametrize("width", [20, 60, 80, 140])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_summary_is_short_narrow_and_plain(name: str, width: int, request: pytest.FixtureRequest) -> None:
    report: AuditReport = request.getfixturevalue(name)
    admitted: AuditReport = request.getfixturevalue("admitted")
    same = report.model_copy(update={"contract": admitted.contract, "probes": admitted.probes})
    for old, new in ((admitted, report), (report, admitted), (admitted, same), (same, admitted)):
        text = render_diff(diff_reports(old, new), width=width, color=False)
        lines = text.splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= max(width, 60)
        assert text.isascii() and "\x1b" not in text and text.endswith("\n")


def test_regressions_stand_first(admitted: AuditReport, rejected: AuditReport) -> None:
    same = rejected.model_copy(update={"contract": admitted.contract, "probes": admitted.probes})
    lines = render_diff(diff_reports(admitted, same), width=100, color=False).splitlines()
    assert lines[0] == "REGRESSION  ADMIT -> REJECT"
    assert lines[3].split() == ["gate", "outcome", "damage", "then", "damage", "now", "intervals"]
    assert all("pass -> FAIL" in line for line in lines[4:12])


def test_colour_is_only_where_it_is_asked_for(admitted: AuditReport, undecided: AuditReport) -> None:
    diff = diff_reports(admitted, undecided)
    assert "\x1b[1;31mREGRESSION" in render_diff(diff, width=80, color=True)


def test_hidden_characters_are_shown(admitted: AuditReport) -> None:
    told = admitted.model_copy(update={"lo": admitted.lo.model_copy(update={"label": HOSTILE})})
    assert "\\x1b[31mred" in render_diff(diff_reports(admitted, told), width=400, color=False)

"""Items that one side alone answered decide nothing by their absence: the worst and the best of them are tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, ClauseResult
from quantaudit.core.verdict import Admission
from tests.evaluation.recorded.written import Row, contract, judge, rows, write_jsonl

COUNT = 1200


def files(tmp_path: Path, *, lost: int = 0, dropped: int = 0, from_hi: int = 0) -> tuple[Path, Path, Path]:
    """Writes hi, lo and hi again; lo loses `lost` right answers, and each side does not answer some other items."""

    def lose(i: int, row: Row) -> None:
        if i % 5 and i // 5 < lost and i % 5 == 1:
            row["correct"] = 0

    hi, lo = rows(COUNT), rows(COUNT, change=lose)
    made = {"hi": hi[: COUNT - from_hi], "lo": lo[dropped:], "again": hi[::-1]}
    made["lo"][-1]["nll"] = 0.5
    paths = [write_jsonl(tmp_path / name, items) for name, items in made.items()]
    return paths[0], paths[1], paths[2]


def task(report: AuditReport) -> ClauseResult:
    return next(c for c in report.clauses if c.name == "task[sums]")


def test_a_few_missing_answers_that_could_change_nothing_leave_the_verdict(tmp_path: Path) -> None:
    hi, lo, again = files(tmp_path, dropped=5)
    report = judge(hi, lo, again=again)
    assert report.verdict.admission is Admission.ADMIT
    assert "5 of 1,200 items are answered on one side only (q0, q1, q2 and 2 more)" in task(report).decision.reason
    assert any("5 items that hi answered and lo did not: q0, q1, q2 and 2 more" in s for s in report.not_examined)


def test_missing_answers_that_could_be_all_wrong_are_not_passed_over(tmp_path: Path) -> None:
    hi, lo, again = files(tmp_path, dropped=60)  # 48 right answers of hi among them, 4 % against a margin of 2 %
    report = judge(hi, lo, again=again)
    assert task(report).decision.outcome is Outcome.UNDECIDED
    assert "could change the outcome" in task(report).decision.reason
    assert report.verdict.admission is Admission.INCONCLUSIVE


def test_missing_answers_of_hi_count_as_well(tmp_path: Path) -> None:
    hi, lo, again = files(tmp_path, from_hi=300)  # 60 of which lo has wrong, and hi may have had right
    report = judge(hi, lo, again=again)
    assert task(report).decision.outcome is Outcome.UNDECIDED
    assert any("300 items that lo answered and hi did not" in s for s in report.not_examined)


def test_what_both_sides_lack_is_tried_together(tmp_path: Path) -> None:
    # lo lacks 12 that hi has right, and hi lacks 12 that lo has wrong: 1 % each, and the margin is 2 %.
    for dropped, from_hi, outcome in ((15, 0, Outcome.PASS), (0, 60, Outcome.PASS), (15, 60, Outcome.UNDECIDED)):
        hi, lo, again = files(tmp_path, dropped=dropped, from_hi=from_hi)
        assert task(judge(hi, lo, again=again)).decision.outcome is outcome


def test_a_rejection_stands_if_the_missing_answers_could_not_save_it(tmp_path: Path) -> None:
    hi, lo, _ = files(tmp_path, lost=100, dropped=0, from_hi=12)
    assert task(judge(hi, lo)).decision.outcome is Outcome.FAIL
    hi, lo, _ = files(tmp_path, lost=45, dropped=0, from_hi=60)  # found beyond the margin, and 60 could be gains
    assert task(judge(hi, lo)).decision.outcome is Outcome.UNDECIDED


def test_the_p_values_of_a_decision_are_those_of_the_worst_case(tmp_path: Path) -> None:
    whole, partly = (judge(*files(tmp_path / name, dropped=n)[:2]) for name, n in (("whole", 0), ("partly", 5)))
    again = [judge(hi, lo, again=a) for hi, lo, a in (files(tmp_path, dropped=0), files(tmp_path / "b", dropped=5))]
    assert whole.probes.num_probes == partly.probes.num_probes + 5
    assert task(again[0]).decision.p_admit < task(again[1]).decision.p_admit < 0.05


@pytest.mark.parametrize("dropped", [1, 100])
def test_nats_have_no_worst_case(dropped: int, tmp_path: Path) -> None:
    hi, lo, again = files(tmp_path, dropped=dropped)
    report = judge(hi, lo, again=again, agreed=contract("recorded"))
    decision = next(c for c in report.clauses if c.name == "fidelity").decision
    assert decision.outcome is Outcome.UNDECIDED and "nll has no worst case" in decision.reason


def test_an_empty_number_of_a_common_item_is_missing_too(tmp_path: Path) -> None:
    hi, lo, again = files(tmp_path)

    def omit(i: int, row: Row) -> None:
        if i < 60:
            row["correct"] = None

    report = judge(hi, write_jsonl(lo, rows(COUNT, change=omit)), again=again)
    assert task(report).decision.outcome is Outcome.UNDECIDED
    assert any("accuracy of 60 common items that one side alone has" in s for s in report.not_examined)

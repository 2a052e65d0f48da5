"""`diff` compares two stored reports, and its exit code says what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import quantaudit as qa
from quantaudit.core.diff import ReportDiff
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission, Verdict
from quantaudit.reporting import write_reports
from tests.cli.command import Command, interpret, is_one_line
from tests.reporting.sample import report
from tests.reporting.sample_clauses import clauses


@pytest.fixture
def told(quantaudit: Command) -> dict[str, AuditReport]:
    """A good report, a worse one, and one of other probes, in folders of these names."""
    good = report(Verdict(admission=Admission.ADMIT, sentence="ADMIT: all hold."), clauses(1.0), recipe="k3-w4a8")
    worse = report(
        Verdict(admission=Admission.INCONCLUSIVE, sentence="INCONCLUSIVE: two gates are undecided."),
        clauses(1.1, undecided=True),
        recipe="nvfp4",
    )
    other = good.model_copy(update={"probes": good.probes.model_copy(update={"probes_digest": "ab" * 32})})
    found = {"good": good, "worse": worse, "other": other}
    for name, stored in found.items():
        write_reports(stored, Path(name), ())
    return found


@pytest.mark.parametrize(
    ("old", "new", "code", "first"),
    [
        ("good", "good", 0, "NO REGRESSION  ADMIT"),
        ("good", "worse", 3, "REGRESSION  ADMIT -> INCONCLUSIVE"),
        ("worse", "good", 0, "NO REGRESSION  INCONCLUSIVE -> ADMIT"),
        ("good", "other", 4, "NOT COMPARABLE  ADMIT"),
    ],
)
def test_the_exit_code_says_what_came_of_it(
    old: str, new: str, code: int, first: str, told: dict[str, AuditReport], quantaudit: Command
) -> None:
    ended = quantaudit("diff", f"{old}/report.json", f"{new}/report.json")
    assert (ended.code, ended.err) == (code, "") and ended.out.splitlines()[0] == first


def test_json_is_all_that_is_on_stdout(told: dict[str, AuditReport], quantaudit: Command) -> None:
    ended = quantaudit("diff", "good/report.json", "worse/report.json", "--json")
    assert ended.code == 3 and ended.err == ""
    assert ReportDiff.from_json(ended.out) == qa.diff(told["good"], told["worse"])
    assert json.loads(ended.out)["kind"] == "diff"


def test_the_facade_takes_reports_and_paths(told: dict[str, AuditReport]) -> None:
    assert qa.diff("good/report.json", told["worse"]) == qa.diff(told["good"], Path("worse/report.json"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("good/report.json", "no.json"), "no.json cannot be read: no such file"),
        (("edited.json", "good/report.json"), "edited.json was changed after it was written"),
        (("good/report.json",), "Missing argument 'NEW'"),
    ],
)
def test_a_report_that_cannot_be_read_is_one_line(
    arguments: tuple[str, ...], said: str, told: dict[str, AuditReport], quantaudit: Command
) -> None:
    text = Path("good/report.json").read_text()
    Path("edited.json").write_text(text.replace('"ADMIT"', '"REJECT"', 1))
    ended = quantaudit("diff", *arguments)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err


def test_it_needs_no_torch(told: dict[str, AuditReport]) -> None:
    code = """
import sys
from quantaudit.cli.main import _run
code = _run(["diff", "good/report.json", "worse/report.json"])
print(code, sorted({"torch", "numpy", "pandas", "scipy", "jinja2"} & set(sys.modules)))
"""
    assert interpret(code, cwd=Path.cwd()).splitlines()[-1] == "3 []"

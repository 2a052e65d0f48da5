"""`report` renders a stored report again; the JSON is the source, and a fault leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission, Verdict
from quantaudit.reporting import write_reports
from tests.cli.command import Command, interpret, is_one_line
from tests.reporting.sample import report
from tests.reporting.sample_clauses import clauses


@pytest.fixture
def stored(quantaudit: Command) -> AuditReport:
    """A report in `out/`."""
    told = report(Verdict(admission=Admission.ADMIT, sentence="ADMIT: all hold."), clauses(1.0), recipe="k3-w4a8")
    write_reports(told, Path("out"), ())
    return told


def test_only_the_formats_that_are_asked_for_are_written(stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "--to", "json", "-o", "again")
    assert ended.code == 0 and ended.err == "" and "ADMIT" in ended.out
    assert [path.name for path in Path("again").iterdir()] == ["report.json"]
    assert Path("again/report.json").read_bytes() == Path("out/report.json").read_bytes()


def test_views_go_beside_the_report(stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "--to", " html, ")
    assert ended.code == 0 and "out/report.html" in ended.out
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html", "report.json"]


def test_json_is_all_that_is_on_stdout(stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "--to", "json", "--json")
    assert ended.err == "" and ended.out == Path("out/report.json").read_text()


@pytest.mark.parametrize(
    ("name", "starts"),
    [("html", "<!doctype html>"), ("md", "## ADMIT"), ("json", "{"), ("junit", "<?xml"), ("sarif", "{")],
)
def test_one_format_goes_to_stdout(name: str, starts: str, stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "--to", name, "-o", "-")
    assert (ended.code, ended.err) == (0, "") and ended.out.startswith(starts)
    assert [path.name for path in Path("out").iterdir()] == ["report.json"] and not Path("-").exists()


@pytest.mark.parametrize("name", ["a.html", "b.md", "c.json", "d.junit.xml", "e.sarif"])
def test_the_ending_of_a_file_says_the_format(name: str, stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "-o", f"new/{name}")
    assert ended.code == 0 and f"new/{name}" in ended.out
    assert Path("new", name).is_file() and not Path("new/report.json").exists()


def test_every_format_at_once(stored: AuditReport, quantaudit: Command) -> None:
    ended = quantaudit("report", "out/report.json", "--to", "json,md,html,junit,sarif", "-o", "all")
    assert ended.code == 0
    names = {path.name for path in Path("all").iterdir()}
    assert names >= {"report.json", "report.md", "report.html", "report.junit.xml", "report.sarif"}


def test_what_is_printed_can_be_read(stored: AuditReport, quantaudit: Command) -> None:
    Path("piped.json").write_text(quantaudit("report", "out/report.json", "--to", "json", "--json").out)
    assert quantaudit("report", "piped.json", "-o", "again").code == 0


def test_rendering_needs_no_torch(stored: AuditReport, tmp_path: Path) -> None:
    code = """
import sys
from quantaudit.cli.main import _run
code = _run(["report", "out/report.json", "--to", "html,md,junit,sarif,json"])
print(code, sorted({"torch", "scipy", "pandas"} & set(sys.modules)))
"""
    assert interpret(code, cwd=Path.cwd()).splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("out/report.json", "--to", "pdf"), "report format 'pdf'"),
        (("out/report.json", "-o", "out/report.json/below"), "cannot be written"),
        (("out/report.json", "-o", "-"), "no format for stdout; expected one format"),
        (("out/report.json", "--to", "md,html", "-o", "-"), "2 formats for stdout"),
        (("out/report.json", "--to", "md", "-o", "a.html"), "the file a.html for md; expected html"),
        (("edited.json",), "was changed after it was written"),
        (("out/no.json",), "no such file"),
        (("notes.txt",), "is no audit report"),
        (("out",), "cannot be read"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused(
    arguments: tuple[str, ...], said: str, stored: AuditReport, quantaudit: Command
) -> None:
    Path("notes.txt").write_text("not a report")
    Path("edited.json").write_text(Path("out/report.json").read_text().replace('"ADMIT"', '"REJECT"', 1))
    before = sorted(Path.cwd().rglob("*"))
    ended = quantaudit("report", *arguments)
    assert ended.code == 2 and ended.out == "" and is_one_line(ended.err) and said in ended.err
    assert sorted(Path.cwd().rglob("*")) == before

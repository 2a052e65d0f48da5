"""The terminal summary fits 25 lines and the width, says the verdict first, and obeys colour settings and pipes."""

from __future__ import annotations

import io

import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting.console import MAX_LINES, print_summary, render_console
from quantaudit.reporting.sentences import SAFETY_WARNING

SAMPLES = ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile"]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def crowd(report: AuditReport) -> AuditReport:
    """Returns the report with forty more clauses of different names, the thirtieth of which fails."""
    base = report.gates()[2]
    failing, passing = (base.decision.model_copy(update={"outcome": o}) for o in (Outcome.FAIL, Outcome.PASS))
    base = base.model_copy(update={"decision": passing})
    names = [f"custom-{i:02}" for i in range(40)]
    gates = [base.model_copy(update={"name": n, "clause": base.clause.model_copy(update={"name": n})}) for n in names]
    gates[29] = gates[29].model_copy(update={"decision": failing})
    return report.model_copy(update={"clauses": (*gates, *report.clauses)})


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [60, 72, 84, 100, 200])
def test_it_fits_the_screen(name: str, width: int, request: pytest.FixtureRequest) -> None:
    text = render_console(
        request.getfixturevalue(name), width=width, color=False, location="reports/runs/x/report.html"
    )
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= width
    assert text.isascii() and "\x1b" not in text and text.endswith("\n")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_is_the_first_word(name: str, request: pytest.FixtureRequest) -> None:
    report: AuditReport = request.getfixturevalue(name)
    assert render_console(report, width=80, color=False).split()[0] == report.verdict.admission.value


def test_it_repeats_the_verdict_and_never_makes_one(rejected: AuditReport) -> None:
    verdict = rejected.verdict.model_copy(update={"admission": Admission.ADMIT})
    claimed = rejected.model_copy(update={"verdict": verdict})
    assert render_console(claimed, width=80, color=False).startswith("ADMIT  ")


def test_many_clauses_keep_the_worst_and_count_the_rest(rejected: AuditReport, hostile: AuditReport) -> None:
    crowded = crowd(rejected)
    wordy = crowded.model_copy(
        update={"verdict": crowded.verdict.model_copy(update={"sentence": "word " * 200}), "controls": hostile.controls}
    )
    alarms = tuple(a.model_copy(update={"name": f"{a.name}-{'x' * 60}"}) for a in wordy.alarms())
    full = wordy.model_copy(update={"clauses": (*wordy.gates(), *alarms)})
    for width in (60, 80):
        lines = render_console(full, width=width, color=False, location="x" * 20).splitlines()
        assert len(lines) == MAX_LINES  # every part takes all the lines that it may
        assert any(line.startswith("custom-29") and line.endswith("FAIL") for line in lines)
        # 48 clauses, of which 40 are new; nine are shown, and the hidden ones are all new and pass.
        assert any(line.startswith("and 39 more gates, 39 of which pass") for line in lines)


def test_families_share_a_line_and_the_worst_speaks(undecided: AuditReport) -> None:
    lines = render_console(undecided, width=100, color=False).splitlines()
    task = [line for line in lines if line.startswith("task")]
    assert len(task) == 1
    assert task[0].startswith("task: two-step") and task[0].endswith("undecided x2")


def test_a_narrow_table_keeps_hi_and_lo(admitted: AuditReport) -> None:
    lines = render_console(admitted, width=60, color=False).splitlines()
    fidelity = next(line for line in lines if line.startswith("fidelity"))
    # Damage .0046 +- .0031 with three decimals and without leading zeros.
    assert fidelity.split() == ["fidelity", ".187", ".192", "+.005", "[.002,.008]", ".02", "pass"]


def test_safety_carries_its_warning_only_where_it_may_not_be_read(rejected: AuditReport, admitted: AuditReport) -> None:
    assert SAFETY_WARNING in render_console(rejected, width=120, color=False)
    assert SAFETY_WARNING[:15] not in render_console(admitted, width=120, color=False)


def test_alarms_controls_limits_place_and_digest_are_said(undecided: AuditReport) -> None:
    text = render_console(undecided, width=100, color=False, location="out/report.html")
    assert "alarms: expert-set-agreement\n" in text
    assert "controls: sensitivity undecided; 2 of 3 hold\n" in text
    assert "not examined: Generation beyond the taught answers; Contexts" in text
    assert "report: out/report.html\n" in text
    assert f"digest: {undecided.report_digest()}\n" in text


def test_an_unexamined_list_that_is_empty_claims_nothing(sparse: AuditReport) -> None:
    text = render_console(sparse, width=100, color=False)
    assert "not examined: the report does not say\n" in text
    assert "controls: none were run\n" in text


def test_a_pipe_gets_no_colour(admitted: AuditReport) -> None:
    stream = io.StringIO()
    print_summary(admitted, stream=stream)
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_colour(admitted: AuditReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    print_summary(admitted, stream=stream)
    assert stream.getvalue().startswith("\x1b[1;32mADMIT")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_may_refuse_colour(
    name: str, value: str, admitted: AuditReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    stream = Terminal()
    print_summary(admitted, stream=stream)
    assert "\x1b" not in stream.getvalue()


def test_colour_does_not_change_the_words(hostile: AuditReport) -> None:
    plain = render_console(hostile, width=80, color=False)
    colored = render_console(hostile, width=80, color=True)
    words = colored
    while "\x1b[" in words:
        start = words.index("\x1b[")
        words = words[:start] + words[words.index("m", start) + 1 :]
    assert words == plain


def test_a_path_that_the_stream_cannot_encode_is_escaped(admitted: AuditReport) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_summary(admitted, stream=stream, location="caf\u00e9/report.html")
    stream.seek(0)
    assert "report: caf\\xe9/report.html\n" in stream.read()

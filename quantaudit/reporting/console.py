"""The terminal summary: the verdict first, at most 25 lines, readable at 60 columns, ASCII but for the path.

Nothing here wraps freely: every part has a number of lines that it may take, and the sum of them is the limit.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.text import Text

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting.gate_table import GateLine, layout_gates
from quantaudit.reporting.plaintext import clip, show_hidden
from quantaudit.reporting.sentences import SAFETY_WARNING, repeat_warning, verdict_reason, warns_about_safety
from quantaudit.reporting.terminal import MAX_LINES, MIN_WIDTH, render_lines, to_ascii, write_lines

__all__ = ["MAX_LINES", "MIN_WIDTH", "print_summary", "render_console"]

_MOST_GATES = 10
_WARNING_LINES = 2
_SENTENCE_LINES = 3
_ALARM_LINES = 2
_VERDICT_STYLES = {Admission.ADMIT: "bold green", Admission.REJECT: "bold red", Admission.INCONCLUSIVE: "bold yellow"}
_OUTCOME_STYLES = {Outcome.PASS: "", Outcome.FAIL: "red", Outcome.UNDECIDED: "yellow"}


def render_console(report: AuditReport, *, width: int, color: bool, location: str | None = None) -> str:
    """Returns the summary, ending in a newline, at most 25 lines.

    Args:
        report: The report to show.
        width: Columns; fewer than 60 are taken as 60.
        color: Whether to write ANSI colours.
        location: Where the report was written, if it was.
    """
    columns = max(width, MIN_WIDTH)
    return render_lines(_lines(report, columns, location), width=columns, color=color)


def print_summary(report: AuditReport, *, stream: TextIO, location: str | None = None) -> None:
    """Writes the summary to a stream: coloured on a terminal only, and never where NO_COLOR is set."""
    write_lines(lambda width, color: render_console(report, width=width, color=color, location=location), stream)


def _lines(report: AuditReport, width: int, location: str | None) -> Iterable[Text]:
    yield _verdict_line(report, width)
    yield from _wrapped(verdict_reason(report.verdict), width, _SENTENCE_LINES)
    yield Text()
    warning = repeat_warning(report)
    most = _MOST_GATES - (_WARNING_LINES if warning else 0)
    yield from (_gate_text(g) for g in layout_gates(report.gates(), width=width, max_rows=most))
    if warns_about_safety(report):
        yield from _wrapped(SAFETY_WARNING, width, _WARNING_LINES, style="yellow")
    if warning:
        yield from _wrapped(warning, width, _WARNING_LINES, style="yellow")
    yield Text()
    yield from _wrapped(f"alarms: {_alarms(report)}", width, _ALARM_LINES)
    yield _one_line(f"controls: {_controls(report)}", width)
    yield _one_line(f"not examined: {_not_examined(report)}", width)
    if location is not None:
        yield Text(f"report: {show_hidden(location)}")
    yield Text(f"digest: {report.report_digest()[: min(64, width - 8)]}", style="dim")


def _verdict_line(report: AuditReport, width: int) -> Text:
    admission = report.verdict.admission
    rest = to_ascii(f"  {report.lo.label} against {report.hi.label}")
    text = Text(admission.value, style=_VERDICT_STYLES[admission])
    return text.append(clip(rest, width - len(admission.value)), style="not bold default")


def _gate_text(line: GateLine) -> Text:
    style = "dim" if line.outcome is None else _OUTCOME_STYLES[line.outcome]
    return Text(to_ascii(line.text), style=style)


def _alarms(report: AuditReport) -> str:
    alarms = report.alarms()
    fired = [a.name for a in alarms if a.decision.outcome is Outcome.FAIL]
    displaced = [f"{c.name} (displacement)" for c in report.clauses if c.decision.is_displacement]
    if not alarms and not displaced:
        return "none in this contract"
    if not fired and not displaced:
        return f"none of {len(alarms)} fired"
    return ", ".join([*fired, *displaced])


def _controls(report: AuditReport) -> str:
    controls = report.controls
    if not controls:
        return "none were run"
    words = {Outcome.FAIL: "failed", Outcome.UNDECIDED: "undecided"}
    broken = [f"{c.name} {words[c.outcome]}" for c in controls if c.outcome in words]
    if broken:
        return f"{', '.join(broken)}; {len(controls) - len(broken)} of {len(controls)} hold"
    return f"all {len(controls)} hold ({', '.join(c.name for c in controls)})"


def _not_examined(report: AuditReport) -> str:
    return "; ".join(line.rstrip(".") for line in report.not_examined) or "the report does not say"


def _wrapped(text: str, width: int, most_lines: int, *, style: str = "") -> list[Text]:
    lines = textwrap.wrap(to_ascii(text), width) or [""]
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], clip(" ".join(lines[most_lines - 1 :]), width)]
    return [Text(line, style=style) for line in lines]


def _one_line(text: str, width: int) -> Text:
    return Text(clip(to_ascii(text), width))

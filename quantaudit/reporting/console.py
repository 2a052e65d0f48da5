"""The terminal summary: the verdict first, at most 25 lines, readable at 60 columns, ASCII but for the path.

Nothing here wraps freely: every part has a number of lines that it may take, and the sum of them is the limit.
"""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Admission
from quantaudit.reporting.gate_table import GateLine, layout_gates
from quantaudit.reporting.plaintext import clip, show_hidden
from quantaudit.reporting.sentences import SAFETY_WARNING, verdict_reason, warns_about_safety

MAX_LINES = 25
MIN_WIDTH = 60
_PIPE_WIDTH = 100
_MOST_GATES = 10
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
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, MIN_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        _environ={},
    )
    for line in _lines(report, max(width, MIN_WIDTH), location):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)
    return buffer.getvalue()


def print_summary(report: AuditReport, *, stream: TextIO, location: str | None = None) -> None:
    """Writes the summary to a stream: coloured on a terminal only, and never where NO_COLOR is set."""
    is_terminal = stream.isatty()
    width = shutil.get_terminal_size((_PIPE_WIDTH, MAX_LINES)).columns if is_terminal else _PIPE_WIDTH
    is_colored = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = render_console(report, width=width, color=is_colored, location=location)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _lines(report: AuditReport, width: int, location: str | None) -> Iterable[Text]:
    yield _verdict_line(report, width)
    yield from _wrapped(verdict_reason(report.verdict), width, _SENTENCE_LINES)
    yield Text()
    yield from (_gate_text(g) for g in layout_gates(report.gates(), width=width, max_rows=_MOST_GATES))
    if warns_about_safety(report):
        yield from _wrapped(SAFETY_WARNING, width, 2, style="yellow")
    yield Text()
    yield from _wrapped(f"alarms: {_alarms(report)}", width, _ALARM_LINES)
    yield _one_line(f"controls: {_controls(report)}", width)
    yield _one_line(f"not examined: {_not_examined(report)}", width)
    if location is not None:
        yield Text(f"report: {show_hidden(location)}")
    yield Text(f"digest: {report.report_digest()[: min(64, width - 8)]}", style="dim")


def _verdict_line(report: AuditReport, width: int) -> Text:
    admission = report.verdict.admission
    rest = _ascii(f"  {report.lo.label} against {report.hi.label}")
    text = Text(admission.value, style=_VERDICT_STYLES[admission])
    return text.append(clip(rest, width - len(admission.value)), style="not bold default")


def _gate_text(line: GateLine) -> Text:
    style = "dim" if line.outcome is None else _OUTCOME_STYLES[line.outcome]
    return Text(_ascii(line.text), style=style)


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
    lines = textwrap.wrap(_ascii(text), width) or [""]
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], clip(" ".join(lines[most_lines - 1 :]), width)]
    return [Text(line, style=style) for line in lines]


def _one_line(text: str, width: int) -> Text:
    return Text(clip(_ascii(text), width))


def _ascii(text: str) -> str:
    """Returns the text in ASCII: no terminal or pipe can fail to encode it, and every character is one column."""
    return show_hidden(text).encode("ascii", "backslashreplace").decode("ascii")

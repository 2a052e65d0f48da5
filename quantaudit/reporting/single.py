"""Writes one view of a report: to a path, whose ending says which, or as text for a pipe."""

from __future__ import annotations

from pathlib import Path

from quantaudit import reporting
from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import write_atomically

FORMATS = {".json": "json", ".md": "md", ".html": "html", ".xml": "junit", ".sarif": "sarif"}


def write_report(report: AuditReport, path: Path) -> None:
    """Writes the report as .json, .md, .html, .xml (JUnit) or .sarif.

    Raises:
        InputError: If the ending is another.
    """
    if path.suffix not in FORMATS:
        raise InputError(
            f"a report named {path.name!r}",
            expected="a name ending in .json, .md, .html, .xml (JUnit) or .sarif",
            fix="rename it",
        )
    files = reporting.render_files(report, reporting.parse_format(FORMATS[path.suffix]), path)
    for file, data in files.items():
        write_atomically(file, data)


def render_text(report: AuditReport, format: str) -> str:
    """Returns one view as text that needs no file beside it: markdown is without its charts.

    Args:
        report: The report to show.
        format: "json", "md", "html", "junit" or "sarif".

    Raises:
        InputError: If there is no such format.
    """
    chosen = reporting.parse_format(format)
    if chosen is reporting.ReportFormat.MARKDOWN:
        return reporting.render_markdown(report)
    (data,) = reporting.render_files(report, chosen, Path("report")).values()
    return data.decode()

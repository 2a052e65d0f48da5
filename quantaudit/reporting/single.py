"""Writes one view of a report to a path; the ending says which."""

from __future__ import annotations

from pathlib import Path

from quantaudit import reporting
from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import write_atomically


def write_report(report: AuditReport, path: Path) -> None:
    """Writes the report as .json, .md or .html.

    Raises:
        InputError: If the ending is another.
    """
    match path.suffix:
        case ".json":
            write_atomically(path, report.to_json().encode())
        case ".md":
            reporting.write_markdown(report, path)
        case ".html":
            write_atomically(path, reporting.render_html(report).encode())
        case _:
            raise InputError(
                f"a report named {path.name!r}", expected="a name ending in .json, .md or .html", fix="rename it"
            )

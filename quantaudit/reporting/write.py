"""Writes a report: the JSON always, the views asked for beside it, each file whole or not at all.

Every view is made before the first file is written, so a view that cannot be made leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import write_atomically
from quantaudit.reporting.html import render_html
from quantaudit.reporting.junit import render_junit
from quantaudit.reporting.markdown import render_markdown_files
from quantaudit.reporting.sarif import render_sarif
from quantaudit.reporting.stored import to_stored_json

_STEM = "report"


class ReportFormat(StrEnum):
    """What a report can be written as."""

    JSON = "json"
    MARKDOWN = "md"
    HTML = "html"
    JUNIT = "junit"
    SARIF = "sarif"


ENDINGS = {
    ReportFormat.JSON: ".json",
    ReportFormat.MARKDOWN: ".md",
    ReportFormat.HTML: ".html",
    ReportFormat.JUNIT: ".junit.xml",
    ReportFormat.SARIF: ".sarif",
}


def write_reports(report: AuditReport, directory: Path, formats: Iterable[str]) -> dict[str, Path]:
    """Writes `report.json` and the views asked for into a directory, which is made if needed.

    Args:
        report: The report to write.
        directory: Where to.
        formats: "json", "md", "html", "junit", "sarif"; the JSON is written whether it is named or not.

    Returns:
        The main file of every format, the JSON first.

    Raises:
        InputError: If a format is unknown; nothing is written then.
    """
    wanted = dict.fromkeys((ReportFormat.JSON, *(parse_format(f) for f in formats)))
    paths = {f.value: directory / f"{_STEM}{ENDINGS[f]}" for f in wanted}
    files = {path: data for f in wanted for path, data in render_files(report, f, paths[f.value]).items()}
    for path, data in files.items():
        write_atomically(path, data)
    return paths


def render_files(report: AuditReport, format: ReportFormat, path: Path) -> dict[Path, bytes]:
    """Returns the files of one view, in the order in which they are written: pictures before the page that shows them.

    Args:
        report: The report to show.
        format: Which view.
        path: Its main file.
    """
    match format:
        case ReportFormat.JSON:
            return {path: to_stored_json(report).encode()}
        case ReportFormat.MARKDOWN:
            return render_markdown_files(report, path)
        case ReportFormat.HTML:
            return {path: render_html(report).encode()}
        case ReportFormat.JUNIT:
            return {path: render_junit(report).encode()}
        case ReportFormat.SARIF:
            return {path: render_sarif(report).encode()}


def parse_format(name: str) -> ReportFormat:
    """Returns the format of a name.

    Raises:
        InputError: If there is none.
    """
    try:
        return ReportFormat(name)
    except ValueError as error:
        raise InputError(
            f"the report format {name!r}",
            expected=f"one of {', '.join(f.value for f in ReportFormat)}",
            fix="name one of these",
        ) from error

"""Writes a report: the JSON always, the views asked for beside it, each file whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import write_atomically
from quantaudit.reporting.html import render_html
from quantaudit.reporting.markdown import write_markdown

_STEM = "report"


class ReportFormat(StrEnum):
    """What a report can be written as; the value is the file's ending."""

    JSON = "json"
    MARKDOWN = "md"
    HTML = "html"


def write_reports(report: AuditReport, directory: Path, formats: Iterable[str]) -> dict[str, Path]:
    """Writes `report.json` and the views asked for into a directory, which is made if needed.

    Args:
        report: The report to write.
        directory: Where to.
        formats: Endings: "json", "md", "html"; the JSON is written whether it is named or not.

    Returns:
        The main file of every format, the JSON first.

    Raises:
        InputError: If a format is unknown; nothing is written then.
    """
    wanted = [ReportFormat.JSON, *(_parse(f) for f in formats)]
    page = render_html(report) if ReportFormat.HTML in wanted else None
    paths = {f.value: directory / f"{_STEM}.{f.value}" for f in wanted}
    write_atomically(paths[ReportFormat.JSON], report.to_json().encode())
    if ReportFormat.MARKDOWN in wanted:
        write_markdown(report, paths[ReportFormat.MARKDOWN])
    if page is not None:
        write_atomically(paths[ReportFormat.HTML], page.encode())
    return paths


def _parse(name: str) -> ReportFormat:
    try:
        return ReportFormat(name)
    except ValueError as error:
        raise InputError(
            f"report format {name!r}",
            expected=f"one of {', '.join(f.value for f in ReportFormat)}",
            fix="name one of these",
        ) from error

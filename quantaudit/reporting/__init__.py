"""Views of an audit report: console, markdown, HTML, JUnit, SARIF. The report is their only input; none judges it.

Names load when first used, so that a console summary does not wait for the other views; torch is never imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.reporting.charts import Chart, build_charts, to_svg
    from quantaudit.reporting.console import print_summary, render_console
    from quantaudit.reporting.diff import diff_reports
    from quantaudit.reporting.diff_text import print_diff, render_diff
    from quantaudit.reporting.export import export_report
    from quantaudit.reporting.html import render_html
    from quantaudit.reporting.junit import render_junit
    from quantaudit.reporting.markdown import render_markdown
    from quantaudit.reporting.read import read_report
    from quantaudit.reporting.sarif import render_sarif
    from quantaudit.reporting.stored import to_stored_json
    from quantaudit.reporting.write import ReportFormat, parse_format, render_files, write_reports

__all__ = [
    "Chart",
    "ReportFormat",
    "build_charts",
    "diff_reports",
    "export_report",
    "parse_format",
    "print_diff",
    "print_summary",
    "read_report",
    "render_console",
    "render_diff",
    "render_files",
    "render_html",
    "render_junit",
    "render_markdown",
    "render_sarif",
    "to_stored_json",
    "to_svg",
    "write_reports",
]

_HOMES = {
    "Chart": "charts",
    "ReportFormat": "write",
    "build_charts": "charts",
    "diff_reports": "diff",
    "export_report": "export",
    "parse_format": "write",
    "print_diff": "diff_text",
    "print_summary": "console",
    "read_report": "read",
    "render_console": "console",
    "render_diff": "diff_text",
    "render_files": "write",
    "render_html": "html",
    "render_junit": "junit",
    "render_markdown": "markdown",
    "render_sarif": "sarif",
    "to_stored_json": "stored",
    "to_svg": "charts",
    "write_reports": "write",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Views of an audit report: console, markdown, HTML. The report is the only input; no view computes a verdict.

Names load when first used, so that a console summary waits for neither the charts nor their JavaScript; torch is
never imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.reporting.charts import Chart, build_charts, to_svg
    from quantaudit.reporting.console import print_summary, render_console
    from quantaudit.reporting.html import render_html
    from quantaudit.reporting.markdown import render_markdown, write_markdown
    from quantaudit.reporting.read import read_report
    from quantaudit.reporting.write import ReportFormat, write_reports

__all__ = [
    "Chart",
    "ReportFormat",
    "build_charts",
    "print_summary",
    "read_report",
    "render_console",
    "render_html",
    "render_markdown",
    "to_svg",
    "write_markdown",
    "write_reports",
]

_HOMES = {
    "Chart": "charts",
    "ReportFormat": "write",
    "build_charts": "charts",
    "print_summary": "console",
    "read_report": "read",
    "render_console": "console",
    "render_html": "html",
    "render_markdown": "markdown",
    "to_svg": "charts",
    "write_markdown": "markdown",
    "write_reports": "write",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

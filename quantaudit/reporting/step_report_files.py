"""Writes the report of a run under audit beside its log: markdown with its charts, and the HTML page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quantaudit.core.errors import InputError
from quantaudit.core.rl_run import RlResult
from quantaudit.core.serial import write_atomically
from quantaudit.core.step_log import Event
from quantaudit.reporting.chart import to_svg
from quantaudit.reporting.palette import LIGHT
from quantaudit.reporting.step_report import tell_story
from quantaudit.reporting.step_report_charts import build_run_charts
from quantaudit.reporting.step_report_html import render_run_html
from quantaudit.reporting.step_report_markdown import render_run_markdown

RUN_FORMATS = ("md", "html")


def write_run_reports(
    events: Iterable[Event],
    directory: Path,
    formats: Iterable[str] = RUN_FORMATS,
    *,
    result: RlResult | None = None,
) -> dict[str, Path]:
    """Writes `run.md` with its pictures, and `run.html`; returns the main file of every format.

    Args:
        events: The log.
        directory: Where to; made if needed.
        formats: "md", "html".
        result: What training was good for, where it was measured.

    Raises:
        InputError: If a format is unknown; nothing is written then.
        NotMeasuredError: If no step was finished.
    """
    told, wanted = tuple(events), tuple(formats)
    for name in wanted:
        if name not in RUN_FORMATS:
            raise InputError(f"the report format {name!r}", expected="md or html", fix="name one of these")
    files: dict[Path, bytes] = {}
    paths: dict[str, Path] = {}
    if "md" in wanted:
        charts = build_run_charts(tell_story(told), LIGHT)
        pictures = [(chart.title, f"run.{chart.name}.svg") for chart in charts]
        for chart, (_, name) in zip(charts, pictures, strict=True):
            files[directory / name] = to_svg(chart, ground=LIGHT.card, has_title=True).encode()
        paths["md"] = directory / "run.md"
        files[paths["md"]] = render_run_markdown(told, pictures=pictures, result=result).encode()
    if "html" in wanted:
        paths["html"] = directory / "run.html"
        files[paths["html"]] = render_run_html(told, result).encode()
    for path, data in files.items():
        write_atomically(path, data)
    return paths

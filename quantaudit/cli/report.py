"""`quantaudit report`: render a stored report again, without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def report(
    file: Path = typer.Argument(help="A report.json of an earlier run."),
    to: str = typer.Option("html,md", help="Formats, separated by commas: html, md, json."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Folder; that of FILE if left out."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON on stdout, and nothing else."),
) -> None:
    """Render a report again; the JSON is the source."""
    from quantaudit.reporting import print_summary, read_report, write_reports

    stored = read_report(file)
    paths = write_reports(stored, output or file.parent, [name.strip() for name in to.split(",") if name.strip()])
    if as_json:
        sys.stdout.write(stored.to_json())
        return
    print_summary(stored, stream=sys.stdout, location=str(paths.get("html", paths["json"])))

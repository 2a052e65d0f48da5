"""`quantaudit report`: render a stored report again, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report.json of an earlier run.")],
    to: Annotated[
        str, typer.Option(metavar="FORMATS", help="Formats, separated by commas: html, md, json.")
    ] = "html,md",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder to write to; that of FILE if left out.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON on stdout, and nothing else.")
    ] = False,
) -> None:
    """Render a report again; the JSON is the source."""
    from quantaudit.reporting import read_report

    stored = read_report(file)

    # Only now: a wrong path does not wait for the charts.
    from quantaudit.api import check_output, save
    from quantaudit.reporting import print_summary

    folder = output or file.parent
    check_output(folder)
    paths = save(stored, folder, [name.strip() for name in to.split(",") if name.strip()])
    if as_json:
        sys.stdout.write(stored.to_json())
        return
    print_summary(stored, stream=sys.stdout, location=str(paths.get("html", paths["json"])))

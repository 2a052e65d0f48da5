"""`quantaudit report`: render a stored report again, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

_DEFAULT = "html,md"


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report.json of an earlier run.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMATS",
            help=f"Formats, separated by commas: html, md, json, junit, sarif; {_DEFAULT} if left out.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Folder to write to, that of FILE if left out; or a file, whose ending says the format "
            "(.html, .md, .json, .xml, .sarif); or - to print one format on stdout.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON on stdout, and nothing else.")
    ] = False,
) -> None:
    """Render a report again; the JSON is the source, and one that was edited is refused."""
    from quantaudit.reporting import read_report

    stored = read_report(file)

    # Only now: a wrong path does not wait for the views.
    from quantaudit.reporting import export_report, print_summary, to_stored_json

    formats = None if to is None else [name.strip() for name in to.split(",") if name.strip()]
    exported = export_report(stored, output or file.parent, formats)
    if exported.text is not None:
        sys.stdout.write(exported.text)
    elif as_json:
        sys.stdout.write(to_stored_json(stored))
    else:
        print_summary(stored, stream=sys.stdout, location=str(exported.main))

"""`quantaudit diff`: what changed between two reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The report.json to compare with.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The report.json that may have got worse.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the difference as JSON on stdout, and nothing else.")
    ] = False,
) -> int:
    """Compare two reports: verdict, gates, changed answers, and what both were made of.

    Exit 0 without a regression; 3 if the verdict, a gate's outcome, or damage beyond both intervals got worse; 4 if
    contract or probes differ, so that the numbers cannot be compared.
    """
    from quantaudit.reporting import print_diff
    from quantaudit.reporting.diff import diff as diff_files

    found = diff_files(old, new)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        print_diff(found, stream=sys.stdout)
    return int(found.exit_code)

"""`quantaudit inspect`: which experts really are low-bit."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def inspect(
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CKPT", help="Checkpoint folder; the embedded model if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the map as JSON on stdout, and nothing else.")] = False,
) -> int:
    """Show the realised precision of every expert matrix, from the headers alone."""
    from quantaudit.api import inspect as inspect_checkpoint
    from quantaudit.cli.precision_table import print_precision
    from quantaudit.core.verdict import ExitCode

    precision = inspect_checkpoint(checkpoint)
    if as_json:
        sys.stdout.write(precision.to_json())
    else:
        print_precision(precision)
    return int(ExitCode.PASS if precision.as_declared else ExitCode.REJECTED)

"""`quantaudit inspect`: which experts really are low-bit."""

from __future__ import annotations

import sys

import typer

from quantaudit.core.verdict import ExitCode


def inspect(
    checkpoint: str | None = typer.Argument(None, help="Checkpoint folder; the embedded model if left out."),
    as_json: bool = typer.Option(False, "--json", help="Print the map as JSON on stdout, and nothing else."),
) -> int:
    """Show the realised precision of every expert matrix, from the headers alone."""
    from quantaudit.api import inspect as inspect_checkpoint
    from quantaudit.cli.precision_table import print_precision

    precision = inspect_checkpoint(checkpoint)
    if as_json:
        sys.stdout.write(precision.to_json())
    else:
        print_precision(precision)
    return int(ExitCode.PASS if precision.as_declared else ExitCode.REJECTED)

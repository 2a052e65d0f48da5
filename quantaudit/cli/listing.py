"""`quantaudit list` and `quantaudit show`: what there is, and the whole of one thing."""

from __future__ import annotations

import sys

import typer


def list_kind(
    kind: str = typer.Argument(help="schemes, recipes, contracts, observers or probes."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON on stdout, and nothing else."),
) -> None:
    """List what is registered, with where it comes from."""
    from quantaudit.api import list_entries
    from quantaudit.cli.entries import print_entries

    entries = list_entries(kind)
    if as_json:
        from quantaudit.core.serial import canonical_bytes

        sys.stdout.write(canonical_bytes([entry.model_dump() for entry in entries]).decode() + "\n")
    else:
        print_entries(entries)


def show(
    kind: str = typer.Argument(help="scheme, recipe or contract."),
    name: str = typer.Argument(help="Its name."),
) -> None:
    """Show the whole of one scheme, recipe or contract, as JSON with its digest."""
    from quantaudit.api import describe

    sys.stdout.write(describe(kind, name))

"""`quantaudit list` and `quantaudit show`: what there is, and the whole of one thing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

_KINDS = "schemes, recipes, contracts, observers, probes or backends."


def list_kind(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
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
    kind: Annotated[str, typer.Argument(metavar="KIND", help="scheme, recipe, contract or backend.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Its name, or the path of a TOML file; for a backend, or one quantizer of it as in torchao:nvfp4.",
        ),
    ],
) -> None:
    """Show the whole of one scheme, recipe or contract, as JSON with its digest; or what a backend offers."""
    from quantaudit.api import describe

    sys.stdout.write(describe(kind, name))

"""`quantaudit contract`: what a contract asks for, where that comes from, and whether probes can decide it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

contract = typer.Typer(
    help="Check, show and list contracts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="CONTRACT", help="A name or a TOML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]


@contract.command(short_help="Tell which gates a probe set can decide.")
def check(
    name: Name = "default",
    probes: Annotated[str, typer.Option("--probes", metavar="PROBES", help="Probe set.")] = "world/audit",
    earlier: Annotated[
        Path | None,
        typer.Option("--from", metavar="REPORT", help="A report.json whose flips and spreads replace assumptions."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Tell which gates a probe set can decide, before anything is run.

    Exit code 0 if all of them, 4 if some cannot.
    """
    from quantaudit.api import check_contract
    from quantaudit.cli.contract_table import print_check
    from quantaudit.core.verdict import ExitCode

    found = check_contract(name, probes=probes, earlier=earlier)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        print_check(found)
    return int(ExitCode.INCONCLUSIVE if found.undecidable else ExitCode.PASS)


@contract.command(short_help="Show a contract with all that it inherits.")
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a contract with all that it inherits, as TOML.

    A comment says which contract each value comes from.
    """
    from quantaudit.cli.contract_toml import write_toml
    from quantaudit.core.recipe_file import resolve_contract

    resolved = resolve_contract(name)
    sys.stdout.write(resolved.to_json() if as_json else write_toml(resolved))


@contract.command(name="list", short_help="List the bundled contracts.")
def list_contracts(as_json: AsJson = False) -> None:
    """List the bundled contracts."""
    from quantaudit.cli.listing import list_kind

    list_kind("contracts", as_json=as_json)

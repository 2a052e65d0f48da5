"""`quantaudit recipe`: the library of recipes, and what a repair is worth."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

_RUNS = Path("reports") / "runs"

recipe = typer.Typer(
    help="List, show and run recipes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A name or a TOML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]


@recipe.command(name="list", short_help="List the bundled recipes.")
def list_recipes(as_json: AsJson = False) -> None:
    """List the bundled recipes."""
    from quantaudit.cli.listing import list_kind

    list_kind("recipes", as_json=as_json)


@recipe.command(short_help="Show the whole of a recipe, as JSON.")
def show(name: Name) -> None:
    """Show the whole of a recipe, as JSON with its digest."""
    from quantaudit.api import describe

    sys.stdout.write(describe("recipe", name))


@recipe.command(short_help="Train a recipe's repair and audit before and after.")
def run(
    name: Name,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Checkpoint folder; the embedded model if left out.")
    ] = None,
    contract: Annotated[
        str, typer.Option("--contract", metavar="CONTRACT", help="What each arm must meet: a name or a TOML file.")
    ] = "default",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Decides the items; the recipe's if left out.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads of the audits; training takes one.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Folder of everything; one that holds a run goes on with it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe's repair and audit before and after.

    Three arms are audited against the model as it was given: rounded to
    nearest, the control (the same steps without fake quantization, then
    rounded), and the repaired model, which is exported as a checkpoint.
    Training never reads the probes that judge. A recipe with GPTQ trains
    nothing, and rounding to nearest is its control.
    """
    from quantaudit.api import check_output, run_recipe
    from quantaudit.cli.progress import StageProgress
    from quantaudit.reporting.recipe_run import summarize_recipe_run

    folder = output or _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-recipe-{Path(name).stem}"
    check_output(folder)
    with StageProgress() as progress:
        found = run_recipe(name, model, output=folder, contract=contract, seed=seed, threads=threads, progress=progress)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        sys.stdout.write(summarize_recipe_run(found) + f"report: {folder / 'recipe.md'}\n")

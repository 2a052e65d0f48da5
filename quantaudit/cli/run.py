"""`quantaudit run`: the audit."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

_RUNS = Path("reports") / "runs"


def run(
    hi: Annotated[
        str | None,
        typer.Argument(metavar="HI", help="Checkpoint folder of the reference; the embedded model if left out."),
    ] = None,
    lo: Annotated[str | None, typer.Option(metavar="PATH", help="Checkpoint folder of the deployment.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="Makes the deployment from HI, instead of --lo: a name or a TOML file."),
    ] = None,
    contract: Annotated[
        str, typer.Option(metavar="CONTRACT", help="What the deployment must meet: a name or a TOML file.")
    ] = "default",
    probes: Annotated[str, typer.Option(metavar="PROBES", help="Probe set.")] = "world/audit",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads; the free cores if left out.")] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Probes that share a forward.")] = 96,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the report; one in reports/runs if left out."),
    ] = None,
    show_restricted: Annotated[
        bool, typer.Option("--show-restricted", help="Write out the text of restricted probes.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON on stdout, and nothing else.")
    ] = False,
) -> int:
    """Audit a deployment against its reference.

    Without arguments, the embedded model under k3-w4a8.
    """
    from quantaudit.api import audit, check_output, save
    from quantaudit.cli.progress import StageProgress
    from quantaudit.reporting import print_summary

    check_output(output or _RUNS)
    with StageProgress() as progress:
        report = audit(
            hi,
            lo=lo,
            recipe=recipe,
            contract=contract,
            probes=probes,
            device=device,
            threads=threads,
            batch_size=batch_size,
            show_restricted=show_restricted,
            progress=progress,
        )
    paths = save(report, output or _new_folder(report.lo.label), ("md", "html"))
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        print_summary(report, stream=sys.stdout, location=str(paths["html"]))
    return int(report.verdict.exit_code)


def _new_folder(source: str) -> Path:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in source.rsplit(" ", 1)[-1])
    return _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"

"""`quantaudit run`: the audit."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import typer


def run(
    hi: str | None = typer.Argument(None, help="Checkpoint folder of the reference; the embedded model if left out."),
    lo: str | None = typer.Option(None, help="Checkpoint folder of the deployment."),
    recipe: str | None = typer.Option(None, help="Recipe that makes the deployment from HI: a name or a TOML file."),
    contract: str = typer.Option("default", help="Contract it must meet: a name or a TOML file."),
    probes: str = typer.Option("world/audit", help="Probe set."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    threads: int | None = typer.Option(None, help="CPU threads; the free cores if left out."),
    batch_size: int = typer.Option(96, help="Probes that share a forward."),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="Folder of the report; a new one under reports/runs/ if left out."
    ),
    show_restricted: bool = typer.Option(False, "--show-restricted", help="Write out the text of restricted probes."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON on stdout, and nothing else."),
) -> int:
    """Audit a deployment against its reference; without arguments, the embedded model under k3-w4a8."""
    from quantaudit.api import audit
    from quantaudit.cli.progress import StageProgress
    from quantaudit.reporting import print_summary, write_reports

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
    folder = output or _new_folder(report.lo.source)
    paths = write_reports(report, folder, ("md", "html"))
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        print_summary(report, stream=sys.stdout, location=str(paths["html"]))
    return int(report.verdict.exit_code)


def _new_folder(source: str) -> Path:
    name = "".join(c if c.isalnum() or c == "-" else "-" for c in source.rsplit(" ", 1)[-1])
    return Path("reports") / "runs" / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"

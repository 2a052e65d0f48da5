"""`quantaudit run`: the audit."""

from __future__ import annotations

import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_RUNS = Path("reports") / "runs"
_KEPT = ".controls"  # beside the folders of the reports; a name with a dot is no report


class ControlsFrom(StrEnum):
    """Where the controls of a run come from."""

    RUN = "run"
    CACHED = "cached"


Hi = Annotated[
    str | None,
    typer.Argument(metavar="HI", help="Checkpoint folder of the reference; the embedded model if left out."),
]
Lo = Annotated[str | None, typer.Option("--lo", metavar="PATH", help="Checkpoint folder of the deployment.")]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="RECIPE", help="Makes the deployment from HI, instead of --lo: a name or a TOML file."
    ),
]
ContractName = Annotated[
    str,
    typer.Option("--contract", metavar="CONTRACT", help="What the deployment must meet: a name or a TOML file."),
]
Probes = Annotated[str, typer.Option("--probes", metavar="PROBES", help="Probe set.")]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads; the free cores if left out.")]
BatchSize = Annotated[int, typer.Option("--batch-size", metavar="N", help="Probes that share a forward.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Folder of the report; one in reports/runs if left out."),
]
Controls = Annotated[
    ControlsFrom,
    typer.Option(
        "--controls",
        help="run: measured in this run; cached: of an earlier run of equal digests, if there is one beside it.",
    ),
]
ShowRestricted = Annotated[bool, typer.Option("--show-restricted", help="Write out the text of restricted probes.")]
StopEarly = Annotated[
    bool,
    typer.Option("--stop-early", help="Reject before the last probe where the evidence is strong; never admits early."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout, and nothing else.")]


def run(
    hi: Hi = None,
    lo: Lo = None,
    recipe: RecipeName = None,
    contract: ContractName = "default",
    probes: Probes = "world/audit",
    device: Device = "auto",
    threads: Threads = None,
    batch_size: BatchSize = 96,
    output: Output = None,
    controls: Controls = ControlsFrom.RUN,
    stop_early: StopEarly = False,
    show_restricted: ShowRestricted = False,
    as_json: AsJson = False,
) -> int:
    """Audit a deployment against its reference.

    Without arguments, the embedded model under k3-w4a8.
    """
    from quantaudit.api import audit, check_output, note_earlier_audits, save
    from quantaudit.cli.progress import StageProgress
    from quantaudit.reporting import print_summary, to_stored_json

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
            controls_folder=(output or _RUNS / "new").parent / _KEPT if controls is ControlsFrom.CACHED else None,
            stop_early=stop_early,
            progress=progress,
        )
    folder = output or _new_folder(report.lo.label)
    report = note_earlier_audits(report, folder)
    paths = save(report, folder, ("md", "html"))
    if as_json:
        sys.stdout.write(to_stored_json(report))
    else:
        print_summary(report, stream=sys.stdout, location=str(paths["html"]))
    return int(report.verdict.exit_code)


def _new_folder(source: str) -> Path:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in source.rsplit(" ", 1)[-1])
    return _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"

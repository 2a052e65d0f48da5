"""`quantaudit simulate rl`: reinforcement learning with a check at every step."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quantaudit.core.rl_run import RlRun

_RUNS = Path("reports") / "runs"

Model = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Checkpoint folder; the embedded model if left out.")
]
RecipeName = Annotated[str, typer.Option("--recipe", metavar="RECIPE", help="A name or a TOML file.")]
Steps = Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps; 200 if nothing says otherwise.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Decides items and draws.")]
Settings = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="TOML or JSON file of everything else.")
]
Inject = Annotated[
    list[str] | None,
    typer.Option("--inject", metavar="NAME@STEP[:key=value,...]", help="Plant a mismatch; may be given several times."),
]
Confirm = Annotated[
    int | None,
    typer.Option(
        "--confirm",
        metavar="N",
        min=0,
        help="Prompts never looked at during the run, asked at its end; 200 if nothing says otherwise.",
    ),
]
CheckEvery = Annotated[int, typer.Option("--check-every", metavar="N", min=1, help="Check every n-th step.")]
CheckPeriod = Annotated[
    int, typer.Option("--check-period", metavar="P", min=1, help="A check looks at every p-th expert, in turn.")
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Folder of the run; one in reports/runs if left out."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on stdout, and nothing else.")]


def rl(
    model: Model = None,
    recipe: RecipeName = "k3-w4a8",
    steps: Steps = None,
    seed: Seed = None,
    settings: Settings = None,
    inject: Inject = None,
    check_every: CheckEvery = 1,
    check_period: CheckPeriod = 1,
    confirm: Confirm = None,
    output: Output = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> int:
    """Train by reinforcement with a check at every step.

    The trainer keeps masters and fake-quantizes; the rollout engine is a process of its own. Every step compares their
    weights on three sides and a canary batch bit for bit, and the log-probability gap with its floor.

    Exit 0 if all steps are clean; 3 if a mismatch was found; 4 if something was not checked.
    """
    from quantaudit.api import check_output, simulate_rl
    from quantaudit.cli.progress import StageProgress
    from quantaudit.core.errors import InputError

    if resume and output is None:
        raise InputError("--resume without a folder", expected="-o DIR, the folder of the run", fix="add -o DIR")
    folder = output or _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-rl-{Path(recipe).stem}"
    check_output(folder)
    with StageProgress() as progress:
        outcome = simulate_rl(
            model,
            output=folder,
            recipe=recipe,
            settings=settings,
            steps=steps,
            seed=seed,
            inject=inject or (),
            check_every=check_every,
            check_period=check_period,
            confirm=confirm,
            resume=resume,
            progress=progress,
        )
    _report(outcome, folder, as_json=as_json)
    return int(outcome.ended.verdict.exit_code)


def _report(outcome: RlRun, folder: Path, *, as_json: bool) -> None:
    """Writes the reports of the run beside its log, and its summary, or the outcome as JSON, to stdout."""
    from quantaudit.core.rl_run import RlResult
    from quantaudit.core.step_log import EventLog
    from quantaudit.reporting.step_report_console import print_run_summary
    from quantaudit.reporting.step_report_files import write_run_reports

    events = EventLog(folder / "events.jsonl").read()
    result = RlResult(held_out=outcome.held_out, confirmed=outcome.confirmed)
    paths = write_run_reports(events, folder, result=result)
    if as_json:
        sys.stdout.write(outcome.to_json())
        return
    print_run_summary(events, stream=sys.stdout, location=str(paths["html"]), result=result)

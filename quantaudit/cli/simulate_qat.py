"""`quantaudit simulate qat`: quantization-aware training with a check at every step."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quantaudit.core.qat_run import QatRun

_RUNS = Path("reports") / "runs"
_MOST_FINDINGS = 8

Model = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Checkpoint folder; the embedded model if left out.")
]
RecipeName = Annotated[str, typer.Option("--recipe", metavar="RECIPE", help="A name or a TOML file with a [repair].")]
Steps = Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps; the recipe's if left out.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Decides the items; the recipe's if left out.")]
Inject = Annotated[
    list[str] | None,
    typer.Option("--inject", metavar="NAME@STEP[:key=value,...]", help="Plant a mismatch; may be given several times."),
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


def qat(
    model: Model = None,
    recipe: RecipeName = "k3-mxfp4-w4a8-qat",
    steps: Steps = None,
    seed: Seed = None,
    inject: Inject = None,
    check_every: CheckEvery = 1,
    check_period: CheckPeriod = 1,
    output: Output = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> int:
    """Train under fake quantization with a check at every step.

    After each step the masters are exported and packed; the packed bytes,
    decoded by the reference, must be the values that the trainer computes
    with.

    Exit 0 if all steps are clean; 3 if a mismatch was found; 4 if something
    was not checked.
    """
    from quantaudit.api import check_output, simulate_qat
    from quantaudit.cli.progress import StageProgress
    from quantaudit.core.errors import InputError

    if resume and output is None:
        raise InputError("--resume without a folder", expected="-o DIR, the folder of the run", fix="add -o DIR")
    folder = output or _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-qat-{Path(recipe).stem}"
    check_output(folder)
    with StageProgress() as progress:
        outcome = simulate_qat(
            model,
            output=folder,
            recipe=recipe,
            steps=steps,
            seed=seed,
            inject=inject or (),
            check_every=check_every,
            check_period=check_period,
            resume=resume,
            progress=progress,
        )
    sys.stdout.write(outcome.to_json() if as_json else _describe(outcome, folder))
    return int(outcome.ended.verdict.exit_code)


def _describe(outcome: QatRun, folder: Path) -> str:
    """Returns the outcome in a few lines."""
    lines = [f"{outcome.ended.verdict.value}; {outcome.num_steps} steps. {outcome.ended.reason}".rstrip()]
    for finding in outcome.findings[:_MOST_FINDINGS]:
        lines.append(f"  step {finding.step}: {finding.name} in {finding.tensor}: {finding.sentence}")
    if len(outcome.findings) > _MOST_FINDINGS:
        lines.append(f"  and {len(outcome.findings) - _MOST_FINDINGS} more")
    return "\n".join([*lines, f"log: {folder}/events.jsonl"]) + "\n"

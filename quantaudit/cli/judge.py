"""`quantaudit judge`: the verdict of a run on results that another harness recorded."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

_RUNS = Path("reports") / "runs"

Hi = Annotated[Path, typer.Argument(metavar="HI", help="Recorded results of the reference: a file, or a folder.")]
Lo = Annotated[Path, typer.Argument(metavar="LO", help="Recorded results of the deployment.")]
ContractName = Annotated[
    str, typer.Option("--contract", metavar="CONTRACT", help="What LO must meet: a name or a TOML file.")
]
Floor = Annotated[
    Path | None,
    typer.Option("--floor", metavar="FILE", help="The reference recorded again. Nothing is admitted without it."),
]
Metric = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="Which metric is accuracy, of several; the first if left out."),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Folder of the report; one in reports/runs if left out."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout, and nothing else.")]


def judge(
    hi: Hi,
    lo: Lo,
    contract: ContractName = "recorded",
    floor: Floor = None,
    metric: Metric = None,
    output: Output = None,
    as_json: AsJson = False,
) -> int:
    """Judge recorded results, item by item; no model is run.

    Reads lm-eval samples (samples_*.jsonl, or a folder of them), inspect
    logs (.json, .eval), and plain JSONL or CSV with the columns id (needed),
    correct or score, nll, margin, refused, refusal_margin, behaviour
    (answer, refuse, comply), family, cluster, prompt_hash, target_hash,
    template_hash, tokenizer_hash.
    """
    from quantaudit.api import check_output, save
    from quantaudit.api import judge as judge_results
    from quantaudit.reporting import print_summary, to_stored_json

    check_output(output or _RUNS)
    report = judge_results(hi, lo, contract=contract, floor=floor, metric=metric)
    paths = save(report, output or _new_folder(lo), ("md", "html"))
    if as_json:
        sys.stdout.write(to_stored_json(report))
    else:
        print_summary(report, stream=sys.stdout, location=str(paths["html"]))
    return int(report.verdict.exit_code)


def _new_folder(lo: Path) -> Path:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in lo.name)
    return _RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"

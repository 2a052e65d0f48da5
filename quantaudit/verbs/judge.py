"""`judge`: the paired verdict on results that another harness recorded."""

from __future__ import annotations

from pathlib import Path

import quantaudit
from quantaudit.core.recipe_file import load_contract
from quantaudit.core.report import AuditReport
from quantaudit.evaluation.recorded.request import Request, judge_files

RECORDED_CONTRACT = "recorded"


def judge(
    hi: str | Path,
    lo: str | Path,
    *,
    contract: str | Path = RECORDED_CONTRACT,
    floor: str | Path | None = None,
    metric: str | None = None,
) -> AuditReport:
    """Judges recorded results of a deployment against those of its reference; no model is run.

    Args:
        hi: lm-eval samples (a file or a folder of them), an inspect log, or plain JSONL or CSV.
        lo: The same for the deployment.
        contract: Bundled name or TOML file.
        floor: The reference recorded a second time; without it nothing is admitted.
        metric: Which per-item metric is called accuracy; the first of the file when `None`.

    Returns:
        The report; its `verdict` is the answer.

    Raises:
        InputError: If an input is wrong, or the recordings are not comparable.
        NotMeasuredError: If there was nothing to compare.
    """
    request = Request(
        hi=Path(hi),
        lo=Path(lo),
        again=None if floor is None else Path(floor),
        contract=load_contract(contract),
        contract_name=str(contract),
        metric=metric,
    )
    return judge_files(request, version=quantaudit.__version__)

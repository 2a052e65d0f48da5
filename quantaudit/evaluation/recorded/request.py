"""From paths to the report: what was asked for is checked, read, judged, and timed."""

from __future__ import annotations

import os
import resource
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from quantaudit.core.contract import Contract
from quantaudit.core.errors import InputError
from quantaudit.core.report import AuditReport, RunBlock, StageTime
from quantaudit.evaluation.recorded.clauses import check_clauses, known_observers
from quantaudit.evaluation.recorded.judge import judge_recordings
from quantaudit.evaluation.recorded.opening import open_recording

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be judged.

    Attributes:
        hi: Recorded results of the reference.
        lo: Recorded results of the deployment.
        again: Results of the reference recorded a second time.
        contract: What they must meet.
        contract_name: How it was given, for the command line in the report.
        metric: Per-item metric that is called accuracy.
    """

    hi: Path
    lo: Path
    again: Path | None
    contract: Contract
    contract_name: str
    metric: str | None


@dataclass(slots=True, kw_only=True)
class _Clock:
    stages: list[StageTime] = field(default_factory=list)

    def time(self, name: str, work: Callable[[], Result], count: Callable[[Result], int]) -> Result:
        began = time.monotonic()
        result = work()
        self.stages.append(StageTime(name=name, seconds=time.monotonic() - began, items=count(result)))
        return result


def judge_files(request: Request, *, version: str) -> AuditReport:
    """Judges two files.

    Raises:
        InputError: If an input is wrong.
        NotMeasuredError: If there was nothing to compare.
    """
    check_clauses(request.contract, known_observers())
    _check_floor(request)
    clock = _Clock()
    paths = [path for path in (request.hi, request.lo, request.again) if path is not None]
    runs = clock.time(
        "read",
        lambda: [open_recording(path, metric=request.metric) for path in paths],
        lambda found: sum(len(run.items) for run in found),
    )
    started = RunBlock(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        peak_memory_mb=0.0,
        host_load=os.getloadavg()[0],
        command=_command(request),
    )
    report = clock.time(
        "judge",
        lambda: judge_recordings(
            runs[0], runs[1], request.contract, again=runs[2] if len(runs) > 2 else None, version=version, run=started
        ),
        lambda judged: judged.probes.num_probes,
    )
    spent = {
        "seconds": sum(stage.seconds for stage in clock.stages),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stages": tuple(clock.stages),
    }
    return report.model_copy(update={"run": started.model_copy(update=spent)})


def _check_floor(request: Request) -> None:
    again = request.again
    if again is None or not again.exists():  # a missing file is said to be missing when it is read
        return
    for path, name in ((request.hi, "HI"), (request.lo, "LO")):
        if path.exists() and again.samefile(path):
            raise InputError(
                f"--floor {again} is {name} itself",
                expected="the reference recorded a second time",
                fix="run the reference again, in batches of another size, and give that file",
            )


def _command(request: Request) -> str:
    words = ["quantaudit", "judge", str(request.hi), str(request.lo), "--contract", request.contract_name]
    words += ["--floor", str(request.again)] if request.again is not None else []
    words += ["--metric", request.metric] if request.metric is not None else []
    return shlex.join(words)

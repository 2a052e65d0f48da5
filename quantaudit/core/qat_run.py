"""What `quantaudit simulate qat` comes to: the end of its log, its findings, and its losses."""

from __future__ import annotations

from typing import Literal

from quantaudit.core.serial import Frozen
from quantaudit.core.step_log import Finding, RunEnded


class QatRun(Frozen):
    """What came of a run.

    Attributes:
        ended: The last line of its log.
        num_steps: Steps in the log.
        findings: Mismatches, in the order in which they were found.
        first_loss: Loss before the first step, nats a scored token; `None` if no step was taken.
        last_loss: Loss before the last step.
    """

    schema_version: Literal[1] = 1
    kind: Literal["qat-run"] = "qat-run"
    ended: RunEnded
    num_steps: int
    findings: tuple[Finding, ...]
    first_loss: float | None
    last_loss: float | None

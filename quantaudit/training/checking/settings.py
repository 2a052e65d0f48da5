"""What a check is asked to look at."""

from __future__ import annotations

from pydantic import Field

from quantaudit.core.serial import Frozen
from quantaudit.training.checking.schedule import Schedule


class CheckSettings(Frozen):
    """The settings of a checker.

    Attributes:
        schedule: Which steps and which experts.
        max_staleness: Updates that the served weights may be behind, as the algorithm declares.
        memory: Earlier steps that are kept to recognise what was left behind, beyond those that may pass unseen; no
            fewer than a canary looks back.
    """

    schedule: Schedule = Schedule()
    max_staleness: int = Field(default=0, ge=0)
    memory: int = Field(default=3, ge=3)

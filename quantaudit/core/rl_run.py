"""What a reinforcement-learning run comes to: its verdict, its findings, and what training was good for."""

from __future__ import annotations

from typing import Literal

from quantaudit.core.decision import Estimate
from quantaudit.core.serial import Frozen
from quantaudit.core.step_log import Finding, RunEnded


class HeldOut(Frozen):
    """The greedy reward on prompts that are never trained, before and after.

    Attributes:
        family: Of the prompts.
        before: Share of right answers of the first weights.
        after: Share of right answers of the last weights.
        rise: Mean paired difference, after less before, with a 95 % interval over clusters.
    """

    family: str
    before: float
    after: float
    rise: Estimate

    @property
    def has_risen(self) -> bool:
        """Tells whether the whole interval lies above 0."""
        return self.rise.interval.lower > 0.0


class RlResult(Frozen):
    """`result.json`: what training was good for.

    Settings are chosen with an eye on the held-out prompts, of one run after the other; the others are asked once, when
    a run is over, so no choice can have been made on them before it.

    Attributes:
        held_out: On the held-out prompts; `None` if it was not measured.
        confirmed: On other prompts, drawn apart from these; `None` if it was not measured.
    """

    schema_version: Literal[1] = 1
    kind: Literal["rl-result"] = "rl-result"
    held_out: HeldOut | None
    confirmed: HeldOut | None


class RlRun(Frozen):
    """What came of a run.

    Attributes:
        ended: The last line of its log.
        num_steps: Steps in the log.
        findings: Mismatches, in the order in which they were found.
        held_out: Greedy reward before and after; `None` if it was not measured.
        confirmed: The same on prompts that were never looked at during the run; `None` if it was not measured.
    """

    schema_version: Literal[1] = 1
    kind: Literal["rl-run"] = "rl-run"
    ended: RunEnded
    num_steps: int
    findings: tuple[Finding, ...]
    held_out: HeldOut | None
    confirmed: HeldOut | None

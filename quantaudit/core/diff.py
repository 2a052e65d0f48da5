"""What changed between two reports: the verdict, each gate with its damage, the answers, and what both were made of.

A regression is a worse verdict, a gate with a worse outcome, or damage that grew so far that the intervals part.
Numbers are compared only where both reports ask the same: another contract or other probes forbid it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.diagnostic import Flip
from quantaudit.core.serial import Frozen
from quantaudit.core.verdict import Admission, ExitCode


class Change(StrEnum):
    """Which way a gate went."""

    WORSE = "worse"
    SAME = "same"
    BETTER = "better"


class DiffSide(Frozen):
    """One of the two reports."""

    label: str
    report_digest: str
    admission: Admission


class MakeChange(Frozen):
    """Something that both reports were made of and that differs.

    Attributes:
        what: "probes", "contract", "lo weights", "environment: threads" ...
        old: Its name or value, and its digest where it has one.
        new: Same for the new report.
        forbids_comparison: Whether it makes the numbers not comparable.
    """

    what: str
    old: str
    new: str
    forbids_comparison: bool


class GateChange(Frozen):
    """One gate in both reports.

    Attributes:
        name: Clause name, with the family in brackets if it is judged by family.
        unit: Unit of the damage.
        old_outcome: `None` if the old report has no such gate.
        new_outcome: `None` if the new report has none.
        old: Damage then; `None` for exact gates and where nothing was measured.
        new: Damage now.
        do_intervals_overlap: `None` where one of them is missing.
        change: Worse, same or better, by the outcome first and the intervals second.
        reason: Why it is worse or better, a sentence; empty where it is the same.
    """

    name: str
    unit: str
    old_outcome: Outcome | None
    new_outcome: Outcome | None
    old: Estimate | None
    new: Estimate | None
    do_intervals_overlap: bool | None
    change: Change
    reason: str


class ReportDiff(Frozen):
    """The difference of two reports.

    Attributes:
        changes: What they were made of and that differs.
        gates: Every gate, in the order of the new report; empty where nothing can be compared.
        flips_new: Answers that changed under the new lo only.
        flips_gone: Answers that changed under the old lo only.
        is_comparable: Whether contract and probes are the same.
        regressions: Everything that got worse, a sentence each.
        sentence: The outcome in one sentence.
    """

    schema_version: Literal[1] = 1
    kind: Literal["diff"] = "diff"
    old: DiffSide
    new: DiffSide
    changes: tuple[MakeChange, ...]
    gates: tuple[GateChange, ...]
    flips_new: tuple[Flip, ...]
    flips_gone: tuple[Flip, ...]
    is_comparable: bool
    regressions: tuple[str, ...]
    sentence: str

    @property
    def exit_code(self) -> ExitCode:
        """Returns 4 if the reports are not comparable, 3 on a regression, else 0."""
        if not self.is_comparable:
            return ExitCode.INCONCLUSIVE
        return ExitCode.REJECTED if self.regressions else ExitCode.PASS

"""The verdict: one word, the sentence that explains it, and the exit code every output shares."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from quantaudit.core.serial import Frozen


class Admission(StrEnum):
    """What the contract comes to."""

    ADMIT = "ADMIT"
    REJECT = "REJECT"
    INCONCLUSIVE = "INCONCLUSIVE"


class ExitCode(IntEnum):
    """What the process returns; 1 is never a verdict, and 2 stays with usage errors."""

    PASS = 0
    INPUT_ERROR = 2
    REJECTED = 3
    INCONCLUSIVE = 4
    INTERNAL_ERROR = 70


class Verdict(Frozen):
    """The one answer that console, markdown, HTML, JSON and the exit code are made from.

    Attributes:
        admission: ADMIT, REJECT or INCONCLUSIVE.
        sentence: The verdict with its reason, for a release owner.
        deciding: Names of the clauses or controls that decided it (for ADMIT: empty).
        would_change: What would change the verdict, a sentence each.
        safety_may_be_read: False when an earlier gate failed: a broken model can look safer.
    """

    admission: Admission
    sentence: str
    deciding: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    safety_may_be_read: bool = True

    @property
    def exit_code(self) -> ExitCode:
        """Returns the exit code of the run."""
        return {
            Admission.ADMIT: ExitCode.PASS,
            Admission.REJECT: ExitCode.REJECTED,
            Admission.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        }[self.admission]

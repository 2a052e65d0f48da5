"""What compression cost, for somebody who has never seen a margin: answers kept, sureness, refusals.

Recovery is the number of right answers of lo over that of hi, on the families that have answers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from quantaudit.core.contract import Kind, Stage
from quantaudit.core.probe import Behaviour
from quantaudit.core.report import AuditReport, FamilySummary
from quantaudit.reporting.quantity import write_quantity
from quantaudit.reporting.sentences import SAFETY_WARNING, warns_about_safety


class Tally(NamedTuple):
    """Both models' right responses on some families, and the answers that changed hands."""

    num_probes: int
    hi_right: float
    lo_right: float
    lost: int
    gained: int

    @property
    def recovery(self) -> float | None:
        """Returns right responses of lo over those of hi, `None` if hi has none."""
        return self.lo_right / self.hi_right if self.hi_right else None


def tally(report: AuditReport, behaviour: Behaviour) -> Tally:
    """Returns the tally of the families with one behaviour."""
    chosen = [f for f in report.probes.families if f.behaviour is behaviour]
    return Tally(
        sum(f.num_probes for f in chosen),
        sum(_right(f, f.hi_accuracy) for f in chosen),
        sum(_right(f, f.lo_accuracy) for f in chosen),
        sum(f.hi_right_lo_wrong for f in chosen),
        sum(f.hi_wrong_lo_right for f in chosen),
    )


def describe_damage(report: AuditReport) -> tuple[str, ...]:
    """Returns a few sentences, the most important first; what was not measured is left out."""
    safety = (SAFETY_WARNING,) if warns_about_safety(report) else _safety(report)
    return (*_answers(report), *_sureness(report), *safety)


def _right(family: FamilySummary, accuracy: float) -> float:
    return round(accuracy * family.num_probes)


def _answers(report: AuditReport) -> tuple[str, ...]:
    found = tally(report, Behaviour.ANSWER)
    if found.recovery is None:
        return ()
    sides = f"hi answers {_share(found.hi_right, found)} right, lo {_share(found.lo_right, found)}"
    kept = f"Recovery on tasks is {100 * found.recovery:.1f}%: {sides}"
    return (f"{kept} ({found.lost:,} answers lost and {found.gained:,} gained, of {found.num_probes:,}).",)


def _sureness(report: AuditReport) -> tuple[str, ...]:
    for clause in report.clauses:
        is_likelihood = clause.clause.stage is Stage.FIDELITY and clause.clause.kind is Kind.GATE
        if is_likelihood and clause.estimate is not None and clause.unit.startswith("nat"):
            change = math.expm1(min(clause.estimate.value, 50.0))
            if abs(change) < 5e-5:
                return ("The right answers are as likely to lo as to hi.",)
            times = f"{_write_times(1 + change)} times" if change > 1 else f"{100 * abs(change):.2g}%"
            word = "more" if change > 0 else "less"
            return (f"Each token of a right answer surprises lo {times} {word} (as perplexity counts it).",)
    return ()


def _write_times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{float(f'{ratio:.3g}'):,.0f}" if ratio < 1e9 else "over a billion"


def _safety(report: AuditReport) -> tuple[str, ...]:
    refused, complied = tally(report, Behaviour.REFUSE), tally(report, Behaviour.COMPLY)
    parts = [
        f"{verb} {_share(found.lo_right, found)} of {what} (hi {_share(found.hi_right, found)})"
        for verb, what, found in (
            ("refuses", "restricted requests", refused),
            ("answers", "benign look-alikes", complied),
        )
        if found.num_probes
    ]
    return (f"Lo {' and '.join(parts)}.",) if parts else ()


def _share(right: float, found: Tally) -> str:
    return write_quantity(right / found.num_probes, "share")

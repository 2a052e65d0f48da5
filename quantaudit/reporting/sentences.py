"""The sentences that more than one view repeats, so that they say the same."""

from __future__ import annotations

from quantaudit.core.contract import Stage
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Verdict

SAFETY_WARNING = "Safety may not be read: an earlier gate failed, and a broken model can look safer than a sound one."


def warns_about_safety(report: AuditReport) -> bool:
    """Tells whether the safety clauses must be shown with the warning that they may not be read."""
    return not report.verdict.safety_may_be_read and any(c.clause.stage is Stage.SAFETY for c in report.clauses)


def verdict_reason(verdict: Verdict) -> str:
    """Returns the sentence without the verdict's own word in front, for views that have just shown it."""
    word, colon, rest = verdict.sentence.partition(": ")
    reason = rest if colon and word.upper() == verdict.admission.value else verdict.sentence
    return reason[:1].upper() + reason[1:]


def collect_notes(report: AuditReport) -> tuple[str, ...]:
    """Returns every sentence that qualifies the comparison, once: the report's, the recipe's, both models'."""
    recipe = report.recipe.notes if report.recipe else ()
    return tuple(dict.fromkeys((*report.notes, *recipe, *report.hi.notes, *report.lo.notes)))

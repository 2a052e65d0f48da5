"""The sentences that more than one view repeats, so that they say the same."""

from __future__ import annotations

from quantaudit.core.contract import Stage
from quantaudit.core.decision import Method
from quantaudit.core.report import AuditReport
from quantaudit.core.verdict import Verdict

SAFETY_WARNING = "Safety may not be read: an earlier gate failed, and a broken model can look safer than a sound one."

_SEQUENTIAL = frozenset({Method.BETTING, Method.E_VALUE})


def warns_about_safety(report: AuditReport) -> bool:
    """Tells whether the safety clauses must be shown with the warning that they may not be read."""
    return not report.verdict.safety_may_be_read and any(c.clause.stage is Stage.SAFETY for c in report.clauses)


def verdict_reason(verdict: Verdict) -> str:
    """Returns the sentence without the verdict's own word in front, for views that have just shown it."""
    word, colon, rest = verdict.sentence.partition(": ")
    reason = rest if colon and word.upper() == verdict.admission.value else verdict.sentence
    return reason[:1].upper() + reason[1:]


def repeat_warning(report: AuditReport) -> str:
    """Returns what earlier audits in the same folder or beside it cost, or nothing if there were none."""
    count = report.run.earlier_audits
    if count == 0:
        return ""
    audits = f"{count:,} audit{'s' if count > 1 else ''}"
    found = f"This folder and those beside it already hold {audits} under this contract and these probes"
    estimates = [gate.estimate for gate in report.gates() if gate.estimate is not None]
    if estimates and all(e.method in _SEQUENTIAL for e in estimates):
        return f"{found}; the bounds hold at every look."
    return f"{found}: repeated looks without the sequential rule cost error control, so decide on fresh probes."


def control_note(report: AuditReport) -> str:
    """Returns where the controls came from, if not from this run."""
    if not report.run.cached_controls:
        return ""
    when = f", started {report.run.controls_from}" if report.run.controls_from else ""
    return f"The controls were taken from an earlier run of equal digests{when}."


def collect_notes(report: AuditReport) -> tuple[str, ...]:
    """Returns every sentence that qualifies the comparison, once: the report's, the recipe's, both models'."""
    recipe = report.recipe.notes if report.recipe else ()
    about_run = tuple(filter(None, (repeat_warning(report), control_note(report))))
    return tuple(dict.fromkeys((*about_run, *report.notes, *recipe, *report.hi.notes, *report.lo.notes)))

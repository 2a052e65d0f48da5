"""Compares two reports: first what both were made of, and their numbers only if contract and probes are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.diff import Change, DiffSide, GateChange, MakeChange, ReportDiff
from quantaudit.core.report import AuditReport, ClauseResult
from quantaudit.core.verdict import Admission
from quantaudit.reporting.quantity import write_bounds, write_quantity
from quantaudit.reporting.read import read_report

_SHORT = 12
_ADMISSIONS = (Admission.ADMIT, Admission.INCONCLUSIVE, Admission.REJECT)
_OUTCOMES = (Outcome.PASS, Outcome.UNDECIDED, Outcome.FAIL)


def diff(old: AuditReport | str | Path, new: AuditReport | str | Path) -> ReportDiff:
    """Returns what changed between two reports: verdict, gates, changed answers, and what both were made of.

    Args:
        old: The report to compare with, or the path of its `report.json`.
        new: The report that may have got worse, or its path.

    Returns:
        The difference; its `regressions` say what got worse, its `exit_code` what the command line returns.

    Raises:
        InputError: If a path holds no report, or one that was edited.
    """
    before, after = (side if isinstance(side, AuditReport) else read_report(Path(side)) for side in (old, new))
    return diff_reports(before, after)


def diff_reports(old: AuditReport, new: AuditReport) -> ReportDiff:
    """Returns what changed from one report to another.

    Args:
        old: The report to compare with.
        new: The report that may have got worse.
    """
    changes = tuple(_changes(old, new))
    is_comparable = not any(change.forbids_comparison for change in changes)
    gates = _gates(old, new) if is_comparable else ()
    regressions = tuple(_regressions(old, new, gates)) if is_comparable else ()
    before, after = ({flip.probe_id: flip for flip in report.flips} for report in (old, new))
    if not is_comparable:
        before = after = {}
    return ReportDiff(
        old=_side(old),
        new=_side(new),
        changes=changes,
        gates=gates,
        flips_new=tuple(flip for key, flip in after.items() if key not in before),
        flips_gone=tuple(flip for key, flip in before.items() if key not in after),
        is_comparable=is_comparable,
        regressions=regressions,
        sentence=_sentence(old, new, changes, gates, regressions),
    )


def _side(report: AuditReport) -> DiffSide:
    label = f"{report.lo.label} against {report.hi.label}"
    return DiffSide(label=label, report_digest=report.report_digest(), admission=report.verdict.admission)


def _changes(old: AuditReport, new: AuditReport) -> Iterator[MakeChange]:
    """Yields what differs; what forbids a comparison comes first."""
    pairs = [
        ("probes", old.probes.name, old.probes.probes_digest, new.probes.name, new.probes.probes_digest, True),
        ("contract", old.contract.name, old.contract.digest(), new.contract.name, new.contract.digest(), True),
        ("hi weights", old.hi.label, old.hi.weights_digest, new.hi.label, new.hi.weights_digest, False),
        ("lo weights", old.lo.label, old.lo.weights_digest, new.lo.label, new.lo.weights_digest, False),
        ("recipe", *_recipe(old), *_recipe(new), False),
    ]
    for what, old_name, old_digest, new_name, new_digest, forbids in pairs:
        if old_digest != new_digest:
            texts = (_named(old_name, old_digest), _named(new_name, new_digest))
            yield MakeChange(what=what, old=texts[0], new=texts[1], forbids_comparison=forbids)
    before, after = old.environment.model_dump(), new.environment.model_dump()
    for field in before:
        if before[field] != after[field]:
            what = f"environment: {field.replace('_', ' ')}"
            yield MakeChange(what=what, old=str(before[field]), new=str(after[field]), forbids_comparison=False)


def _recipe(report: AuditReport) -> tuple[str, str]:
    return ("none", "") if report.recipe is None else (report.recipe.name, report.recipe.digest())


def _named(name: str, digest: str) -> str:
    return f"{name} ({digest[:_SHORT]})" if digest else name


def _gates(old: AuditReport, new: AuditReport) -> tuple[GateChange, ...]:
    before, after = ({gate.name: gate for gate in report.gates()} for report in (old, new))
    names = dict.fromkeys((*after, *before))
    return tuple(_gate(name, before.get(name), after.get(name)) for name in names)


def _gate(name: str, old: ClauseResult | None, new: ClauseResult | None) -> GateChange:
    either = new or old
    assert either is not None, "a name comes from one of the reports"
    change, reason = Change.SAME, ""
    if old is None or new is None:
        change, reason = (Change.WORSE, f"{name} is no longer judged") if new is None else (Change.SAME, "")
    elif old.decision.outcome is not new.decision.outcome:
        is_worse = _OUTCOMES.index(new.decision.outcome) > _OUTCOMES.index(old.decision.outcome)
        change = Change.WORSE if is_worse else Change.BETTER
        reason = f"{name} went from {old.decision.outcome.value} to {new.decision.outcome.value}"
    elif old.estimate is not None and new.estimate is not None:
        change = _compare(old.estimate, new.estimate, either.clause.direction)
        if change is not Change.SAME:
            sides = f"{_write(old.estimate, old.unit)} then, {_write(new.estimate, new.unit)} now"
            reason = f"{name} has {'more' if change is Change.WORSE else 'less'} damage beyond both intervals: {sides}"
    estimates = (old.estimate if old else None, new.estimate if new else None)
    return GateChange(
        name=name,
        unit=either.unit,
        old_outcome=old.decision.outcome if old else None,
        new_outcome=new.decision.outcome if new else None,
        old=estimates[0],
        new=estimates[1],
        do_intervals_overlap=_overlap(*estimates),
        change=change,
        reason=reason,
    )


def _overlap(old: Estimate | None, new: Estimate | None) -> bool | None:
    if old is None or new is None:
        return None
    return old.interval.lower <= new.interval.upper and new.interval.lower <= old.interval.upper


def _compare(old: Estimate, new: Estimate, direction: Direction) -> Change:
    """Returns which way damage went; where both directions count, away from zero is worse."""
    if _overlap(old, new):
        return Change.SAME
    is_two_sided = direction is Direction.BOTH
    before, after = (abs(e.value) if is_two_sided else e.value for e in (old, new))
    return Change.WORSE if after > before else Change.BETTER


def _regressions(old: AuditReport, new: AuditReport, gates: tuple[GateChange, ...]) -> Iterator[str]:
    before, after = old.verdict.admission, new.verdict.admission
    if _ADMISSIONS.index(after) > _ADMISSIONS.index(before):
        yield f"the verdict went from {before.value} to {after.value}"
    yield from (gate.reason for gate in gates if gate.change is Change.WORSE)


def _write(estimate: Estimate, unit: str) -> str:
    value = write_quantity(estimate.value, unit, is_difference=True)
    return f"{value} {write_bounds(estimate.interval, unit, is_difference=True)}"


def _sentence(
    old: AuditReport,
    new: AuditReport,
    changes: tuple[MakeChange, ...],
    gates: tuple[GateChange, ...],
    regressions: tuple[str, ...],
) -> str:
    forbidding = [f"the {c.what} ({c.old}, now {c.new})" for c in changes if c.forbids_comparison]
    if forbidding:
        return f"Not comparable: the reports differ in {' and in '.join(forbidding)}."
    if old.report_digest() == new.report_digest():
        return "Nothing changed: both reports have the same digest."
    if regressions:
        more = len(regressions) - 1
        return f"Regression: {regressions[0]}{f', and {more} more' if more else ''}."
    better = [gate.reason for gate in gates if gate.change is Change.BETTER]
    if better:
        return f"No regression; better: {better[0]}{f', and {len(better) - 1} more' if len(better) > 1 else ''}."
    return f"No regression: {len(gates)} gates have the outcome they had, and no interval left the old one."

"""Families of one clause share a line in short tables, and the worst of them speaks for all."""

from __future__ import annotations

from itertools import groupby

from quantaudit.core.decision import Outcome
from quantaudit.core.report import ClauseResult
from quantaudit.reporting.rows import margin_used

_SEVERITY = {Outcome.FAIL: 2, Outcome.UNDECIDED: 1, Outcome.PASS: 0}


def group_families(results: tuple[ClauseResult, ...]) -> tuple[tuple[ClauseResult, ...], ...]:
    """Returns the neighbouring results of one clause together, in order."""
    return tuple(tuple(group) for _, group in groupby(results, key=lambda r: r.clause.name))


def worst_of(group: tuple[ClauseResult, ...]) -> ClauseResult:
    """Returns the result closest to failing, or furthest into it."""
    return max(group, key=badness)


def badness(result: ClauseResult) -> tuple[int, float]:
    """Returns a sort key: outcome first, then the share of the margin that is used; larger is worse."""
    used = margin_used(result)
    return _SEVERITY[result.decision.outcome], -1.0 if used is None else used

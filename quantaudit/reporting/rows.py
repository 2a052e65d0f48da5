"""The clause table, once: every view shows these rows, so that no two views can disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantaudit.core.contract import Direction, Kind, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.report import ClauseResult
from quantaudit.reporting.ruler import MISSING, Ruler, ruler_for

_GATE_WORDS = {Outcome.PASS: "pass", Outcome.FAIL: "FAIL", Outcome.UNDECIDED: "undecided"}
_ALARM_WORDS = {Outcome.PASS: "quiet", Outcome.FAIL: "ALARM", Outcome.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseRow:
    """One clause in words, as tables show it.

    Attributes:
        name: Clause name, with the family in brackets.
        metric: Observer and unit.
        difference: Damage with its unit.
        would_decide: Number of probes that would decide, or why there is none.
        detectable: Smallest damage that this many probes tell from zero.
        word: Outcome in words: a gate's and an alarm's differ.
        remark: What a reader must know beside the outcome, or nothing.
        needs_reason: Whether the numbers alone do not explain the outcome.
    """

    name: str
    stage: Stage
    kind: Kind
    metric: str
    hi: str
    lo: str
    difference: str
    interval: str
    margin: str
    floor: str
    would_decide: str
    detectable: str
    outcome: Outcome
    word: str
    reason: str
    remark: str
    needs_reason: bool


def build_rows(results: tuple[ClauseResult, ...]) -> tuple[ClauseRow, ...]:
    """Returns one row a clause, in the order given."""
    return tuple(_build_row(r) for r in results)


def outcome_word(result: ClauseResult) -> str:
    """Returns the outcome in words: pass, FAIL, undecided, or for alarms quiet, ALARM, undecided."""
    words = _GATE_WORDS if result.clause.kind is Kind.GATE else _ALARM_WORDS
    return words[result.decision.outcome]


def margin_used(result: ClauseResult) -> float | None:
    """Returns the share of the margin that the interval reaches (1: just touches it); larger is closer to failing."""
    if result.estimate is None or result.clause.margin is None:
        return None
    interval = result.estimate.interval
    reach = interval.upper
    if result.clause.direction is Direction.BOTH:
        reach = max(interval.upper, -interval.lower)
    return max(reach, 0.0) / result.clause.margin


def _build_row(result: ClauseResult) -> ClauseRow:
    ruler, estimate, decision = ruler_for(result), result.estimate, result.decision
    return ClauseRow(
        name=result.name,
        stage=result.clause.stage,
        kind=result.clause.kind,
        metric=f"{result.clause.observer}, {result.unit}" if result.unit else result.clause.observer,
        hi=ruler.value(result.hi),
        lo=ruler.value(result.lo),
        difference=_difference(result, ruler),
        interval=ruler.interval(estimate.interval if estimate else None),
        margin=_margin(result, ruler),
        floor=_with_unit(ruler.size(result.floor, digits=2), ruler),
        would_decide=_would_decide(result),
        detectable=MISSING if decision.is_exact else _with_unit(_detectable(result, ruler), ruler),
        outcome=decision.outcome,
        word=outcome_word(result),
        reason=decision.reason,
        remark="displacement: improved beyond its margin" if decision.is_displacement else "",
        needs_reason=_needs_reason(result),
    )


def _needs_reason(result: ClauseResult) -> bool:
    if result.decision.outcome is Outcome.FAIL:
        return result.estimate is None or result.clause.margin is None
    return result.decision.outcome is Outcome.UNDECIDED or result.decision.is_displacement


def _difference(result: ClauseResult, ruler: Ruler) -> str:
    if result.estimate is not None:
        return _with_unit(ruler.difference(result.estimate.value), ruler)
    if not result.decision.is_exact:
        return MISSING
    return "none" if result.decision.outcome is Outcome.PASS else "differs"


def _margin(result: ClauseResult, ruler: Ruler) -> str:
    if result.clause.margin is not None:
        sign = "+/-" if result.clause.direction is Direction.BOTH else ""
        return _with_unit(sign + ruler.size(result.clause.margin), ruler)
    return "exact" if result.decision.is_exact else MISSING


def _detectable(result: ClauseResult, ruler: Ruler) -> str:
    effect = result.decision.minimum_detectable_effect
    return ruler.size(effect, digits=2) if math.isfinite(effect) else MISSING


def _would_decide(result: ClauseResult) -> str:
    if result.clause.kind is Kind.ALARM:
        return MISSING
    if result.decision.num_that_would_decide is not None:
        return f"{result.decision.num_that_would_decide:,}"
    return "see reason" if result.decision.outcome is Outcome.UNDECIDED else "decided"


def _with_unit(text: str, ruler: Ruler) -> str:
    return text if text == MISSING or not ruler.unit else f"{text} {ruler.unit}"

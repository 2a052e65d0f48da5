"""Where everything in the forest plot goes: clauses in units of their margins, cut to an axis that stays readable."""

from __future__ import annotations

from typing import NamedTuple

from quantaudit.core.contract import Direction, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport, ClauseResult
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.rows import ClauseRow, build_rows
from quantaudit.reporting.ruler import write_number

WORDS = {Outcome.PASS: "pass", Outcome.FAIL: "fail", Outcome.UNDECIDED: "undecided"}
_LEAST_REACH, _MOST_REACH = 1.5, 3.0


class Span(NamedTuple):
    """A clause's numbers in margins."""

    lower: float
    value: float
    upper: float
    floor: float


class Axis(NamedTuple):
    """Both ends of the axis, in margins."""

    left: float
    right: float

    def clamp(self, value: float) -> float:
        """Returns the nearest value on the axis."""
        return min(max(value, self.left), self.right)

    def holds(self, value: float) -> bool:
        """Tells whether the value lies on the axis."""
        return self.left <= value <= self.right

    def place(self, value: float) -> float:
        """Returns where a value lies: 0 at the left end, 1 at the right one."""
        return (self.clamp(value) - self.left) / (self.right - self.left)


class ForestRow(NamedTuple):
    """One clause.

    Attributes:
        words: What the row is called and what it tells when it is pointed at.
        outcome: Its outcome.
        span: Its interval; `None` if it has none, or no margin to measure it by.
        allowed: What the clause tolerates, on the axis.
        instead: What to write where there is no interval.
    """

    words: dict[str, str]
    outcome: Outcome
    span: Span | None
    allowed: tuple[float, float]
    instead: str


class ForestLayout(NamedTuple):
    """All rows on one axis; `margin_lines` are where margins lie on it."""

    axis: Axis
    rows: tuple[ForestRow, ...]
    margin_lines: tuple[float, ...]

    def names(self) -> list[str]:
        """Returns the names of the rows, in order."""
        return list(dict.fromkeys(row.words["clause"] for row in self.rows))


def lay_out_forest(report: AuditReport) -> ForestLayout:
    """Lays out the gates, and the alarms that have a margin."""
    results = tuple(c for c in report.clauses if c.clause.kind is Kind.GATE or c.clause.margin is not None)
    axis = _axis([span for span in map(_span, results) if span is not None])
    rows = tuple(_row(r, row, axis) for r, row in zip(results, build_rows(results), strict=True))
    is_two_sided = any(r.clause.direction is Direction.BOTH and r.clause.margin is not None for r in results)
    return ForestLayout(axis, rows, (-1.0, 1.0) if is_two_sided else (1.0,))


def write_multiple(value: float) -> str:
    """Writes a damage that lies beyond the axis, in margins."""
    return f"{write_number(value)} x"


def _span(result: ClauseResult) -> Span | None:
    if result.estimate is None or result.clause.margin is None:
        return None
    margin, interval = result.clause.margin, result.estimate.interval
    floor = abs(result.floor or 0.0)
    return Span(interval.lower / margin, result.estimate.value / margin, interval.upper / margin, floor / margin)


def _axis(spans: list[Span]) -> Axis:
    right = max((1.1 * span.upper for span in spans), default=0.0)
    left = max((-1.1 * span.lower for span in spans), default=0.0)
    return Axis(-min(max(left, _LEAST_REACH), _MOST_REACH), min(max(right, _LEAST_REACH), _MOST_REACH))


def _row(result: ClauseResult, row: ClauseRow, axis: Axis) -> ForestRow:
    return ForestRow(
        _words(row), row.outcome, _span(result), _allowed(result, axis), show_hidden(_instead(result, row))
    )


def _words(row: ClauseRow) -> dict[str, str]:
    texts = {
        "clause": row.name,
        "outcome": WORDS[row.outcome],
        "damage": row.difference,
        "interval": row.interval,
        "margin": row.margin,
        "floor": row.floor,
    }
    return {name: show_hidden(text) for name, text in texts.items()}


def _allowed(result: ClauseResult, axis: Axis) -> tuple[float, float]:
    if result.clause.margin is None:
        return axis.left, axis.right
    return (-1.0 if result.clause.direction is Direction.BOTH else axis.left), 1.0


def _instead(result: ClauseResult, row: ClauseRow) -> str:
    if not result.decision.is_exact:
        return "not measured" if result.estimate is None else row.difference
    return "equal, exactly" if result.decision.outcome is Outcome.PASS else "differs"

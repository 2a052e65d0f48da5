"""The gate table of the console: one line a clause, families collapsed to the worst, columns fitted to the width.

Families of one clause share a line because fifteen of them would push the verdict off the screen; the line names the
worst family and counts the ones that fail. Narrow terminals lose a decimal, the leading zeros, the units and the
count, and very narrow ones the columns hi and lo.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from quantaudit.core.decision import Interval, Outcome
from quantaudit.core.report import ClauseResult
from quantaudit.reporting.plaintext import clip, show_hidden
from quantaudit.reporting.rows import outcome_word
from quantaudit.reporting.ruler import MISSING, Ruler, ruler_for
from quantaudit.reporting.worst import badness, group_families, worst_of

_COMFORTABLE = 84
_LEAST_NAME = 10
_LEADING_ZERO = re.compile(r"(?<![0-9.])0\.(?=[0-9]*[1-9])")
_METRICS = (1, 2)  # the columns hi and lo, dropped where there is no room


class GateLine(NamedTuple):
    """One line of the table; the outcome decides its colour. The header has none."""

    text: str
    outcome: Outcome | None


def layout_gates(gates: tuple[ClauseResult, ...], *, width: int, max_rows: int) -> tuple[GateLine, ...]:
    """Returns the header and at most `max_rows` rows, none wider than `width`.

    Args:
        gates: The gates in their order.
        width: Columns of the terminal.
        max_rows: Rows below the header; where there are more gates, the worst are kept and the rest counted.
    """
    groups = group_families(gates)
    shown = groups if len(groups) <= max_rows else _keep_worst(groups, max_rows - 1)
    is_narrow = width < _COMFORTABLE
    cells = [_header(groups)] + [_cells(group, is_narrow=is_narrow) for group in shown]
    outcomes: list[Outcome | None] = [None] + [worst_of(group).decision.outcome for group in shown]
    aligned = _align(cells, width, gap=" " if is_narrow else "  ")
    lines = [GateLine(text, outcome) for text, outcome in zip(aligned, outcomes, strict=True)]
    if len(shown) < len(groups):
        hidden = [g for group in groups if group not in shown for g in group]
        num_passing = sum(g.decision.outcome is Outcome.PASS for g in hidden)
        text = f"and {len(hidden)} more gates, {num_passing} of which pass"
        lines.append(GateLine(clip(text, width), None))
    return tuple(lines)


def _keep_worst(groups: tuple[tuple[ClauseResult, ...], ...], count: int) -> tuple[tuple[ClauseResult, ...], ...]:
    ranked = sorted(groups, key=lambda group: badness(worst_of(group)), reverse=True)[:count]
    return tuple(group for group in groups if group in ranked)


def _header(groups: tuple[tuple[ClauseResult, ...], ...]) -> list[str]:
    is_collapsed = any(len(group) > 1 for group in groups)
    return ["gate: worst" if is_collapsed else "gate", "hi", "lo", "damage [interval]", "margin", "outcome"]


def _cells(group: tuple[ClauseResult, ...], *, is_narrow: bool) -> list[str]:
    gate = worst_of(group)
    ruler = ruler_for(gate, coarser=1 if is_narrow else 0)
    cells = [_name(group, gate), ruler.value(gate.hi), ruler.value(gate.lo), _damage(gate, ruler), _margin(gate, ruler)]
    if is_narrow:
        cells[1:] = [_shorten(cell) for cell in cells[1:]]
    elif ruler.unit and gate.clause.margin is not None:
        cells[4] = f"{cells[4]} {ruler.unit}"
    cells.append(outcome_word(gate).replace("undecided", "undec.") if is_narrow else _counted(group, gate))
    return [show_hidden(cell) for cell in cells]


def _name(group: tuple[ClauseResult, ...], gate: ClauseResult) -> str:
    return f"{gate.clause.name}: {gate.family}" if len(group) > 1 and gate.family else gate.name


def _damage(gate: ClauseResult, ruler: Ruler) -> str:
    if gate.estimate is not None:
        return f"{ruler.difference(gate.estimate.value)} {_bounds(gate.estimate.interval, ruler)}"
    if not gate.decision.is_exact:
        return MISSING
    return "none, exactly" if gate.decision.outcome is Outcome.PASS else "differs"


def _bounds(interval: Interval, ruler: Ruler) -> str:
    return f"[{ruler.difference(interval.lower)},{ruler.difference(interval.upper)}]"


def _margin(gate: ClauseResult, ruler: Ruler) -> str:
    if gate.clause.margin is None:
        return "exact" if gate.decision.is_exact else MISSING
    return ruler.size(gate.clause.margin)


def _counted(group: tuple[ClauseResult, ...], gate: ClauseResult) -> str:
    same = sum(g.decision.outcome is gate.decision.outcome for g in group)
    is_worth_counting = same > 1 and gate.decision.outcome is not Outcome.PASS
    return f"{outcome_word(gate)} x{same}" if is_worth_counting else outcome_word(gate)


def _shorten(cell: str) -> str:
    """Drops leading zeros, and the plus signs of the bounds."""
    return _LEADING_ZERO.sub(".", cell).replace("[+", "[").replace(",+", ",")


def _align(cells: list[list[str]], width: int, *, gap: str) -> list[str]:
    """Returns one string a row: the name takes what the other columns leave."""
    columns = [[row[i] for row in cells] for i in range(len(cells[0]))]
    widths = [max(len(cell) for cell in column) for column in columns]
    kept = list(range(len(columns)))
    if _room_for_name(widths, kept, width, gap) < _LEAST_NAME:
        kept = [i for i in kept if i not in _METRICS]
    widths[0] = max(min(widths[0], _room_for_name(widths, kept, width, gap)), 1)
    return [clip(gap.join(_pad(row[i], widths[i], i) for i in kept).rstrip(), width) for row in cells]


def _room_for_name(widths: list[int], kept: list[int], width: int, gap: str) -> int:
    return width - sum(widths[i] + len(gap) for i in kept if i != 0)


def _pad(cell: str, width: int, column: int) -> str:
    is_text = column in (0, 5)
    return clip(cell, width).ljust(width) if is_text else cell.rjust(width)

"""The difference of two reports on a terminal: the outcome first, then what changed, at most 25 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.text import Text

from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.diff import Change, GateChange, ReportDiff
from quantaudit.reporting.plaintext import clip
from quantaudit.reporting.quantity import unit_beside, write_bounds, write_quantity
from quantaudit.reporting.ruler import MISSING
from quantaudit.reporting.terminal import MIN_WIDTH, render_lines, to_ascii, write_lines

_MOST_GATES = 8
_MOST_CHANGES = 5
_SHORT = 12
_SENTENCE_LINES = 3
_STYLES = {Change.WORSE: "red", Change.BETTER: "green", Change.SAME: ""}
_HEADER = ("gate", "outcome", "damage then", "damage now", "intervals")


def render_diff(diff: ReportDiff, *, width: int, color: bool) -> str:
    """Returns the summary, ending in a newline, at most 25 lines.

    Args:
        diff: What to show.
        width: Columns; fewer than 60 are taken as 60.
        color: Whether to write ANSI colours.
    """
    columns = max(width, MIN_WIDTH)
    return render_lines(_lines(diff, columns), width=columns, color=color)


def print_diff(diff: ReportDiff, *, stream: TextIO) -> None:
    """Writes the summary to a stream: coloured on a terminal only, and never where NO_COLOR is set."""
    write_lines(lambda width, color: render_diff(diff, width=width, color=color), stream)


def _lines(diff: ReportDiff, width: int) -> Iterable[Text]:
    yield _title(diff, width)
    yield from _wrapped(diff.sentence, width)
    if diff.gates and diff.old.report_digest != diff.new.report_digest:
        yield Text()
        yield from _gate_lines(diff, width)
    if diff.is_comparable:
        counts = f"{len(diff.flips_new):,} new, {len(diff.flips_gone):,} gone"
        yield Text()
        yield Text(f"changed answers: {counts}")
    yield from _change_lines(diff, width)
    for word, side in (("old", diff.old), ("new", diff.new)):
        yield Text(clip(to_ascii(f"{word}: {side.label} ({side.report_digest[:_SHORT]})"), width), style="dim")


def _title(diff: ReportDiff, width: int) -> Text:
    if not diff.is_comparable:
        word, style = "NOT COMPARABLE", "bold yellow"
    else:
        word, style = ("REGRESSION", "bold red") if diff.regressions else ("NO REGRESSION", "bold green")
    before, after = diff.old.admission.value, diff.new.admission.value
    rest = f"  {before}" if before == after else f"  {before} -> {after}"
    return Text(word, style=style).append(clip(rest, width - len(word)), style="not bold default")


def _gate_lines(diff: ReportDiff, width: int) -> Iterable[Text]:
    """Yields the gates that changed, or if none did all of them, as a table."""
    changed = [gate for gate in diff.gates if gate.change is not Change.SAME or _has_parted(gate)]
    chosen = sorted(changed, key=lambda gate: gate.change is not Change.WORSE) or list(diff.gates)
    shown = chosen[:_MOST_GATES]
    cells = [_HEADER, *(_cells(gate) for gate in shown)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADER))]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)), 10)
    for row, gate in zip(cells, (None, *shown), strict=True):
        text = "  ".join(clip(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True))
        yield Text(clip(text.rstrip(), width), style="dim" if gate is None else _STYLES[gate.change])
    rest = len(diff.gates) - len(shown)
    if rest:
        yield Text(clip(f"and {rest} more gates", width), style="dim")


def _has_parted(gate: GateChange) -> bool:
    return gate.do_intervals_overlap is False


def _cells(gate: GateChange) -> tuple[str, ...]:
    outcomes = [_word(outcome) for outcome in (gate.old_outcome, gate.new_outcome)]
    outcome = outcomes[0] if outcomes[0] == outcomes[1] else " -> ".join(outcomes)
    overlap = {None: MISSING, True: "overlap", False: "part"}[gate.do_intervals_overlap]
    unit = unit_beside(gate.unit)
    name = to_ascii(f"{gate.name}, {unit}" if unit else gate.name)
    return (name, outcome, _damage(gate.old, gate.unit), _damage(gate.new, gate.unit), overlap)


def _word(outcome: Outcome | None) -> str:
    words = {Outcome.PASS: "pass", Outcome.FAIL: "FAIL", Outcome.UNDECIDED: "undec."}
    return MISSING if outcome is None else words[outcome]


def _damage(estimate: Estimate | None, unit: str) -> str:
    if estimate is None:
        return MISSING
    value = write_quantity(estimate.value, unit, is_difference=True)
    return f"{value} {write_bounds(estimate.interval, unit, is_difference=True)}"


def _change_lines(diff: ReportDiff, width: int) -> Iterable[Text]:
    if not diff.changes:
        yield Text("made of: the same weights, probes, contract and environment")
    for change in diff.changes[:_MOST_CHANGES]:
        style = "yellow" if change.forbids_comparison else ""
        yield Text(clip(to_ascii(f"{change.what}: {change.old} -> {change.new}"), width), style=style)
    more = len(diff.changes) - _MOST_CHANGES
    if more > 0:
        yield Text(f"and {more} more differences", style="dim")


def _wrapped(text: str, width: int) -> list[Text]:
    lines = textwrap.wrap(to_ascii(text), width)
    if len(lines) > _SENTENCE_LINES:
        lines = [*lines[: _SENTENCE_LINES - 1], clip(" ".join(lines[_SENTENCE_LINES - 1 :]), width)]
    return [Text(line) for line in lines]

"""The markdown page for a pull request: a verdict and a table that fit one screen; everything else is folded."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import NamedTuple

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.reporting.charts import Chart, build_charts, to_svg
from quantaudit.reporting.flips import count_changes
from quantaudit.reporting.markdown_evidence import fold_evidence, write_clause_row
from quantaudit.reporting.markdown_text import bullets, code, fold, prose, table
from quantaudit.reporting.palette import LIGHT
from quantaudit.reporting.plain_words import describe_damage
from quantaudit.reporting.rows import build_rows, outcome_word
from quantaudit.reporting.ruler import MISSING
from quantaudit.reporting.sentences import SAFETY_WARNING, repeat_warning, verdict_reason, warns_about_safety
from quantaudit.reporting.worst import badness, group_families, worst_of

_MOST_DECIDING = 6
_MOST_GATES = 10
_MOST_LINES = 3
_COLUMNS = ("gate", "hi", "lo", "damage", "margin", "outcome")


class Picture(NamedTuple):
    """A chart beside the page: what it shows and its file, relative to the page."""

    title: str
    file: str


class Neighbour(NamedTuple):
    """A view of the same report beside the page."""

    words: str
    file: str


def render_markdown(
    report: AuditReport, *, pictures: tuple[Picture, ...] = (), neighbours: tuple[Neighbour, ...] = ()
) -> str:
    """Returns the page.

    Args:
        report: The report to show.
        pictures: Charts that lie beside the page; the first is in sight, the others are folded.
        neighbours: Other views that lie beside it.
    """
    shown = [_show(picture) for picture in pictures]
    sections = [
        _verdict(report),
        _gates(report),
        *shown[:1],
        _summary(report),
        _links(neighbours),
        *fold_evidence(report),
        fold("Charts", "\n\n".join(shown[1:])) if shown[1:] else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def render_markdown_files(report: AuditReport, path: Path) -> dict[Path, bytes]:
    """Returns the charts and the page, which comes last.

    Args:
        report: The report to show.
        path: The page, such as `report.md`; the charts are `report.forest.svg` and so on.
    """
    charts = _named(path.stem, build_charts(report, LIGHT).all())
    pictures = tuple(Picture(chart.title, file) for file, chart in charts.items())
    views = (("the whole report with all charts", ".html"), ("its data", ".json"))
    neighbours = tuple(Neighbour(words, path.stem + ending) for words, ending in views)
    text = render_markdown(report, pictures=pictures, neighbours=neighbours)
    drawn = {path.parent / f: to_svg(c, ground=LIGHT.card, has_title=True).encode() for f, c in charts.items()}
    return {**drawn, path: text.encode()}


def _named(stem: str, charts: tuple[Chart, ...]) -> dict[str, Chart]:
    """Returns the charts by file name; a name that is taken gets a number."""
    named: dict[str, Chart] = {}
    for chart in charts:
        file = f"{stem}.{chart.name}.svg"
        named[file if file not in named else f"{stem}.{chart.name}-{len(named)}.svg"] = chart
    return named


def _show(picture: Picture) -> str:
    return f"![{prose(picture.title)}]({urllib.parse.quote(picture.file)})"


def _links(neighbours: tuple[Neighbour, ...]) -> str:
    links = [f"[{words}]({urllib.parse.quote(file)})" for words, file in neighbours]
    return f"Beside this page: {', '.join(links)}." if links else ""


def _verdict(report: AuditReport) -> str:
    verdict = report.verdict
    lines = [f"## {verdict.admission.value}: {prose(report.lo.label)} against {prose(report.hi.label)}"]
    lines.append(prose(verdict_reason(verdict)))
    if verdict.deciding:
        more = len(verdict.deciding) - _MOST_DECIDING
        named = ", ".join(code(name) for name in verdict.deciding[:_MOST_DECIDING])
        lines.append(f"Decided by {named}{f' and {more} more' if more > 0 else ''}.")
    lines += [f"> **{prose(text)}**" for text in (repeat_warning(report),) if text]
    if warns_about_safety(report):
        lines.append(f"> **{SAFETY_WARNING}**")
    costs = [line for line in describe_damage(report) if line != SAFETY_WARNING]
    if costs:
        lines.append(bullets(costs))
    return "\n\n".join(lines)


def _gates(report: AuditReport) -> str:
    groups = group_families(report.gates())
    if not groups:
        return ""
    ranked = sorted(groups, key=lambda group: badness(worst_of(group)), reverse=True)
    kept = set(ranked) if len(groups) <= _MOST_GATES else set(ranked[: _MOST_GATES - 1])
    worst = tuple(worst_of(group) for group in groups if group in kept)
    rows = [_short_row(row) for row in map(write_clause_row, build_rows(worst))]
    if len(kept) < len(groups):
        hidden = [gate for group in groups if group not in kept for gate in group]
        passing = sum(gate.decision.outcome is Outcome.PASS for gate in hidden)
        rows.append((f"{len(hidden)} more", "", "", "", "", f"{passing} {outcome_word(hidden[0])}"))
    is_collapsed = len(groups) < len(report.gates())
    remark = "One line a clause; of its families, the worst.\n\n" if is_collapsed else ""
    return f"### Gates\n\n{remark}{table(_COLUMNS, rows)}"


def _short_row(cells: tuple[str, ...]) -> tuple[str, ...]:
    name, _, hi, lo, difference, interval, margin, _, outcome = cells
    damage = difference if interval == prose(MISSING) else f"{difference} {interval}"
    return (name, hi, lo, damage, margin, outcome)


def _summary(report: AuditReport) -> str:
    """Returns a line each on what changed, which alarms fired, what would change the verdict, what was not examined."""
    lines = []
    if report.flips:
        lines.append(f"**{len(report.flips):,} answers changed:** {prose(count_changes(report))}.")
    fired = [code(a.name) for a in report.alarms() if a.decision.outcome is Outcome.FAIL]
    if report.alarms():
        found = f"{', '.join(fired)} fired" if fired else f"none of {len(report.alarms())} fired"
        lines.append(f"**Alarms:** {found}.")
    for title, sentences in (
        ("What would change it", report.verdict.would_change),
        ("Not examined", report.not_examined),
    ):
        lines.append(f"**{title}:** {_some(sentences) or 'the report does not say.'}")
    return bullets(lines, is_markdown=True)


def _some(sentences: tuple[str, ...]) -> str:
    more = len(sentences) - _MOST_LINES
    tail = f" And {more} more." if more > 0 else ""
    return " ".join(prose(s) for s in sentences[:_MOST_LINES]) + tail

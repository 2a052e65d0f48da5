"""The HTML page: one file that opens from disk, asks the network for nothing, and runs no script but its own.

Everything foreign passes through two gates: hidden characters become visible escapes, and Jinja escapes the markup.
Behind them stands a content security policy that allows exactly the one script whose digest it names, and no request at
all. Charts are SVG in the page itself; the script only points at them, filters the flips, and unfolds for print.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from quantaudit.core.report import AuditReport, ExpertMap
from quantaudit.core.serial import Json
from quantaudit.reporting.bit_diff import mark_difference
from quantaudit.reporting.charts import build_charts, to_page
from quantaudit.reporting.extremes import find_extremes
from quantaudit.reporting.flips import count_changes, list_flips, restricted_families
from quantaudit.reporting.headline import build_headlines
from quantaudit.reporting.palette import DARK, LIGHT, PAGE
from quantaudit.reporting.plain_words import describe_damage
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.quantity import write_bounds, write_quantity
from quantaudit.reporting.rows import build_rows
from quantaudit.reporting.ruler import MISSING, write_number
from quantaudit.reporting.sentences import (
    SAFETY_WARNING,
    collect_notes,
    control_note,
    repeat_warning,
    verdict_reason,
    warns_about_safety,
)
from quantaudit.reporting.topics import WITHIN, group_topics

_MOST_WITNESSES = 12
_MOST_DISCREPANCIES = 40
_MOST_TOLD = 150_000  # cells whose values the page carries for the pointer
_FLIPS_AT_ONCE = 12
_DIGITS = 4


def render_html(report: AuditReport) -> str:
    """Returns the page: self-contained, under 3 MB."""
    environment = _environment()
    script = Markup(environment.get_template("page.js.j2").render())
    charts = build_charts(report, PAGE)
    discrepancies = report.discrepancies[:_MOST_DISCREPANCIES]
    return environment.get_template("page.html.j2").render(
        report=report,
        digest=report.report_digest(),
        reason=verdict_reason(report.verdict),
        plain_words=describe_damage(report),
        headlines=build_headlines(report),
        stages=[(stage, tuple(rows)) for stage, rows in groupby(build_rows(report.gates()), key=lambda r: r.stage)],
        alarms=build_rows(report.alarms()),
        safety_warning=SAFETY_WARNING if warns_about_safety(report) else "",
        repeat_warning=repeat_warning(report),
        control_note=control_note(report),
        notes=collect_notes(report),
        forest=charts.forest,
        ladder=charts.ladder,
        topics=group_topics(report, charts.series),
        within=WITHIN,
        flips=list_flips(report),
        flip_counts=count_changes(report),
        flips_at_once=_FLIPS_AT_ONCE,
        restricted=restricted_families(report),
        heatmaps=[(i, table, chart, find_extremes(table)) for i, (table, chart) in enumerate(charts.heatmaps)],
        cells=_cells(tuple(table for table, _ in charts.heatmaps)),
        profiles=charts.profiles,
        witnesses=report.witnesses[:_MOST_WITNESSES],
        discrepancies=[(d, mark_difference(d.hi_bits, d.lo_bits)) for d in discrepancies],
        light=LIGHT.variables(),
        dark=DARK.variables(),
        script=script,
        policy=_policy(script),
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("quantaudit.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show,
    )
    environment.filters.update(
        typeset=_typeset, percent=_percent, number=_number, quantity=write_quantity, bounds=write_bounds, draw=to_page
    )
    return environment


def _show(value: object) -> object:
    """Escapes hidden characters in every foreign text that reaches the page; line breaks may stay."""
    return show_hidden(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


def _typeset(number: str) -> str:
    """Returns a written number with a real minus sign, plus-minus sign and infinity."""
    if number == MISSING:
        return "\u2013"
    return number.replace("+/-", "\u00b1").replace("-", "\u2212").replace("inf", "\u221e")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _number(value: float | None) -> str:
    return _typeset(MISSING if value is None else write_number(value, digits=4))


def _policy(script: Markup) -> str:
    digest = base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src 'sha256-{digest}'; {rest}"


def _cells(tables: tuple[ExpertMap, ...]) -> Markup:
    """Returns the values of the heat maps as JSON for the script; tables too large to tell are left out."""
    if sum(len(row) for table in tables for row in table.values) > _MOST_TOLD:
        return Markup("[]")
    told: list[Json] = [
        {
            "title": show_hidden(f"{t.title} ({t.unit})" if t.unit else t.title),
            "layers": [*t.layers],
            "rows": [[_rounded(v) for v in row] for row in t.values],
        }
        for t in tables
    ]
    text = json.dumps(told, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")

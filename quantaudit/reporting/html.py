"""The HTML page: one file that opens from disk, asks the network for nothing, and runs no script but its own.

Everything foreign passes through two gates: hidden characters become visible escapes, and Jinja escapes the markup.
Behind them stands a content security policy that allows exactly the two scripts whose digests it names, and no
request at all. Charts are there as static pictures first; the script replaces them by interactive ones.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from dataclasses import dataclass
from itertools import groupby

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from quantaudit.core.report import AuditReport
from quantaudit.reporting.bit_diff import mark_difference
from quantaudit.reporting.charts import Chart, build_charts, to_svg
from quantaudit.reporting.extremes import find_extremes
from quantaudit.reporting.headline import build_headlines
from quantaudit.reporting.palette import DARK, LIGHT, PAGE
from quantaudit.reporting.plaintext import show_hidden
from quantaudit.reporting.rows import build_rows
from quantaudit.reporting.ruler import MISSING, write_number
from quantaudit.reporting.sentences import SAFETY_WARNING, collect_notes, verdict_reason, warns_about_safety

_MOST_STATIC_MARKS = 4000  # beyond it the static copies of the charts would outgrow the page
_MOST_SVG_MARKS = 4000  # beyond it one chart is drawn on a canvas
_MOST_WITNESSES = 12
_MOST_DISCREPANCIES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A chart as the page holds it."""

    chart: Chart
    spec: Markup
    picture: Markup | None
    renderer: str


def render_html(report: AuditReport) -> str:
    """Returns the page: self-contained, under 3 MB."""
    environment = _environment()
    library, script = _library(), Markup(environment.get_template("charts.js.j2").render())
    charts = build_charts(report, PAGE)
    has_pictures = sum(chart.num_marks for chart in charts.all()) <= _MOST_STATIC_MARKS
    return environment.get_template("page.html.j2").render(
        report=report,
        digest=report.report_digest(),
        reason=verdict_reason(report.verdict),
        headlines=build_headlines(report),
        stages=[(stage, tuple(rows)) for stage, rows in groupby(build_rows(report.gates()), key=lambda r: r.stage)],
        alarms=build_rows(report.alarms()),
        safety_warning=SAFETY_WARNING if warns_about_safety(report) else "",
        notes=collect_notes(report),
        forest=_figure(charts.forest, has_picture=True) if charts.forest else None,
        heatmaps=[(_figure(c, has_picture=has_pictures), t, find_extremes(t)) for t, c in charts.heatmaps],
        profiles=[(_figure(c, has_picture=has_pictures), p) for p, c in charts.profiles],
        witnesses=report.witnesses[:_MOST_WITNESSES],
        discrepancies=[(d, mark_difference(d.hi_bits, d.lo_bits)) for d in report.discrepancies[:_MOST_DISCREPANCIES]],
        light=LIGHT.variables(),
        dark=DARK.variables(),
        library=library,
        script=script,
        policy=_policy(library, script),
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
    environment.filters.update(typeset=_typeset, percent=_percent, number=_number)
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


def _number(value: float) -> str:
    return _typeset(write_number(value, digits=4))


@functools.cache
def _library() -> Markup:
    """Returns Vega, Vega-Lite and Vega-Embed, with only the one function that the page calls left in sight."""
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    assert "</script" not in text.lower(), "the chart library would end its own script element"
    return Markup("(function () {" + text + "\n})();")


def _policy(*scripts: Markup) -> str:
    digests = (base64.b64encode(hashlib.sha256(str(s).encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _figure(chart: Chart, *, has_picture: bool) -> _Figure:
    spec = json.dumps(chart.spec, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        spec = spec.replace(character, f"\\u{ord(character):04x}")
    return _Figure(
        chart=chart,
        spec=Markup(spec),
        picture=Markup(to_svg(chart)) if has_picture else None,
        renderer="svg" if chart.num_marks <= _MOST_SVG_MARKS else "canvas",
    )

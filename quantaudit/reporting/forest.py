"""The forest plot: every gate's damage interval as a share of its margin, so that all of them share one axis.

x = damage / margin: 0 is no damage, 1 is the margin. A pale bar marks what the clause tolerates (a clause that counts
both directions is closed on the left too), a darker band what hi shows against itself (the floor). What lies beyond
the axis ends in an arrow with its size, and a clause without an interval says why: the failing one is always in sight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import altair as alt

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import Json
from quantaudit.reporting.chart import Chart, finish_chart
from quantaudit.reporting.forest_layout import WORDS, Axis, ForestRow, lay_out_forest, write_multiple
from quantaudit.reporting.palette import Palette

TITLE = "Damage against margin"
CAPTION = (
    "Damage as a share of its margin, with its interval; a gate without a margin shows its damage. "
    "Pale bar: what the contract tolerates. Dark band: the floor, hi against itself."
)
_ROW_HEIGHT = 24
_WIDEST_NAME, _LETTER, _PADDING = 170, 7, 8  # pixels
_SHAPES = {Outcome.PASS: "circle", Outcome.FAIL: "square", Outcome.UNDECIDED: "diamond"}
_TOOLTIP = ["clause:N", "outcome:N", "damage:N", "interval:N", "margin:N", "floor:N"]

_Row: TypeAlias = dict[str, Json]


class _Frame(NamedTuple):
    """What all layers share."""

    axis: Axis
    names: list[str]
    palette: Palette


def build_forest(report: AuditReport, palette: Palette) -> Chart | None:
    """Returns the forest plot of the gates and of the alarms that have a margin; `None` if there are none."""
    layout = lay_out_forest(report)
    if not layout.rows:
        return None
    frame = _Frame(layout.axis, layout.names(), palette)
    layers = [
        _allowed(layout.rows, frame),
        _floors(layout.rows, frame),
        *_lines(layout.margin_lines, frame),
        *_intervals(layout.rows, frame),
        *_beyond(layout.rows, frame),
        *_without_interval(layout.rows, frame),
    ]
    chart = alt.layer(*layers).properties(height=_ROW_HEIGHT * len(frame.names))
    return finish_chart(
        chart,
        name="forest",
        title=TITLE,
        caption=CAPTION,
        num_marks=len(layers) * len(layout.rows),
        palette=palette,
        label_width=min(max(map(len, frame.names)) * _LETTER, _WIDEST_NAME) + _PADDING,
    )


def _allowed(rows: tuple[ForestRow, ...], frame: _Frame) -> alt.Chart:
    bars: list[_Row] = [{**row.words, "from": row.allowed[0], "to": row.allowed[1]} for row in rows]
    return _bars(bars, frame, color=frame.palette.allowed, height=18)


def _floors(rows: tuple[ForestRow, ...], frame: _Frame) -> alt.Chart:
    clamp = frame.axis.clamp
    bands: list[_Row] = [
        {**row.words, "from": clamp(-row.span.floor), "to": clamp(row.span.floor)}
        for row in rows
        if row.span is not None and row.span.floor > 0
    ]
    return _bars(bands, frame, color=frame.palette.floor, height=10)


def _bars(values: list[_Row], frame: _Frame, *, color: str, height: int) -> alt.Chart:
    chart: alt.Chart = _base(values, frame, x="from").mark_bar(color=color, height=height, aria=False)
    return chart.encode(x2="to:Q", tooltip=_TOOLTIP)


def _lines(margins: tuple[float, ...], frame: _Frame) -> list[alt.Chart]:
    zero = alt.Chart(alt.InlineData(values=[{"x": 0.0}])).mark_rule(aria=False, color=frame.palette.muted, opacity=0.35)
    dashed = alt.Chart(alt.InlineData(values=[{"x": x} for x in margins]))
    margin = dashed.mark_rule(aria=False, color=frame.palette.muted, strokeDash=[5, 4])
    return [zero.encode(x=_x("x", frame)), margin.encode(x=_x("x", frame))]


def _intervals(rows: tuple[ForestRow, ...], frame: _Frame) -> list[alt.Chart]:
    clamp = frame.axis.clamp
    spans = [(row.words, row.span) for row in rows if row.span is not None]
    lines: list[_Row] = [{**words, "lower": clamp(span.lower), "upper": clamp(span.upper)} for words, span in spans]
    points: list[_Row] = [{**words, "value": span.value} for words, span in spans if frame.axis.holds(span.value)]
    line = _base(lines, frame, x="lower").mark_rule(strokeWidth=2.5, strokeCap="round", aria=False)
    point = _base(points, frame, x="value").mark_point(filled=True, size=85, opacity=1)
    return [
        line.encode(x2="upper:Q", color=_colors(frame), tooltip=_TOOLTIP),
        point.encode(color=_colors(frame), shape=_shapes(), tooltip=_TOOLTIP),
    ]


def _beyond(rows: tuple[ForestRow, ...], frame: _Frame) -> list[alt.Chart]:
    """Returns the arrows at the ends of the axis, and the sizes of the damages that lie beyond it."""
    left, right = frame.axis
    arrows: list[_Row] = []
    for row in rows:
        if row.span is None:
            continue
        if row.span.upper > right:
            size = write_multiple(row.span.value) if row.span.value > right else ""
            arrows.append({**row.words, "x": right, "angle": 90, "size": size})
        if row.span.lower < left:
            size = write_multiple(row.span.value) if row.span.value < left else ""
            arrows.append({**row.words, "x": left, "angle": -90, "size": size})
    base = _base(arrows, frame, x="x").encode(color=_colors(frame))
    labelled = base.encode(text="size:N")
    at_right, at_left = labelled.transform_filter("datum.x > 0"), labelled.transform_filter("datum.x < 0")
    arrow = base.mark_point(shape="triangle", filled=True, size=70, opacity=1, aria=False)
    return [
        arrow.encode(angle=alt.Angle("angle:Q", scale=None)),
        at_right.mark_text(aria=False, align="right", dx=-12, fontWeight="bold", fontSize=11),
        at_left.mark_text(aria=False, align="left", dx=12, fontWeight="bold", fontSize=11),
    ]


def _without_interval(rows: tuple[ForestRow, ...], frame: _Frame) -> list[alt.Chart]:
    values: list[_Row] = [{**row.words, "x": 0.0, "text": row.instead} for row in rows if row.span is None]
    base = _base(values, frame, x="x").encode(color=_colors(frame), tooltip=_TOOLTIP)
    return [
        base.mark_point(filled=True, size=85, opacity=1).encode(shape=_shapes()),
        base.mark_text(align="left", dx=10, aria=False).encode(text="text:N"),
    ]


def _base(values: Sequence[_Row], frame: _Frame, *, x: str) -> alt.Chart:
    axis = alt.Axis(
        labelColor=frame.palette.ink,
        labelLimit=_WIDEST_NAME,
        labelPadding=_PADDING,
        ticks=False,
        domain=False,
    )
    y = alt.Y("clause:N", axis=axis, sort=None, title=None, scale=alt.Scale(domain=frame.names))
    return alt.Chart(alt.InlineData(values=list(values))).encode(x=_x(x, frame), y=y)


def _x(field: str, frame: _Frame) -> alt.X:
    left, right = frame.axis
    x = alt.X(f"{field}:Q").scale(domain=[left, right], nice=False).title("damage as a share of the margin")
    ticks = list(range(math.ceil(left), math.floor(right) + 1))
    return x.axis(values=ticks, format="~g", grid=False, labelOverlap=True)


def _colors(frame: _Frame) -> alt.Color:
    palette = frame.palette
    colors = [palette.passing, palette.failing, palette.undecided]
    legend = alt.Legend(orient="top", title=None, symbolSize=85)
    return alt.Color("outcome:N").scale(domain=list(WORDS.values()), range=colors).legend(legend)


def _shapes() -> alt.Shape:
    return alt.Shape("outcome:N").scale(domain=list(WORDS.values()), range=[_SHAPES[o] for o in WORDS])

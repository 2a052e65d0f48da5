"""The forest plot: every gate's damage interval as a share of its margin, so that all of them share one axis.

x = damage / margin: 0 is no damage, 1 is the margin. A pale bar marks what the clause tolerates (a clause that counts
both directions is closed on the left too), a darker band what hi shows against itself (the floor). What lies beyond
the axis ends in an arrow with its size, and a clause without an interval says why: the failing one is always in sight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.reporting.chart import Chart
from quantaudit.reporting.forest_layout import WORDS, ForestLayout, ForestRow, Span, lay_out_forest, write_multiple
from quantaudit.reporting.marks import Anchor, Bar, Line, Mark, Point, Shape, Tip, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import clip

TITLE = "Damage against margin"
CAPTION = (
    "Damage as a share of its margin, with its interval; a gate without a margin shows its damage. "
    "Pale bar: what the contract tolerates. Dark band: the floor, hi against itself."
)
ROW, TOP, BOTTOM = 24, 30, 42
SHAPES = {Outcome.PASS: Shape.CIRCLE, Outcome.FAIL: Shape.SQUARE, Outcome.UNDECIDED: Shape.DIAMOND}
_MOST_LETTERS, _LETTER, _PADDING = 26, 6.9, 10
_LEGEND_STEP = 66
_ALLOWED, _FLOOR = 18, 10  # heights of the bars


def build_forest(report: AuditReport, palette: Palette) -> Chart | None:
    """Returns the forest plot of the gates and of the alarms that have a margin; `None` if there are none."""
    layout = lay_out_forest(report)
    if not layout.rows:
        return None
    bottom = TOP + ROW * len(layout.rows)
    marks = [
        *legend(palette),
        *(mark for i, row in enumerate(layout.rows) for mark in _ground(row, layout, _middle(i), palette)),
        *_axis(layout, bottom, palette),
        *(mark for i, row in enumerate(layout.rows) for mark in _row(row, layout, _middle(i), palette)),
    ]
    longest = max(len(name_row(name)) for name in layout.names())
    return Chart(
        name="forest",
        title=TITLE,
        caption=CAPTION,
        height=bottom + BOTTOM,
        left=longest * _LETTER + _PADDING,
        right=10,
        marks=tuple(marks),
        palette=palette,
    )


def legend(palette: Palette) -> Iterator[Mark]:
    """Yields the three outcomes with their shapes."""
    for i, (outcome, word) in enumerate(WORDS.items()):
        yield Point(x=0, y=10, dx=6 + i * _LEGEND_STEP, shape=SHAPES[outcome], color=tone(outcome, palette))
        yield Words(x=0, y=14, dx=16 + i * _LEGEND_STEP, text=word, color=palette.muted)


def tone(outcome: Outcome, palette: Palette) -> str:
    """Returns the colour of an outcome."""
    tones = {Outcome.PASS: palette.passing, Outcome.FAIL: palette.failing, Outcome.UNDECIDED: palette.undecided}
    return tones[outcome]


def name_row(name: str) -> str:
    """Returns the name as it stands beside its row."""
    return clip(name, _MOST_LETTERS)


def _middle(index: int) -> float:
    return TOP + ROW * (index + 0.5)


def _ground(row: ForestRow, layout: ForestLayout, y: float, palette: Palette) -> Iterator[Mark]:
    axis = layout.axis
    left, right = (axis.place(edge) for edge in row.allowed)
    yield Bar(start=left, end=right, y=y - _ALLOWED / 2, height=_ALLOWED, color=palette.allowed)
    if row.span is not None and row.span.floor > 0:
        left, right = axis.place(-row.span.floor), axis.place(row.span.floor)
        yield Bar(start=left, end=right, y=y - _FLOOR / 2, height=_FLOOR, color=palette.floor)


def _axis(layout: ForestLayout, bottom: float, palette: Palette) -> Iterator[Mark]:
    axis = layout.axis
    for x, is_dashed in ((0.0, False), *((margin, True) for margin in layout.margin_lines)):
        place = axis.place(x)
        yield Line(x0=place, y0=TOP - 4, x1=place, y1=bottom, color=palette.muted, is_dashed=is_dashed)
    for tick in range(math.ceil(axis.left), math.floor(axis.right) + 1):
        text = "margin" if tick == 1 else str(tick)
        yield Words(x=axis.place(tick), y=bottom + 16, text=text, color=palette.muted, anchor=Anchor.MIDDLE)
    title = "damage as a share of the margin"
    yield Words(x=0.5, y=bottom + 34, text=title, color=palette.muted, anchor=Anchor.MIDDLE)


def _row(row: ForestRow, layout: ForestLayout, y: float, palette: Palette) -> Iterator[Mark]:
    color = tone(row.outcome, palette)
    name = name_row(row.words["clause"])
    yield Words(x=0, y=y + 4, dx=-_PADDING, text=name, color=palette.ink, anchor=Anchor.END)
    if row.span is None:
        zero = layout.axis.place(0.0)
        yield Point(x=zero, y=y, shape=SHAPES[row.outcome], color=color)
        yield Words(x=zero, y=y + 4, dx=10, text=row.instead, color=color)
    else:
        yield from _interval(row.span, row.outcome, layout, y, color)
    tip = "\n".join(f"{key}: {value}" if key != "clause" else value for key, value in row.words.items())
    yield Tip(start=0, end=1, y=y - ROW / 2, height=ROW, text=tip)


def _interval(span: Span, outcome: Outcome, layout: ForestLayout, y: float, color: str) -> Iterator[Mark]:
    axis = layout.axis
    yield Line(x0=axis.place(span.lower), y0=y, x1=axis.place(span.upper), y1=y, color=color, width=2.5)
    if axis.holds(span.value):
        yield Point(x=axis.place(span.value), y=y, shape=SHAPES[outcome], color=color)
    if span.upper > axis.right:
        yield Point(x=1, y=y, shape=Shape.RIGHT, color=color)
        if span.value > axis.right:
            size = write_multiple(span.value)
            yield Words(x=1, y=y + 4, dx=-12, text=size, color=color, anchor=Anchor.END, is_bold=True)
    if span.lower < axis.left:
        yield Point(x=0, y=y, shape=Shape.LEFT, color=color)
        if span.value < axis.left:
            yield Words(x=0, y=y + 4, dx=12, text=write_multiple(span.value), color=color, is_bold=True)

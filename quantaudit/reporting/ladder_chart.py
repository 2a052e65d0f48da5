"""The ladder of bit widths: what fewer and fewer bits do to likelihood and to accuracy, on the same probes.

One row a scheme, the widest first, with its damage and interval. Damage grows by orders of magnitude down the ladder,
so the axis is bent (`axis.damage_axis`) where it must be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from quantaudit.core.decision import Estimate
from quantaudit.core.diagnostic import Ladder, Rung
from quantaudit.reporting.axis import Axis, damage_axis
from quantaudit.reporting.chart import Chart
from quantaudit.reporting.marks import Anchor, Line, Mark, Point, Shape, Tip, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import clip
from quantaudit.reporting.quantity import write_bounds, write_quantity

_TOP, _ROW, _BOTTOM = 10, 26, 44
_MOST_LETTERS, _LETTER, _PADDING = 24, 6.9, 10
_CROWDED = 0.1  # of the width: a number nearer to the zero than this is left out
_CAPTION = "Hi with its experts rounded to nearest in one scheme, against hi itself. Positive is worse."
_BENT = " The axis is bent: even steps are tenfold."


def build_ladder(ladder: Ladder, palette: Palette) -> tuple[Chart, ...]:
    """Returns one chart of the likelihood and one of the accuracy; none if the ladder has no rung."""
    if not ladder.rungs:
        return ()
    likelihoods = tuple(rung.nll for rung in ladder.rungs)
    accuracies = tuple(rung.accuracy for rung in ladder.rungs)
    return (
        _build("ladder-nll", "Loss of likelihood by bit width", "nats", "nats", ladder.rungs, likelihoods, palette),
        _build(
            "ladder-accuracy", "Loss of accuracy by bit width", "share", "points", ladder.rungs, accuracies, palette
        ),
    )


def _build(
    name: str,
    title: str,
    unit: str,
    shown_unit: str,
    rungs: tuple[Rung, ...],
    estimates: Sequence[Estimate],
    palette: Palette,
) -> Chart:
    factor = 100.0 if unit == "share" else 1.0
    axis = damage_axis([factor * v for e in estimates for v in (e.value, e.interval.lower, e.interval.upper)])
    bottom = _TOP + _ROW * len(rungs)
    marks: list[Mark] = [*_axis(axis, bottom, palette)]
    for i, (rung, found) in enumerate(zip(rungs, estimates, strict=True)):
        y = _TOP + _ROW * (i + 0.5)
        label = clip(f"{rung.bits} bits  {rung.scheme}", _MOST_LETTERS)
        marks.append(Words(x=0, y=y + 4, dx=-_PADDING, text=label, color=palette.ink, anchor=Anchor.END))
        marks += _rung(found, factor, axis, y, palette)
        marks.append(Tip(start=0, end=1, y=y - _ROW / 2, height=_ROW, text=_tip(rung, found, unit)))
    title_below = f"damage, {shown_unit}"
    marks.append(Words(x=0.5, y=bottom + 34, text=title_below, color=palette.muted, anchor=Anchor.MIDDLE))
    longest = max(len(clip(f"{r.bits} bits  {r.scheme}", _MOST_LETTERS)) for r in rungs)
    return Chart(
        name=name,
        title=title,
        caption=_CAPTION + (_BENT if axis.softness else ""),
        height=bottom + _BOTTOM,
        left=longest * _LETTER + _PADDING,
        right=18,
        marks=tuple(marks),
        palette=palette,
    )


def _axis(axis: Axis, bottom: float, palette: Palette) -> Iterator[Mark]:
    for tick in axis.ticks:
        place, color = axis.place(tick), palette.line if tick else palette.muted
        yield Line(x0=place, y0=_TOP - 4, x1=place, y1=bottom, color=color)
        if not tick or not axis.softness or abs(place - axis.place(0.0)) > _CROWDED:
            yield Words(x=place, y=bottom + 16, text=axis.write(tick), color=palette.muted, anchor=Anchor.MIDDLE)


def _rung(found: Estimate, factor: float, axis: Axis, y: float, palette: Palette) -> Iterator[Mark]:
    lower, upper = (factor * bound for bound in (found.interval.lower, found.interval.upper))
    if math.isfinite(lower) and math.isfinite(upper):
        yield Line(x0=axis.place(lower), y0=y, x1=axis.place(upper), y1=y, color=palette.series, width=2.5)
    yield Point(x=axis.place(factor * found.value), y=y, shape=Shape.CIRCLE, color=palette.series)


def _tip(rung: Rung, found: Estimate, unit: str) -> str:
    value = write_quantity(found.value, unit, is_difference=True)
    interval = write_bounds(found.interval, unit, is_difference=True)
    return f"{rung.scheme}, {rung.bits} bits\ndamage: {value}\ninterval: {interval}"

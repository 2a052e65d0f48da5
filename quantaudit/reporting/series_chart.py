"""A metric along an axis: a line where the axis is numbers, a row of its own each where it is names.

The dashed line, or the upright stroke of a row, is the floor: what hi shows against itself. Points no further from
nothing than it are hollow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quantaudit.core.diagnostic import Series, Topic
from quantaudit.core.report import LayerProfile
from quantaudit.reporting.axis import Axis, linear_axis
from quantaudit.reporting.chart import Chart, slug
from quantaudit.reporting.floor import within_floor
from quantaudit.reporting.marks import Anchor, Line, Mark, Point, Shape, Tip, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import clip
from quantaudit.reporting.quantity import scale_of, write_quantity

_PLOT, _TOP, _BOTTOM, _LEFT = 170, 26, 44, 58
_ROW, _MOST_LETTERS, _LETTER, _PADDING = 24, 24, 6.9, 10
_INSET = 0.03  # of the width, left free at both ends of a line
_MOST_LABELS, _MOST_POINTS, _MOST_AXIS = 9, 60, 40
_CROWDED = 0.3  # of the mean distance: closer labels would touch


class _Dot(NamedTuple):
    """One measured place: its place along the axis, its value, and its floor if there is one."""

    at: int
    value: float
    floor: float | None
    is_within: bool


def build_series(series: Series, palette: Palette) -> Chart | None:
    """Returns the chart of a series; `None` if it has no finite value."""
    dots = _dots(series)
    if not dots:
        return None
    values = [v for dot in dots for v in (dot.value, dot.floor) if v is not None]
    axis = linear_axis(values, has_zero=_has_zero(series, values))
    return (_line_chart if _is_numeric(series.labels) else _row_chart)(series, dots, axis, palette)


def as_series(profile: LayerProfile) -> Series:
    """Returns a layer profile as a series along the layers."""
    finite = [v if math.isfinite(v) else None for v in profile.values]
    floor = [*profile.floor, *[None] * len(profile.layers)][: len(profile.layers)] if profile.floor else []
    return Series(
        name=profile.name,
        topic=Topic.ROUTING,
        title=profile.title,
        axis="layer",
        unit=profile.unit,
        larger_is_better=profile.larger_is_better,
        labels=tuple(map(str, profile.layers)),
        values=tuple([*finite, *[None] * len(profile.layers)][: len(profile.layers)]),
        floor=tuple(floor),
    )


def _dots(series: Series) -> list[_Dot]:
    factor = scale_of(series.unit).factor
    floors = series.floor or (None,) * len(series.values)
    rows = enumerate(zip(series.values, floors, within_floor(series), strict=True))
    return [
        _Dot(i, factor * value, None if floor is None or not math.isfinite(floor) else factor * floor, is_within)
        for i, (value, floor, is_within) in rows
        if value is not None and math.isfinite(value)
    ]


def _has_zero(series: Series, values: Sequence[float]) -> bool:
    """Tells whether the axis starts at zero: not for agreements, which would all stick to its far end."""
    return not (series.larger_is_better and min(values) > max(values) / 2)


def _positions(labels: tuple[str, ...]) -> list[float]:
    """Returns where the labels lie: at their numbers, or evenly where some would lie on top of each other."""
    numbers = [float(label) for label in labels]
    return [float(i) for i in range(len(numbers))] if _is_crowded(labels) else numbers


def _is_crowded(labels: tuple[str, ...]) -> bool:
    numbers = [float(label) for label in labels]
    least = min(b - a for a, b in zip(numbers, numbers[1:], strict=False))
    return least < _CROWDED * (numbers[-1] - numbers[0]) / (len(numbers) - 1)


def _is_numeric(labels: tuple[str, ...]) -> bool:
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return False
    return len(numbers) > 1 and all(a < b for a, b in zip(numbers, numbers[1:], strict=False))


def _line_chart(series: Series, dots: list[_Dot], axis: Axis, palette: Palette) -> Chart:
    numbers = _positions(series.labels)

    def x(index: int) -> float:
        share = (numbers[index] - numbers[0]) / (numbers[-1] - numbers[0])
        return _INSET + (1 - 2 * _INSET) * share

    def y(value: float) -> float:
        return _TOP + _PLOT * (1 - axis.place(value))

    marks: list[Mark] = [Words(x=0, y=12, dx=-_LEFT, text=_value_title(series), color=palette.muted)]
    for tick in axis.ticks:
        marks.append(Line(x0=0, y0=y(tick), x1=1, y1=y(tick), color=palette.line))
        text = axis.write(tick)
        marks.append(Words(x=0, y=y(tick) + 4, dx=-8, text=text, color=palette.muted, anchor=Anchor.END))
    floors = [(x(d.at), y(d.floor)) for d in dots if d.floor is not None]
    marks += _path(floors, palette.muted, 1.5, is_dashed=True)
    if floors:
        place, height = floors[-1]
        marks.append(Words(x=place, y=height - 6, text="floor", color=palette.muted, anchor=Anchor.END))
    marks += _path([(x(d.at), y(d.value)) for d in dots], palette.series, 2.5)
    marks += [_dot(x(d.at), y(d.value), d, palette) for d in dots if len(dots) <= _MOST_POINTS]
    marks += _bottom(series, x, palette)
    width = 1 / len(series.labels)
    marks += [
        Tip(start=max(x(d.at) - width / 2, 0), end=min(x(d.at) + width / 2, 1), y=_TOP, height=_PLOT, text=text)
        for d, text in ((d, _tip(series, d)) for d in dots)
    ]
    return _finish(series, marks, _TOP + _PLOT + _BOTTOM, _LEFT, palette)


def _bottom(series: Series, x: Callable[[int], float], palette: Palette) -> Iterator[Mark]:
    every = max(1, math.ceil(len(series.labels) / _MOST_LABELS))
    for i in range(0, len(series.labels), every):
        text = series.labels[i]
        yield Words(x=x(i), y=_TOP + _PLOT + 17, text=text, color=palette.muted, anchor=Anchor.MIDDLE)
    yield Words(
        x=0.5, y=_TOP + _PLOT + 36, text=clip(series.axis, _MOST_AXIS), color=palette.muted, anchor=Anchor.MIDDLE
    )


def _path(points: list[tuple[float, float]], color: str, width: float, *, is_dashed: bool = False) -> Iterator[Mark]:
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        yield Line(x0=x0, y0=y0, x1=x1, y1=y1, color=color, width=width, is_dashed=is_dashed)


def _row_chart(series: Series, dots: list[_Dot], axis: Axis, palette: Palette) -> Chart:
    bottom = _TOP + _ROW * len(series.labels)
    found = {dot.at: dot for dot in dots}
    marks: list[Mark] = [Words(x=0, y=12, text=_value_title(series), color=palette.muted)]
    for tick in axis.ticks:
        place = axis.place(tick)
        marks.append(Line(x0=place, y0=_TOP - 4, x1=place, y1=bottom, color=palette.line))
        text = axis.write(tick)
        marks.append(Words(x=place, y=bottom + 16, text=text, color=palette.muted, anchor=Anchor.MIDDLE))
    for i, label in enumerate(series.labels):
        y = _TOP + _ROW * (i + 0.5)
        name = clip(label, _MOST_LETTERS)
        marks.append(Words(x=0, y=y + 4, dx=-_PADDING, text=name, color=palette.ink, anchor=Anchor.END))
        marks += _row(series, found.get(i), axis, y, palette)
    left = max(len(clip(label, _MOST_LETTERS)) for label in series.labels) * _LETTER + _PADDING
    return _finish(series, marks, bottom + 26, left, palette)


def _row(series: Series, dot: _Dot | None, axis: Axis, y: float, palette: Palette) -> Iterator[Mark]:
    if dot is None:
        yield Words(x=0, y=y + 4, dx=6, text="not measured", color=palette.muted)
        return
    if axis.holds(0.0):
        color = palette.muted if dot.is_within else palette.series
        yield Line(x0=axis.place(0.0), y0=y, x1=axis.place(dot.value), y1=y, color=color, width=2.5)
    if dot.floor is not None:
        place = axis.place(dot.floor)
        yield Line(x0=place, y0=y - 8, x1=place, y1=y + 8, color=palette.muted, width=2)
    yield _dot(axis.place(dot.value), y, dot, palette)
    yield Tip(start=0, end=1, y=y - _ROW / 2, height=_ROW, text=_tip(series, dot))


def _dot(x: float, y: float, dot: _Dot, palette: Palette) -> Point:
    color = palette.muted if dot.is_within else palette.series
    return Point(x=x, y=y, shape=Shape.CIRCLE, color=color, radius=4.5, is_filled=not dot.is_within)


def _tip(series: Series, dot: _Dot) -> str:
    value, floor = series.values[dot.at], series.floor[dot.at] if series.floor else None
    unit = scale_of(series.unit).unit.removeprefix("%").strip()
    lines = [f"{series.axis} {series.labels[dot.at]}", f"{write_quantity(value, series.unit)} {unit}".strip()]
    if floor is not None:
        lines.append(f"floor {write_quantity(floor, series.unit)}" + (": within the floor" if dot.is_within else ""))
    if series.counts:
        lines.append(f"n = {series.counts[dot.at]:,}")
    return "\n".join(lines)


def _value_title(series: Series) -> str:
    return clip(scale_of(series.unit).unit or "value", _MOST_AXIS)


def _caption(series: Series) -> str:
    senses = {None: "Neither way is better.", True: "Larger is better.", False: "Smaller is better."}
    has_floor = any(f is not None for f in series.floor)
    mark = "Dashed line" if _is_numeric(series.labels) else "Upright stroke"
    floor = f"{mark}: the floor, hi against itself." if has_floor else "No floor was measured."
    hollow = " Hollow: within the floor." if any(within_floor(series)) else ""
    spacing = " Not to scale." if _is_numeric(series.labels) and _is_crowded(series.labels) else ""
    return f"By {series.axis}.{spacing} {senses[series.larger_is_better]} {floor}{hollow}"


def _finish(series: Series, marks: list[Mark], height: float, left: float, palette: Palette) -> Chart:
    return Chart(
        name=slug(series.name),
        title=series.title,
        caption=_caption(series),
        height=height,
        left=left,
        right=18,
        marks=tuple(marks),
        palette=palette,
    )

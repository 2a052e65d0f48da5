"""A layer x expert heat map: the stronger a cell, the worse it is; where nothing was measured a cell stays hollow.

Seven steps instead of a gradient: steps can be told apart and compared with the legend, and the colours may be CSS
variables, which cannot be blended. One path holds all cells of a step, so a map of thousands of experts stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantaudit.core.report import ExpertMap
from quantaudit.reporting.chart import Chart, slug
from quantaudit.reporting.marks import Anchor, Grid, Mark, Swatch, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import clip

NUM_STEPS = 7
_TOP, _BOTTOM, _LEFT = 48, 38, 44
_TALL_ROW, _SHORT_ROW, _MANY_LAYERS = 26, 9, 24
_SWATCH = 38
_MOST_LABELS, _MOST_UNIT = 9, 24


def build_heatmap(shown: ExpertMap, palette: Palette) -> Chart | None:
    """Returns the heat map of one table; `None` if it has no finite value."""
    finite = [v for row in shown.values for v in row if v is not None and math.isfinite(v)]
    if not finite:
        return None
    step = _SHORT_ROW if len(shown.layers) > _MANY_LAYERS else _TALL_ROW
    height = step * len(shown.layers)
    low, high = _range(finite)
    marks = [
        *_legend(shown, low, high, palette),
        _grid(shown, low, high, height, palette),
        *_labels(shown, step, height, palette),
    ]
    return Chart(
        name=slug(shown.name),
        title=shown.title,
        caption=_caption(shown),
        height=_TOP + height + _BOTTOM,
        left=_LEFT,
        right=8,
        marks=tuple(marks),
        palette=palette,
    )


def step_of(value: float, low: float, high: float) -> int:
    """Returns the step of a value, 0 to 6."""
    return min(int((value - low) / (high - low) * NUM_STEPS), NUM_STEPS - 1)


def _range(finite: list[float]) -> tuple[float, float]:
    low, high = min(finite), max(finite)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _colors(shown: ExpertMap, palette: Palette) -> list[str]:
    """Returns the colours from the lowest value to the highest: the worse, the stronger."""
    return palette.heat()[::-1] if shown.larger_is_better else palette.heat()


def _grid(shown: ExpertMap, low: float, high: float, height: float, palette: Palette) -> Grid:
    steps: list[list[tuple[int, int]]] = [[] for _ in range(NUM_STEPS)]
    hollow: list[tuple[int, int]] = []
    for i, row in enumerate(shown.values):
        for j, value in enumerate(row):
            is_measured = value is not None and math.isfinite(value)
            (steps[step_of(value or 0.0, low, high)] if is_measured else hollow).append((i, j))
    colors = _colors(shown, palette)
    return Grid(
        y=_TOP,
        height=height,
        num_rows=len(shown.values),
        num_columns=max(len(row) for row in shown.values),
        fills=tuple((color, tuple(cells)) for color, cells in zip(colors, steps, strict=True)),
        hollow=tuple(hollow),
        hollow_color=palette.floor,
        gap_color=palette.card,
    )


def _legend(shown: ExpertMap, low: float, high: float, palette: Palette) -> Iterator[Mark]:
    sense = "" if shown.larger_is_better is None else " (stronger is worse)"
    yield Words(x=0, y=11, text=f"{clip(shown.unit or 'value', _MOST_UNIT)}{sense}", color=palette.muted)
    for i, color in enumerate(_colors(shown, palette)):
        yield Swatch(dx=i * _SWATCH, y=17, width=_SWATCH - 2, height=9, color=color)
    decimals = _decimals(low, high)
    # Every second number where they are long, among them the last.
    first, step = (1, 2) if _is_long(low, high, decimals) else (0, 1)
    for i in range(first, NUM_STEPS + 1, step):
        text = _write(low + (high - low) * i / NUM_STEPS, decimals)
        anchor = Anchor.START if i == 0 else Anchor.MIDDLE
        yield Words(x=0, y=38, dx=i * _SWATCH - (1 if i else 0), text=text, color=palette.muted, anchor=anchor)


def _is_long(low: float, high: float, decimals: int | None) -> bool:
    return max(len(_write(low, decimals)), len(_write(high, decimals))) > 3


def _decimals(low: float, high: float) -> int | None:
    """Returns the decimals in which neighbouring steps of the legend differ, `None` where each is written by itself."""
    decimals = -math.floor(math.log10((high - low) / NUM_STEPS))
    return max(decimals, 0) if decimals <= 4 and max(abs(low), abs(high)) < 1e5 else None


def _write(value: float, decimals: int | None) -> str:
    return f"{value:.2e}" if decimals is None else f"{value:z.{decimals}f}"


def _labels(shown: ExpertMap, step: int, height: float, palette: Palette) -> Iterator[Mark]:
    every = 1 if step == _TALL_ROW else 5
    for i, layer in enumerate(shown.layers):
        if i % every == 0:
            y = _TOP + step * (i + 0.5) + 4
            yield Words(x=0, y=y, dx=-8, text=str(layer), color=palette.muted, anchor=Anchor.END)
    most = max(len(row) for row in shown.values)
    for expert in range(0, most, _tick_step(most)):
        place, y = (expert + 0.5) / most, _TOP + height + 15
        yield Words(x=place, y=y, text=str(expert), color=palette.muted, anchor=Anchor.MIDDLE)
    yield Words(x=0, y=38, dx=-8, text="layer", color=palette.muted, anchor=Anchor.END)
    yield Words(x=0.5, y=_TOP + height + 32, text="expert", color=palette.muted, anchor=Anchor.MIDDLE)


def _tick_step(count: int) -> int:
    return next((step for step in (1, 2, 4, 8, 16, 32, 64) if count / step <= _MOST_LABELS), 128)


def _caption(table: ExpertMap) -> str:
    senses = {None: "Neither way is better.", True: "Larger is better.", False: "Smaller is better."}
    return f"One row a layer, one cell an expert. {senses[table.larger_is_better]} Hollow: not measured."

"""A layer x expert heat map: the stronger a cell, the worse it is; where nothing was measured a cell stays hollow.

Seven steps instead of a gradient: steps can be told apart and compared with the legend, and the colours may be CSS
variables, which cannot be blended. One data row a layer, unfolded by the chart itself, keeps large maps small.
"""

from __future__ import annotations

import math

import altair as alt

from quantaudit.core.report import ExpertMap
from quantaudit.core.serial import Json
from quantaudit.reporting.chart import Chart, channel_title, finish_chart
from quantaudit.reporting.palette import Palette

_TALL_ROW, _SHORT_ROW = 26, 9
_MANY_LAYERS = 24
_MOST_IN_TOOLTIP = 6000
_DIGITS = 4


def build_heatmap(shown: ExpertMap, others: tuple[ExpertMap, ...], palette: Palette) -> Chart | None:
    """Returns the heat map of one table; `None` if it has no finite value.

    Args:
        shown: The table to draw.
        others: Tables whose values the tooltip tells too, if they have the same shape and are not too large.
        palette: Colours.
    """
    finite = [v for row in shown.values for v in row if v is not None and math.isfinite(v)]
    if not finite:
        return None
    num_cells = sum(len(row) for row in shown.values)
    companions = tuple(o for o in others if _same_shape(o, shown) and num_cells * len(others) <= _MOST_IN_TOOLTIP)
    base = _base(shown, companions)
    legend_title = f"{shown.unit or 'value'}{_sense(shown)}"
    colors = palette.heat()[::-1] if shown.larger_is_better else palette.heat()
    scale = alt.Scale(type="quantize", domain=_domain(finite), range=colors)
    legend = alt.Legend(orient="top", direction="horizontal", format=_format(finite))
    measured = base.transform_filter("isValid(datum.value)").mark_rect(
        aria=False, stroke=palette.card, strokeWidth=_gap(num_cells)
    )
    hollow = base.transform_filter("!isValid(datum.value)").mark_rect(
        aria=False, filled=False, stroke=palette.floor, strokeWidth=1
    )
    color = alt.Color("value:Q", scale=scale, legend=legend, title=channel_title(legend_title))
    step = _SHORT_ROW if len(shown.layers) > _MANY_LAYERS else _TALL_ROW
    chart = alt.layer(measured.encode(color=color), hollow).properties(height=step * len(shown.layers))
    return finish_chart(
        chart, name=shown.name, title=shown.title, caption=_caption(shown), num_marks=num_cells, palette=palette
    )


def _base(shown: ExpertMap, companions: tuple[ExpertMap, ...]) -> alt.Chart:
    fields = ["value", *(f"other{i}" for i in range(len(companions)))]
    rows: list[dict[str, Json]] = []
    for index, layer in enumerate(shown.layers):
        row: dict[str, Json] = {"layer": layer, "value": _rounded(shown.values[index])}
        for field, other in zip(fields[1:], companions, strict=True):
            row[field] = _rounded(other.values[index])
        rows.append(row)
    tooltip = [alt.Tooltip("layer:O"), alt.Tooltip("expert:Q")]
    tooltip += [
        alt.Tooltip(f"{field}:Q", title=channel_title(_tooltip_title(table)), format=".4~g")
        for field, table in zip(fields, (shown, *companions), strict=True)
    ]
    most = max(len(row) for row in shown.values)
    ticks = list(range(0, most, _tick_step(most)))
    axis = alt.Axis(values=ticks, labelAngle=0, title="expert", domain=False, labelOverlap=True)
    chart = alt.Chart(alt.InlineData(values=rows)).transform_flatten([*fields])
    chart = chart.transform_window(number="row_number()", groupby=["layer"])
    return chart.transform_calculate(expert="datum.number - 1").encode(
        x=alt.X("expert:O", axis=axis),
        y=alt.Y("layer:O", axis=alt.Axis(title="layer", titlePadding=10, domain=False, ticks=False, labelOverlap=True)),
        tooltip=tooltip,
    )


def _tooltip_title(table: ExpertMap) -> str:
    return f"{table.title} ({table.unit})" if table.unit else table.title


def _same_shape(a: ExpertMap, b: ExpertMap) -> bool:
    return a.layers == b.layers and [len(r) for r in a.values] == [len(r) for r in b.values]


def _rounded(values: tuple[float | None, ...]) -> list[Json]:
    return [None if v is None or not math.isfinite(v) else float(f"{v:.{_DIGITS}g}") for v in values]


def _domain(finite: list[float]) -> list[float]:
    low, high = min(finite), max(finite)
    return [low, high] if low < high else [low - 0.5, high + 0.5]


def _format(finite: list[float]) -> str:
    """Returns the d3 format in which neighbouring steps of the legend differ."""
    low, high = _domain(finite)
    decimals = -math.floor(math.log10((high - low) / 7))
    return f".{decimals}f" if 0 <= decimals <= 4 else ".2~e" if decimals > 4 else "d"


def _gap(num_cells: int) -> float:
    return 1.0 if num_cells <= 3000 else 0.0


def _tick_step(count: int) -> int:
    return next((step for step in (1, 2, 4, 8, 16, 32, 64) if count / step <= 16), 128)


def _sense(table: ExpertMap) -> str:
    return "" if table.larger_is_better is None else " (stronger is worse)"


def _caption(table: ExpertMap) -> str:
    senses = {None: "Neither way is better.", True: "Larger is better.", False: "Smaller is better."}
    return f"One row a layer, one cell an expert. {senses[table.larger_is_better]} Hollow: not measured."

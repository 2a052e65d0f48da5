"""A layer profile: one number a layer as a line, against the floor that hi shows against itself."""

from __future__ import annotations

import math

import altair as alt

from quantaudit.core.report import LayerProfile
from quantaudit.core.serial import Json
from quantaudit.reporting.chart import Chart, channel_title, finish_chart
from quantaudit.reporting.palette import Palette

_HEIGHT = 190
_MOST_TICKS = 16


def build_profile(profile: LayerProfile, palette: Palette) -> Chart | None:
    """Returns the line chart of one profile; `None` if it has no finite value."""
    measured = _points(profile.layers, profile.values)
    if not measured:
        return None
    floor = _points(profile.layers, profile.floor)
    chart = alt.layer(*_floor(floor, profile, palette), *_line(measured, profile, palette)).properties(height=_HEIGHT)
    return finish_chart(
        chart,
        name=profile.name,
        title=profile.title,
        caption=_caption(profile, has_floor=bool(floor)),
        num_marks=2 * len(measured),
        palette=palette,
    )


def _points(layers: tuple[int, ...], values: tuple[float, ...]) -> list[dict[str, Json]]:
    pairs = zip(layers, values, strict=False)
    return [{"layer": layer, "value": value} for layer, value in pairs if math.isfinite(value)]


def _encode(chart: alt.Chart, profile: LayerProfile) -> alt.Chart:
    step = max(1, math.ceil(len(profile.layers) / _MOST_TICKS))
    axis = alt.Axis(values=list(profile.layers[::step]), format="d", grid=False, title="layer")
    scale = alt.Scale(zero=not profile.larger_is_better, nice=True)
    title = channel_title(profile.unit) or "value"
    return chart.encode(
        x=alt.X("layer:Q", axis=axis, scale=alt.Scale(zero=False, nice=False, padding=14)),
        y=alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5, domain=False, ticks=False)),
        tooltip=[alt.Tooltip("layer:Q", format="d"), alt.Tooltip("value:Q", format=".4~g", title=title)],
    )


def _line(values: list[dict[str, Json]], profile: LayerProfile, palette: Palette) -> list[alt.Chart]:
    base = _encode(alt.Chart(alt.InlineData(values=values)), profile)
    return [
        base.mark_line(color=palette.series, strokeWidth=2.5, aria=False),
        base.mark_point(color=palette.series, filled=True, size=60, opacity=1),
    ]


def _floor(values: list[dict[str, Json]], profile: LayerProfile, palette: Palette) -> list[alt.Chart]:
    if not values:
        return []
    base = _encode(alt.Chart(alt.InlineData(values=values)), profile)
    label = _encode(alt.Chart(alt.InlineData(values=[{**values[-1], "text": "floor"}])), profile)
    return [
        base.mark_line(color=palette.muted, strokeDash=[5, 4], strokeWidth=1.5, aria=False),
        label.mark_text(align="right", dy=-9, aria=False, color=palette.muted).encode(text="text:N"),
    ]


def _caption(profile: LayerProfile, *, has_floor: bool) -> str:
    senses = {None: "Neither way is better.", True: "Larger is better.", False: "Smaller is better."}
    floor = "Dashed: the floor, hi against itself." if has_floor else "No floor was measured."
    return f"{senses[profile.larger_is_better]} {floor}"

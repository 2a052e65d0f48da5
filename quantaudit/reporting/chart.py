"""One chart: a Vega-Lite spec that fits its container, and the static SVG of the same spec."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import cast

import altair as alt
import vl_convert

from quantaudit.core.serial import Json
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import show_hidden

SVG_WIDTH = 760
_LEGEND_WIDTH = 280
_LETTER = 7  # pixels, of the subtitle
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its words.

    Attributes:
        name: File-name part, such as "forest".
        title: What it shows, a few words.
        caption: How to read it.
        num_marks: Roughly how many shapes it draws: many make a page slow and a static copy large.
        spec: Vega-Lite, as wide as its container.
        label_width: Room that a static picture keeps for the names at the left, in pixels: its renderer measures
            them in another font than the reader's.
    """

    name: str
    title: str
    caption: str
    num_marks: int
    spec: dict[str, Json]
    label_width: int


def finish_chart(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart,
    *,
    name: str,
    title: str,
    caption: str,
    num_marks: int,
    palette: Palette,
    label_width: int = 0,
) -> Chart:
    """Returns the chart with fonts, colours and a description for readers who cannot see it."""
    described = chart.properties(width="container", description=show_hidden(f"{title}. {caption}"))
    spec = {**described.to_dict(), "config": _config(palette), "autosize": {"type": "fit-x", "contains": "padding"}}
    return Chart(
        name=_slug(name),
        title=title,
        caption=caption,
        num_marks=num_marks,
        spec=cast("dict[str, Json]", spec),
        label_width=label_width,
    )


def to_svg(chart: Chart, *, width: int = SVG_WIDTH, ground: str = "transparent", has_title: bool = False) -> str:
    """Returns the static SVG of a chart.

    Args:
        chart: What to draw.
        width: In pixels.
        ground: Background colour.
        has_title: Whether title and caption are part of the picture.
    """
    config: dict[str, Json] = {**cast("dict[str, Json]", chart.spec["config"])}
    config["axisY"] = {"minExtent": chart.label_width}
    padding = 12 if has_title else 2
    spec: dict[str, Json] = {**chart.spec, "width": width, "background": ground, "padding": padding, "config": config}
    if has_title:
        subtitle: list[Json] = [*textwrap.wrap(show_hidden(chart.caption), width // _LETTER)]
        spec["title"] = {"text": show_hidden(chart.title), "subtitle": subtitle}
    return vl_convert.vegalite_to_svg(spec, vl_version=_VERSION, allowed_base_urls=[])


def channel_title(text: str) -> str:
    """Returns foreign text as the title of a channel.

    Vega-Lite pastes such titles into expressions, with a quote escaped but not a backslash: neither may be in them.
    """
    return show_hidden(text).replace("\\", "/").replace('"', "'")


def _slug(name: str) -> str:
    """Returns a name that is safe as part of a file name and of an element's id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "chart"


def _config(palette: Palette) -> Json:
    return {
        "font": _FONT,
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            "labelColor": palette.muted,
            "titleColor": palette.muted,
            "domainColor": palette.line,
            "tickColor": palette.line,
            "gridColor": palette.line,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
        },
        "legend": {
            "gradientLength": _LEGEND_WIDTH,
            "labelColor": palette.muted,
            "titleColor": palette.muted,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
        },
        "title": {
            "anchor": "start",
            "color": palette.ink,
            "fontSize": 15,
            "offset": 14,
            "subtitleColor": palette.muted,
            "subtitleFontSize": 12,
            "subtitlePadding": 6,
        },
        "text": {"color": palette.muted, "fontSize": 12},
    }

"""One chart: its marks with its words, drawn as wide as its place in the page or at a fixed width in a file."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from markupsafe import Markup

from quantaudit.reporting.draw import Attributes, Frame, draw, element
from quantaudit.reporting.marks import Anchor, Grid, Mark, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.plaintext import show_hidden

SVG_WIDTH = 760
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LETTER = 6.6  # pixels, of the caption
_LINE = 17
_EDGE = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its words.

    Attributes:
        name: File-name part, such as "forest".
        title: What it shows, a few words.
        caption: How to read it.
        height: Of plot, axis and legend, in pixels.
        left: Room for the names at the left, in pixels.
        right: Room at the right.
        marks: What is drawn, the lowest first.
        palette: Its colours.
    """

    name: str
    title: str
    caption: str
    height: float
    left: float
    right: float
    marks: tuple[Mark, ...]
    palette: Palette

    def grid(self) -> Grid | None:
        """Returns its table of cells, if it has one."""
        return next((mark for mark in self.marks if isinstance(mark, Grid)), None)


def slug(name: str) -> str:
    """Returns a name that is safe as part of a file name and of an element's id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "chart"


def to_page(chart: Chart) -> Markup:
    """Returns the chart as an element that is as wide as its place."""
    style = f"height:{chart.height:g}px;--left:{chart.left:g}px;--right:{chart.right:g}px"
    label = f"{chart.title}. {chart.caption}"
    attributes = {"class": "plot", "style": style, "role": "img", "tabindex": "0", "aria-label": show_hidden(label)}
    return element("svg", attributes, draw(chart.marks, Frame(None)))


def to_svg(chart: Chart, *, width: int = SVG_WIDTH, ground: str | None = None, has_title: bool = False) -> str:
    """Returns the chart as a file of its own.

    Args:
        chart: What to draw.
        width: In pixels.
        ground: Background colour; none if left out.
        has_title: Whether title and caption are part of the picture.
    """
    plot_width = width - chart.left - chart.right - 2 * _EDGE
    heading = _heading(chart, width) if has_title else ()
    top = _EDGE + (len(heading) + 0.5) * _LINE if heading else _EDGE
    height = top + chart.height + _EDGE
    parts = [element("title", {}, chart.title), element("desc", {}, chart.caption)]
    if ground is not None:
        parts.append(element("rect", {"width": width, "height": height, "fill": ground}))
    parts.append(draw(heading, Frame(width)))
    place = {"transform": f"translate({chart.left + _EDGE:g} {top:g})"}
    parts.append(element("g", place, draw(chart.marks, Frame(plot_width))))
    size: Attributes = {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
    shape: Attributes = {"viewBox": f"0 0 {width} {height:g}", "font-family": FONT, "font-size": 12, "role": "img"}
    return str(element("svg", {**size, **shape}, Markup("\n").join(parts))) + "\n"


def _heading(chart: Chart, width: int) -> tuple[Words, ...]:
    caption = textwrap.wrap(show_hidden(chart.caption), int((width - 2 * _EDGE) // _LETTER))
    lines = [(chart.title, chart.palette.ink, True), *((line, chart.palette.muted, False) for line in caption)]
    return tuple(
        Words(x=0, y=_EDGE + (i + 0.6) * _LINE, text=text, color=color, dx=_EDGE, anchor=Anchor.START, is_bold=is_bold)
        for i, (text, color, is_bold) in enumerate(lines)
    )

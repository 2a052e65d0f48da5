"""Draws marks as SVG, twice: at a fixed width for files, and as wide as its place for the page.

In the page horizontal places are percentages and everything else is pixels, so a chart follows the window without being
drawn again and its text keeps its size; the margins of the plot are the padding of the element. Every text passes
through the gate for hidden characters, and through the escaping of markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from markupsafe import Markup, escape

from quantaudit.reporting.marks import Bar, Grid, Line, Mark, Point, Shape, Swatch, Tip, Words
from quantaudit.reporting.plaintext import show_hidden

Attributes: TypeAlias = dict[str, str | float]

_MANY_CELLS = 3000
_HOLLOW_INSET = 0.08  # of a cell


class Frame(NamedTuple):
    """How shares become coordinates: of so many pixels, or percentages if there is no width."""

    width: float | None

    def x(self, share: float) -> str:
        """Returns the horizontal coordinate of a share of the plot's width."""
        return f"{_short(100 * share)}%" if self.width is None else _short(share * self.width)


def draw(marks: Iterable[Mark], frame: Frame) -> Markup:
    """Returns the SVG elements of the marks, in order."""
    return Markup("").join(_draw_one(mark, frame) for mark in marks)


def element(name: str, attributes: Mapping[str, str | float], content: str | Markup = "") -> Markup:
    """Returns one element; attributes and content that is not markup yet are escaped."""
    written = "".join(f' {key}="{escape(_text(value))}"' for key, value in attributes.items())
    body = content if isinstance(content, Markup) else escape(show_hidden(content))
    return Markup(f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>")


def _draw_one(mark: Mark, frame: Frame) -> Markup:
    match mark:
        case Bar():
            return _bar(mark, frame)
        case Line():
            return _line(mark, frame)
        case Point():
            return _point(mark, frame)
        case Words():
            return _words(mark, frame)
        case Swatch():
            return _swatch(mark)
        case Tip():
            return _tip(mark, frame)
        case Grid():
            return _grid(mark, frame)


def _bar(mark: Bar, frame: Frame) -> Markup:
    paint: Attributes = {"fill": mark.color} if mark.is_filled else {"fill": "none", "stroke": mark.color}
    place: Attributes = {
        "x": frame.x(mark.start),
        "y": mark.y,
        "width": frame.x(mark.end - mark.start),
        "height": mark.height,
    }
    return element("rect", {**place, **paint, "rx": 2})


def _line(mark: Line, frame: Frame) -> Markup:
    place: Attributes = {"x1": frame.x(mark.x0), "y1": mark.y0, "x2": frame.x(mark.x1), "y2": mark.y1}
    dash: Attributes = {"stroke-dasharray": "5 4"} if mark.is_dashed else {}
    return element("line", {**place, "stroke": mark.color, "stroke-width": mark.width, **dash})


def _point(mark: Point, frame: Frame) -> Markup:
    outlined: Attributes = {"fill": "none", "stroke": mark.color, "stroke-width": 1.5}
    paint: Attributes = {"fill": mark.color} if mark.is_filled else outlined
    outline = element("path", {"d": _outline(mark), "class": mark.shape.value, **paint})
    # An element of its own, since a path knows no percentages.
    return element("svg", {"x": frame.x(mark.x), "y": mark.y, "overflow": "visible"}, outline)


def _outline(mark: Point) -> str:
    r, x = _short(mark.radius), mark.dx
    left, right = _short(x - mark.radius), _short(x + mark.radius)
    match mark.shape:
        case Shape.CIRCLE:
            return f"M{left} 0a{r} {r} 0 1 0 {_short(2 * mark.radius)} 0a{r} {r} 0 1 0 {_short(-2 * mark.radius)} 0z"
        case Shape.SQUARE:
            return f"M{left} -{r}H{right}V{r}H{left}z"
        case Shape.DIAMOND:
            return f"M{left} 0L{_short(x)} -{r}L{right} 0L{_short(x)} {r}z"
        case Shape.RIGHT:
            return f"M{left} -{r}L{right} 0L{left} {r}z"
        case Shape.LEFT:
            return f"M{right} -{r}L{left} 0L{right} {r}z"


def _words(mark: Words, frame: Frame) -> Markup:
    place: Attributes = {"x": frame.x(mark.x), "y": mark.y, "fill": mark.color}
    if mark.dx:
        place["dx"] = mark.dx
    if mark.anchor.value != "start":
        place["text-anchor"] = mark.anchor.value
    if mark.is_bold:
        place["font-weight"] = "bold"
    return element("text", place, mark.text)


def _swatch(mark: Swatch) -> Markup:
    place: Attributes = {"x": mark.dx, "y": mark.y, "width": mark.width, "height": mark.height}
    return element("rect", {**place, "fill": mark.color})


def _tip(mark: Tip, frame: Frame) -> Markup:
    """Returns the area; in a file its words are a title, which viewers show by themselves."""
    width = frame.x(mark.end - mark.start)
    place: Attributes = {
        "x": frame.x(mark.start),
        "y": mark.y,
        "width": width,
        "height": mark.height,
        "fill": "transparent",
    }
    if frame.width is None:
        return element("rect", {**place, "data-tip": show_hidden(mark.text, keep="\n")})
    title = element("title", {}, Markup(escape(show_hidden(mark.text, keep="\n"))))
    return element("rect", place, title)


def _grid(mark: Grid, frame: Frame) -> Markup:
    """Returns the cells in a drawing of their own, stretched to its place: one path a colour, whatever their number."""
    is_large = mark.num_rows * mark.num_columns > _MANY_CELLS
    paths = [_stripes(*fill) if is_large else _tiles(*fill, mark.gap_color) for fill in mark.fills if fill[1]]
    if mark.hollow:
        still: Attributes = {"stroke-width": 1, "vector-effect": "non-scaling-stroke"}
        outline: Attributes = {"d": _boxes(mark.hollow), "class": "hollow", "fill": "none", "stroke": mark.hollow_color}
        paths.append(element("path", {**outline, **still}))
    view: Attributes = {"viewBox": f"0 0 {mark.num_columns} {mark.num_rows}", "preserveAspectRatio": "none"}
    place: Attributes = {"x": "0", "y": mark.y, "width": frame.x(1), "height": mark.height}
    return element("svg", {**place, **view, "class": "grid"}, Markup("").join(paths))


def _tiles(color: str, cells: tuple[tuple[int, int], ...], gap_color: str) -> Markup:
    outline = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
    gap: Attributes = {"stroke": gap_color, "stroke-width": 1, "vector-effect": "non-scaling-stroke"}
    return element("path", {"d": outline, "fill": color, **gap})


def _stripes(color: str, cells: tuple[tuple[int, int], ...]) -> Markup:
    """Returns cells without gaps: strokes one unit thick along each row take a third of the text of as many squares."""
    parts: list[str] = []
    at_row, at_column = -1, 0
    for row, column in cells:
        if row != at_row:
            parts.append(f"M{column} {row}.5h1")
        else:
            parts.append(f"m{column - at_column} 0h1" if column != at_column else "h1")
        at_row, at_column = row, column + 1
    return element("path", {"d": "".join(parts), "fill": "none", "stroke": color, "stroke-width": 1})


def _boxes(cells: tuple[tuple[int, int], ...]) -> str:
    size = _short(1 - 2 * _HOLLOW_INSET)
    return "".join(
        f"M{_short(column + _HOLLOW_INSET)} {_short(row + _HOLLOW_INSET)}h{size}v{size}h-{size}z"
        for row, column in cells
    )


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else _short(value)


def _short(number: float) -> str:
    """Writes a coordinate with at most three decimals: finer steps cannot be seen."""
    return f"{number:z.3f}".rstrip("0").rstrip(".")

"""What charts are made of: bars, lines, points, words and grids of cells, as plain data.

Horizontal places are shares of the plot's width, 0 at its left edge and 1 at its right; vertical ones are pixels from
its top. So one list of marks can be drawn at any width, and tests read numbers, not pictures. Colours are CSS colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Anchor(StrEnum):
    """Which part of a text lies at its place."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


class Shape(StrEnum):
    """Points differ in shape too: no colour stands alone."""

    CIRCLE = "circle"
    SQUARE = "square"
    DIAMOND = "diamond"
    RIGHT = "right"  # an arrow: there is more beyond this edge
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rectangle from `start` to `end`; without fill it is an outline."""

    start: float
    end: float
    y: float
    height: float
    color: str
    is_filled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A straight line; a dashed one marks a limit."""

    x0: float
    y0: float
    x1: float
    y1: float
    color: str
    width: float = 1.0
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A symbol with its centre at (x, y); hollow if it is not filled. `dx` moves it by pixels."""

    x: float
    y: float
    shape: Shape
    color: str
    radius: float = 5.0
    is_filled: bool = True
    dx: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One line of text with its baseline at y; `dx` moves it by pixels."""

    x: float
    y: float
    text: str
    color: str
    anchor: Anchor = Anchor.START
    dx: float = 0.0
    is_bold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Swatch:
    """A square of a legend; `dx` is its left edge in pixels from the plot's."""

    dx: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """An invisible area that tells its words, a line each, when it is pointed at."""

    start: float
    end: float
    y: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of cells over the plot's whole width; cells are (row, column).

    Attributes:
        fills: Cells by colour.
        hollow: Cells without a value.
        hollow_color: Their outline.
        gap_color: What shows between cells; nothing does in very large tables.
    """

    y: float
    height: float
    num_rows: int
    num_columns: int
    fills: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    hollow: tuple[tuple[int, int], ...]
    hollow_color: str
    gap_color: str


Mark: TypeAlias = Bar | Line | Point | Words | Swatch | Tip | Grid

"""The table as one HTML file: no script, no request, light and dark; a dot a cell and the numbers behind the worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.calibration.digest import (
    BEYOND,
    MEANINGS,
    REFUSAL,
    PowerRow,
    RuleDigest,
    digest_rules,
    percent,
    power_rows,
    with_error,
    worst_of,
)
from benchmarks.calibration.layouts import CORRELATIONS
from benchmarks.calibration.table import Calibration, Cell, Rate, RuleName, summarize
from quantaudit.reporting.palette import DARK, LIGHT

WIDTH, ROW = 900, 5.2  # units of a drawing: its width, and the height of a dot in a stack
_MOST = 0.08  # share at the right end; a larger one is drawn at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """One drawing: a stack of dots for every tenth of a percent.

    Attributes:
        points: Position of every dot, and whether its cell is above the limit.
        height: Height of the drawing.
        ticks: Position and label of the axis.
        alpha_x: Where the promised rate lies.
        limit_x: Where the limit of most cells lies.
    """

    points: tuple[tuple[float, float, bool], ...]
    height: float
    ticks: tuple[tuple[float, str], ...]
    alpha_x: float
    limit_x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All about one rule."""

    digest: RuleDigest
    meaning: str
    dots: Dots
    power: tuple[PowerRow, ...]


def render_page(table: Calibration) -> str:
    """Returns the page."""
    environment = Environment(
        loader=PackageLoader("benchmarks.calibration", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, rate=_typeset)
    rejections = [d.false_reject for d in digest_rules(table)]
    return environment.get_template("page.html.j2").render(
        table=table,
        summary=summarize(table).replace("+-", "\u00b1"),
        worst=worst_of(table),
        worst_reject=max(rejections, key=lambda r: r.value),
        num_refused=sum(d.num_refused for d in digest_rules(table)),
        sections=[_section(digest, table) for digest in digest_rules(table)],
        correlations=CORRELATIONS,
        width=WIDTH,
        refusal=REFUSAL,
        beyond=BEYOND,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def _typeset(rate: Rate | None) -> str:
    return with_error(rate).replace("+-", "\u00b1") or "\u2013"


def _section(digest: RuleDigest, table: Calibration) -> Section:
    cells = table.of(digest.rule)
    has_layouts = digest.rule is not RuleName.CONTRACT
    return Section(
        digest=digest,
        meaning=MEANINGS[digest.rule],
        dots=place_dots(cells, table.alpha),
        power=power_rows(cells, CORRELATIONS) if has_layouts else (),
    )


def place_dots(cells: Sequence[Cell], alpha: float) -> Dots:
    """Stacks the cells by what they admit at the margin."""
    heights: dict[int, int] = {}
    stacked = []
    for cell in cells:
        if cell.false_admit is None:
            continue
        place = min(round(1000 * cell.false_admit.value), round(1000 * _MOST))
        heights[place] = heights.get(place, 0) + 1
        stacked.append((place, heights[place], cell.is_too_liberal()))
    # the stack at zero holds every refused cell; a row of it takes no more room than the others have
    tallest = sorted(heights.values())[-2] if len(heights) > 1 else 1
    most = max(tallest, 8)
    height = ROW * most + 12
    points = [(_x(place / 1000), height - ROW * (level - 0.5), bad) for place, level, bad in stacked if level <= most]
    ticks = tuple((_x(step / 100), f"{step} %") for step in range(round(100 * _MOST) + 1))
    limit = max((cell.limit() for cell in cells), default=alpha)
    return Dots(points=tuple(points), height=height, ticks=ticks, alpha_x=_x(alpha), limit_x=_x(limit))


def _x(share: float) -> float:
    return round(16 + share / _MOST * (WIDTH - 32), 1)

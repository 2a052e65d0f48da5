"""The table as one HTML file: no script, no request, light and dark."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.sensitivity.markdown import DELAY, GAP, READING, write_share
from benchmarks.sensitivity.table import InjectionRow, PowerRow, Sensitivity, Share, share, summarize
from quantaudit.reporting.palette import DARK, LIGHT

WIDTH, HEIGHT = 420, 200  # of a drawing
_LEFT, _BOTTOM, _TOP = 36, 28, 10
_NAMED = 4  # curves that are labelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The power of the gap for one mismatch, as points of a drawing."""

    name: str
    points: str
    end: tuple[float, float]
    is_floor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All curves of one dtype."""

    dtype: str
    curves: tuple[Curve, ...]
    ticks: tuple[tuple[float, str], ...]
    levels: tuple[tuple[float, str], ...]
    rows: tuple[PowerRow, ...]


def render_page(table: Sensitivity) -> str:
    """Returns the page."""
    environment = Environment(
        loader=PackageLoader("benchmarks.sensitivity", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(share=_typeset, bar=bar_of)
    seen = sum(row.detected.total for row in table.injections)
    steps = table.num_clean_steps()
    return environment.get_template("page.html.j2").render(
        table=table,
        summary=summarize(table),
        holds=table.keeps_its_promise(),
        detected=share(sum(row.detected.count for row in table.injections), seen),
        named=share(sum(row.named.count for row in table.injections), seen),
        alarms=share(sum(row.alarms.count for row in table.clean), steps),
        drawings=[draw_power(table, dtype) for dtype in dict.fromkeys(row.dtype for row in table.power)],
        reading=READING.replace("*", ""),
        gap=GAP,
        delay=DELAY,
        width=WIDTH,
        height=HEIGHT,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def _typeset(one: Share | None) -> str:
    return write_share(one).replace("-", "\u2013") if one is None or not one.total else write_share(one)


def bar_of(row: InjectionRow) -> tuple[float, float, float]:
    """Returns the shares of a row's runs that were named, missed, and latent; they add up to one."""
    return row.named.count / row.runs, (row.named.total - row.named.count) / row.runs, row.latent / row.runs


def draw_power(table: Sensitivity, dtype: str) -> Drawing:
    """Places the curves of one dtype: tokens in equal steps to the right, power upwards."""
    rows = tuple(row for row in table.power if row.dtype == dtype)
    last = max(1, len(table.tokens) - 1)

    def x(place: int) -> float:
        return round(_LEFT + place / last * (WIDTH - _LEFT - 12), 1)

    def y(power: float) -> float:
        return round(_TOP + (1 - power) * (HEIGHT - _TOP - _BOTTOM), 1)

    curves = tuple(
        Curve(
            name=row.name,
            points=" ".join(f"{x(place)},{y(power)}" for place, power in enumerate(row.power)),
            end=(x(last), y(row.power[-1])),
            is_floor=row.name == "none",
        )
        for row in rows
    )
    ticks = tuple((x(place), f"{count:,}") for place, count in enumerate(table.tokens))
    levels = tuple((y(level), f"{level:.0%}") for level in (0.0, 0.5, 1.0))
    return Drawing(dtype=dtype, curves=curves, ticks=ticks, levels=levels, rows=rows)

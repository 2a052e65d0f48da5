"""The few experts of a map that a reader should look at, as text beside the heat map that needs a mouse."""

from __future__ import annotations

import math
from typing import NamedTuple

from quantaudit.core.report import ExpertMap

_COUNT = 8


class Cell(NamedTuple):
    """One expert of one layer."""

    layer: int
    expert: int
    value: float


class Extremes(NamedTuple):
    """The cells worth reading and how many have no value.

    Attributes:
        title: What the cells have in common.
    """

    title: str
    cells: tuple[Cell, ...]
    num_cells: int
    num_missing: int


def find_extremes(table: ExpertMap) -> Extremes:
    """Returns the worst cells, or both ends where neither way is better."""
    ranked = sorted(_measured(table), key=lambda cell: cell.value)
    num_cells = sum(len(row) for row in table.values)
    missing = num_cells - len(ranked)
    if table.larger_is_better is None:
        half = _COUNT // 2
        ends = ranked if len(ranked) <= _COUNT else [*ranked[:half], *ranked[-half:]]
        return Extremes("Lowest and highest experts", tuple(ends), num_cells, missing)
    worst = ranked if table.larger_is_better else ranked[::-1]
    return Extremes("Worst experts", tuple(worst[:_COUNT]), num_cells, missing)


def _measured(table: ExpertMap) -> list[Cell]:
    return [
        Cell(layer, expert, value)
        for layer, row in zip(table.layers, table.values, strict=True)
        for expert, value in enumerate(row)
        if value is not None and math.isfinite(value)
    ]

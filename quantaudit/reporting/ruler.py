"""Writes the numbers of one clause with one unit and one precision, so that a row can be read across.

Shares are written as percent and their differences as points. The precision follows the margin: two digits beyond
its leading one, so that a difference small against the margin still shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantaudit.core.decision import Interval
from quantaudit.core.report import ClauseResult

MISSING = "-"
SHARE_OF = "share of "
_SHARES = frozenset({"share", "fraction", "proportion"})
_MOST_DECIMALS = 6
_LONGEST_UNIT = 10
_LARGE = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """How the numbers of one row are written; a rounded zero has no minus sign.

    Attributes:
        factor: Multiplies every number.
        value_suffix: Follows a metric: "%" or nothing (the unit then stands beside the metric's name).
        unit: Follows a difference: "pts", "nats", ...; nothing where it is long, as it stands beside the metric too.
        decimals: Digits after the point.
    """

    factor: float
    value_suffix: str
    unit: str
    decimals: int

    def value(self, value: float | None) -> str:
        """Writes a metric of hi or lo."""
        return MISSING if value is None else _digits(value * self.factor, self.decimals) + self.value_suffix

    def difference(self, value: float | None) -> str:
        """Writes a signed difference, without its unit."""
        return MISSING if value is None else _digits(value * self.factor, self.decimals, sign="+")

    def interval(self, interval: Interval | None) -> str:
        """Writes both bounds, signed."""
        if interval is None:
            return MISSING
        return f"[{self.difference(interval.lower)}, {self.difference(interval.upper)}]"

    def size(self, value: float | None, *, digits: int = 4) -> str:
        """Writes a margin, a floor or an effect: as short as so many significant digits allow."""
        return MISSING if value is None else write_number(value * self.factor, digits=digits)


def ruler_for(result: ClauseResult, *, coarser: int = 0) -> Ruler:
    """Returns the ruler of a clause.

    Args:
        result: The clause.
        coarser: How many decimals fewer than usual, for narrow tables.
    """
    is_share = is_share_unit(result.unit)
    factor = 100.0 if is_share else 1.0
    decimals = _decimals(result, factor) - coarser
    return Ruler(
        factor=factor,
        value_suffix="%" if is_share else "",
        unit="pts" if is_share else result.unit if len(result.unit) <= _LONGEST_UNIT else "",
        decimals=min(max(decimals, 0), _MOST_DECIMALS),
    )


def is_share_unit(unit: str) -> bool:
    """Tells whether a unit is a share, of whatever."""
    return unit in _SHARES or unit.startswith(SHARE_OF)


def write_number(value: float, *, digits: int = 3) -> str:
    """Writes a number that belongs to no clause, with so many significant digits."""
    return f"{value:.{digits}g}"


def _decimals(result: ClauseResult, factor: float) -> int:
    """Returns two digits beyond the margin's leading one; one where a damage dwarfs the margin or there is none."""
    estimate, margin = result.estimate, result.clause.margin
    if margin is not None:
        damage = abs(estimate.value) if estimate is not None else 0.0
        return 2 - _exponent(max(margin, damage / 10) * factor)
    seen = (result.hi, result.lo) if estimate is None else (estimate.value, *_bounds(estimate.interval))
    size = max((abs(v) for v in seen if v is not None and math.isfinite(v)), default=0.0)
    return max(1 - _exponent(size * factor), 2)


def _bounds(interval: Interval) -> tuple[float, float]:
    return interval.lower, interval.upper


def _exponent(size: float) -> int:
    return math.floor(math.log10(size)) if size > 0 else 0


def _digits(value: float, decimals: int, *, sign: str = "") -> str:
    if not math.isfinite(value) or abs(value) >= _LARGE:
        return f"{value:{sign}.3g}"
    return f"{value:{sign}z.{decimals}f}"

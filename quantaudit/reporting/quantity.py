"""Writes a number with its unit where no margin says how precisely: shares as percent, the rest to three digits."""

from __future__ import annotations

import math
from typing import NamedTuple

from quantaudit.core.decision import Interval
from quantaudit.reporting.ruler import MISSING, SHARE_OF, is_share_unit, write_number

_MOST_DECIMALS = 4


class Scale(NamedTuple):
    """What a number is multiplied by before it is written, and the unit it then has."""

    factor: float
    unit: str


def scale_of(unit: str) -> Scale:
    """Returns percent for shares, and any other unit as it is."""
    if unit.startswith(SHARE_OF):
        return Scale(100.0, f"% of {unit.removeprefix(SHARE_OF)}")
    return Scale(100.0, "%") if is_share_unit(unit) else Scale(1.0, unit)


def write_quantity(value: float | None, unit: str, *, is_difference: bool = False) -> str:
    """Writes a number: shares with a percent sign, their differences in points, other units without naming them."""
    if value is None:
        return MISSING
    if scale_of(unit).factor == 1.0 or not math.isfinite(value):
        return f"{value:{'+' if is_difference else ''}.3g}"
    return _percent(value, is_difference) + (" pts" if is_difference else "%")


def write_bounds(interval: Interval | None, unit: str, *, is_difference: bool = False) -> str:
    """Writes an interval; its unit is that of the number beside it."""
    if interval is None:
        return MISSING
    bounds = [interval.lower, interval.upper]
    if scale_of(unit).factor == 1.0 or not all(map(math.isfinite, bounds)):
        return f"[{', '.join(write_quantity(b, unit, is_difference=is_difference) for b in bounds)}]"
    return f"[{', '.join(_percent(b, is_difference) for b in bounds)}]"


def unit_beside(unit: str) -> str:
    """Returns the unit as it stands beside a column of numbers: a percent sign is at the numbers already."""
    return scale_of(unit).unit.removeprefix("%").strip()


def write_size(value: float | None, unit: str) -> str:
    """Writes a floor: two digits are enough."""
    if value is None:
        return MISSING
    scale = scale_of(unit)
    return write_number(value * scale.factor, digits=2 if scale.factor == 1.0 or abs(value) < 0.5 else 6) + (
        "%" if scale.factor != 1.0 else ""
    )


def _percent(share: float, is_difference: bool) -> str:
    return f"{100 * share:{'+' if is_difference else ''}z.{_decimals(share, is_difference)}f}"


def _decimals(share: float, is_difference: bool) -> int:
    """Returns the decimals in which a percentage shows two digits of how far it is from 0, and from 100 too."""
    distance = abs(share) if is_difference else min(abs(share), abs(1 - abs(share)))
    if distance == 0:
        return 1
    return min(max(1 - math.floor(math.log10(100 * distance)), 1), _MOST_DECIMALS)

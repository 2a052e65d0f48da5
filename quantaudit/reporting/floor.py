"""Whether a number shows anything: within the floor, hi differs from itself as much.

What counts as nearer to nothing depends on the number. A difference of a metric that hi and lo have alone, and a
distance (smaller is better), start at 0, so the smaller size is nearer. An agreement (larger is better) starts at 1 and
falls. Where neither way is better and it is no difference, nobody knows where nothing lies: only a number equal to its
floor is within it.
"""

from __future__ import annotations

from quantaudit.core.diagnostic import Diagnostic, Series

_SLACK = 0.05  # a paired mean may be weighted otherwise than the two means beside it


def is_difference(diagnostic: Diagnostic) -> bool:
    """Tells whether the value is hi less lo, or the other way round, and not something else about both."""
    hi, lo, value = diagnostic.hi, diagnostic.lo, diagnostic.value
    if hi is None or lo is None or value is None:
        return False
    gap = abs(lo - hi)
    return abs(abs(value) - gap) <= _SLACK * max(abs(value), gap)


def is_within_floor(diagnostic: Diagnostic) -> bool:
    """Tells whether a diagnostic is no further from nothing than its floor; without a floor it is not."""
    better = False if is_difference(diagnostic) else diagnostic.larger_is_better
    return _is_within(diagnostic.value, diagnostic.floor, better)


def within_floor(series: Series) -> tuple[bool, ...]:
    """Tells the same of every value of a series."""
    if not series.floor:
        return (False,) * len(series.values)
    pairs = zip(series.values, series.floor, strict=True)
    return tuple(_is_within(value, floor, series.larger_is_better) for value, floor in pairs)


def _is_within(value: float | None, floor: float | None, larger_is_better: bool | None) -> bool:
    if value is None or floor is None:
        return False
    if larger_is_better is None:
        return value == floor
    return value >= floor if larger_is_better else abs(value) <= abs(floor)

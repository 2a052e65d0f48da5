"""A number of hi, the same of lo, and of hi again: shown as a change beside the change that hi shows against itself."""

from __future__ import annotations

import math
from typing import NamedTuple

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Topic
from quantaudit.evaluation.shown import diagnostic


class Change(NamedTuple):
    """One number three times; `None` where there was nothing to measure it on.

    Attributes:
        hi: Of hi.
        lo: Of lo.
        again: Of hi under another batch size and thread count.
    """

    hi: float | None
    lo: float | None
    again: float | None


def show_change(
    name: str,
    topic: Topic,
    title: str,
    change: Change,
    *,
    unit: str,
    larger_is_better: bool | None,
    num_items: int,
    interval: Interval | None = None,
    note: str = "",
) -> Diagnostic:
    """Returns the diagnostic whose value is lo minus hi and whose floor is hi again minus hi."""
    return diagnostic(
        name,
        topic,
        title,
        unit=unit,
        larger_is_better=larger_is_better,
        hi=change.hi,
        lo=change.lo,
        value=_minus(change.lo, change.hi),
        floor=_minus(change.again, change.hi),
        interval=None if interval is None else bounded(interval),
        num_items=num_items,
        note=note,
    )


def bounded(interval: Interval) -> Interval | None:
    """Returns the interval, or `None` where there were too few clusters for one."""
    return interval if math.isfinite(interval.lower) and math.isfinite(interval.upper) else None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b

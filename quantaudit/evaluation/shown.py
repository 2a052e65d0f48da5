"""How numbers that decide nothing are put into a report: finite or absent, beside their floor, with their interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from quantaudit.core.decision import Interval
from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.observers.token_view import Column
from quantaudit.stats import ALPHA, estimate_mean, gather

_NOT_FINITE = "Not finite: an exponent or a logit overflowed."

Source = TypeVar("Source")


class Shown(NamedTuple):
    """Diagnostics and series of some topics."""

    diagnostics: tuple[Diagnostic, ...] = ()
    series: tuple[Series, ...] = ()


def put_together(parts: Iterable[Shown]) -> Shown:
    """Returns all diagnostics, then all series, in order."""
    everything = list(parts)
    return Shown(
        diagnostics=tuple(d for part in everything for d in part.diagnostics),
        series=tuple(s for part in everything for s in part.series),
    )


def diagnostic(
    name: str,
    topic: Topic,
    title: str,
    *,
    unit: str,
    larger_is_better: bool | None,
    value: float | None,
    floor: float | None,
    num_items: int,
    hi: float | None = None,
    lo: float | None = None,
    interval: Interval | None = None,
    note: str = "",
) -> Diagnostic:
    """Returns a diagnostic whose numbers are finite or absent; where the value overflowed, its note says so."""
    overflowed = value is not None and not math.isfinite(value)
    return Diagnostic(
        name=name,
        topic=topic,
        title=title,
        unit=unit,
        larger_is_better=larger_is_better,
        hi=finite(hi),
        lo=finite(lo),
        value=finite(value),
        interval=interval,
        floor=finite(floor),
        num_items=num_items,
        note=f"{_NOT_FINITE} {note}".strip() if overflowed else note,
    )


def finite(value: float | None) -> float | None:
    """Returns the number, or `None` for infinities and NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def bin_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Returns a label a bin: below the first edge, between edges, from the last on."""
    marks = [f"{edge:g}" for edge in edges]
    return (f"below {marks[0]}", *(f"{a} to {b}" for a, b in zip(marks, marks[1:], strict=False)), f"{marks[-1]} on")


def read_quietly(read: Callable[[Source], float | None], source: Source | None) -> float | None:
    """Returns what `read` makes of a source, `None` without one; overflow gives infinity or NaN, not a warning."""
    if source is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return read(source)


def cluster_interval(value_M: Column, clusters: Sequence[str]) -> Interval | None:
    """Returns the clustered interval of a mean over tokens, or `None` where there is none to be trusted."""
    if not np.isfinite(value_M).all():
        return None
    interval = estimate_mean(gather(value_M, clusters), alpha=ALPHA).interval
    return interval if math.isfinite(interval.upper) else None

"""Holds what is found against published figures: are they inside its 99 % interval?

Values of a row share its scale, so shares are means over K clusters, rows or bands of rows, pooled over draws:

    half width = t_0.995 * s * sqrt(1 / K + 1 / k) + half a unit of the published digits + L,

s the deviation between clusters and k those of one draw, since the published share is from a sample of that size. L is
the 99 % limit of a Poisson count of which none was seen, -ln(0.005) / n = 5.3 / n: it keeps rare events from having no
interval. Two exceptions. One scale for a whole tensor is one draw: the published figure lies between the smallest and
the largest of the draws made, with the probability (draws - 1) / (draws + 1). And where two are published as one
function, one difference contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from benchmarks.conformance.figures import VERSIONS, Figure
from benchmarks.conformance.observe import Observed
from benchmarks.conformance.remarks import REMARKS
from benchmarks.conformance.table import UNSETTLED, Agreement, Comparison
from quantaudit.stats.student import t_quantile

LEVEL = 0.99
_NONE_SEEN = -math.log((1 - LEVEL) / 2)
NO_SIDE = "{} is not installed, which the figure is for"
NOT_RUN = "one of the two was not run, or stores it in another form"


class Interval(NamedTuple):
    """Where a published share is expected."""

    found: float
    low: float
    high: float


def hold_against(
    figures: Iterable[Figure], observed: Mapping[Figure, Observed], installed: Mapping[str, str]
) -> tuple[Comparison, ...]:
    """Compares figures with what was observed.

    Args:
        figures: The figures.
        observed: What was found for them, where both sides ran.
        installed: Versions of the libraries by backend; a figure for another version is not checked.
    """
    return tuple(_compare(figure, observed.get(figure), installed) for figure in figures)


def _compare(figure: Figure, observed: Observed | None, installed: Mapping[str, str]) -> Comparison:
    missing = _missing(figure, installed)
    if observed is None or missing:
        return _row(figure, None, 0, Agreement.NOT_CHECKED, missing or NOT_RUN)
    interval = interval_of(figure, observed)
    remark = REMARKS.get((figure.a, figure.b, figure.dtype, figure.part), "")
    if interval.low <= figure.share <= interval.high:
        return _row(figure, interval, observed.num_draws, Agreement.AGREES, remark)
    return _row(figure, interval, observed.num_draws, Agreement.DIFFERS, remark or UNSETTLED)


def _missing(figure: Figure, installed: Mapping[str, str]) -> str:
    """Names the first library that is not installed in the version of the figure; empty if all are."""
    for side in (figure.a, figure.b):
        backend, _, quantizer = side.partition(":")
        if quantizer and backend in VERSIONS and installed.get(backend) != VERSIONS[backend]:
            return NO_SIDE.format(f"{backend} {VERSIONS[backend]}")
    return ""


def interval_of(figure: Figure, observed: Observed) -> Interval:
    """Returns what was found, and the interval in which the published share is expected."""
    found = float(observed.shares.mean())
    if figure.unit == 0:
        return Interval(found, found, found)
    if observed.is_single:
        shares, slack = observed.shares, figure.unit / 2
        return Interval(float(shares.median()), float(shares.min()) - slack, float(shares.max()) + slack)
    width = half_width(observed) + figure.unit / 2
    return Interval(found, max(0.0, found - width), min(1.0, found + width))


def half_width(observed: Observed) -> float:
    """Returns the half width of the 99 % interval of the difference of the pooled share and that of one draw."""
    count = len(observed.shares)
    error = 0.0
    if count > 1:
        deviation = float(observed.shares.std())
        error = deviation * math.sqrt(1 / count + observed.num_draws / count)
        error *= t_quantile((1 + LEVEL) / 2, count - 1)
    return error + _NONE_SEEN / observed.num_values


def _row(figure: Figure, interval: Interval | None, num_draws: int, agreement: Agreement, remark: str) -> Comparison:
    return Comparison(
        table=figure.table,
        a=figure.a,
        b=figure.b,
        dtype=figure.dtype,
        part=figure.part,
        published=figure.share,
        found=None if interval is None else interval.found,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        num_draws=num_draws,
        agreement=agreement,
        remark=remark,
    )

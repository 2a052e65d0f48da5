"""Holds what is found against published figures: is their difference inside its 99 % interval?

Values of a row share its scale, so shares are means over rows (over bands of 128 rows where scales are per block):

    half width = t_0.995 * sqrt(2) * s / sqrt(rows) + half a unit of the published digits + L,

s the deviation between rows; sqrt(2), because the published share is from a sample of that size as well. L is the 99 %
limit of a Poisson count of which none was seen, -ln(0.005) / n = 5.3 / n: it keeps rare events from having no
interval. Two exceptions. One scale for a whole tensor is one draw, whatever the number of rows: no interval. And where
two are published as one function, one difference contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from benchmarks.conformance.figures import VERSIONS, Figure
from benchmarks.conformance.measure import mismatch
from benchmarks.conformance.remarks import REMARKS
from benchmarks.conformance.sides import Outcome
from benchmarks.conformance.table import UNSETTLED, Agreement, Comparison
from quantaudit.core.scheme import LinearScale, PerBlock, PerTensor, TwoLevel
from quantaudit.stats.student import t_quantile

LEVEL = 0.99
_NONE_SEEN = -math.log((1 - LEVEL) / 2)
ONE_SCALE = "one scale for the tensor is one draw, so there is no interval"
NO_SIDE = "{} is not installed, which the figure is for"
NOT_RUN = "one of the two was not run"
NOT_ALIKE = "the two do not store it in the same form"


def hold_against(
    figures: Iterable[Figure], outcomes: Mapping[tuple[str, str], Outcome], dtype: str, installed: Mapping[str, str]
) -> tuple[Comparison, ...]:
    """Compares the figures of a dtype with the outcomes.

    Args:
        figures: All figures.
        outcomes: By side and dtype.
        dtype: Of the weights.
        installed: Versions of the libraries by backend; a figure for another version is not checked.
    """
    return tuple(_compare(figure, outcomes, installed) for figure in figures if figure.dtype == dtype)


def _compare(figure: Figure, outcomes: Mapping[tuple[str, str], Outcome], installed: Mapping[str, str]) -> Comparison:
    a, b = (outcomes.get((name, figure.dtype)) for name in (figure.a, figure.b))
    missing = _missing(figure, installed)
    if a is None or b is None or missing:
        return _row(figure, None, None, Agreement.NOT_CHECKED, missing or NOT_RUN)
    where = mismatch(a, b, figure.part)
    if where is None:
        return _row(figure, None, None, Agreement.NOT_CHECKED, NOT_ALIKE)
    found = float(where.double().mean())
    if figure.unit == 0:
        return _judged(figure, found, 0.0)
    clusters = _num_clusters(a)
    if clusters == 1 and figure.share > 0:
        return _row(figure, found, None, Agreement.NO_INTERVAL, _remark(figure) or ONE_SCALE)
    return _judged(figure, found, half_width(where, max(clusters, 2)) + figure.unit / 2)


def _missing(figure: Figure, installed: Mapping[str, str]) -> str:
    """Names the first library that is not installed in the version of the figure; empty if all are."""
    for side in (figure.a, figure.b):
        backend, _, quantizer = side.partition(":")
        if quantizer and backend in VERSIONS and installed.get(backend) != VERSIONS[backend]:
            return NO_SIDE.format(f"{backend} {VERSIONS[backend]}")
    return ""


def half_width(where: Tensor, clusters: int) -> float:
    """Returns the half width of the 99 % interval of the difference of two such shares.

    Args:
        where: What differs, in rows.
        clusters: Rows, or bands of rows, that are independent.
    """
    shares = where.reshape(clusters, -1).double().mean(-1)
    error = float(shares.std()) / math.sqrt(clusters)
    return t_quantile((1 + LEVEL) / 2, clusters - 1) * math.sqrt(2) * error + _NONE_SEEN / where.numel()


def _num_clusters(outcome: Outcome) -> int:
    rows = outcome.values.shape[0]
    grain, scale = outcome.scheme.granularity, outcome.scheme.scale
    if isinstance(grain, PerTensor) or (isinstance(scale, LinearScale) and isinstance(scale.second_level, TwoLevel)):
        return 1
    return rows // grain.rows if isinstance(grain, PerBlock) else rows


def _judged(figure: Figure, found: float, width: float) -> Comparison:
    if abs(found - figure.share) <= width:
        return _row(figure, found, width, Agreement.AGREES, _remark(figure))
    return _row(figure, found, width, Agreement.DIFFERS, _remark(figure) or UNSETTLED)


def _remark(figure: Figure) -> str:
    return REMARKS.get((figure.a, figure.b, figure.dtype, figure.part), "")


def _row(figure: Figure, found: float | None, width: float | None, agreement: Agreement, remark: str) -> Comparison:
    return Comparison(
        table=figure.table,
        a=figure.a,
        b=figure.b,
        dtype=figure.dtype,
        part=figure.part,
        published=figure.share,
        found=found,
        half_width=width,
        agreement=agreement,
        remark=remark,
    )

"""How calibration moved: each number is lo minus hi, and its floor is hi again minus hi.

What confidence is, and why it is taken token by token, is said in `observers.calibration`. The bins of the calibration
error hold equally many tokens of hi, and are the same for all sides; the reliability of lo is shown over fixed bins.

Legend: M answer tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.shown import Shown, bin_labels, cluster_interval, diagnostic
from quantaudit.evaluation.slices import clusters_at
from quantaudit.observers.calibration import (
    CONFIDENT,
    SHOWN_EDGES,
    auroc,
    brier,
    calibration_error,
    equal_mass_edges,
    overconfident,
    reliability,
)
from quantaudit.observers.token_sums import Tokens
from quantaudit.observers.token_view import Column


class Side(NamedTuple):
    """Confidence of one model, and 1 where it is right."""

    confidence_M: Column
    right_M: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationNumber:
    """A number of one model whose change is shown.

    Attributes:
        read: The number.
        column: The column whose mean it is, if it is one: then its change gets an interval.
    """

    name: str
    title: str
    unit: str
    larger_is_better: bool
    read: Callable[[Column, Column], float | None]
    column: Callable[[Column, Column], Column] | None = None
    note: str = ""


def diagnose_calibration(probes: ProbeSet, lo: Tokens | None, floor: Tokens | None) -> Shown:
    """Returns the changes of calibration; nothing without tokens, or where a confidence is not a number."""
    if lo is None:
        return Shown()
    hi = Side(lo.view.hi_confidence_M, lo.view.hi_right_M)
    deployed = Side(lo.view.lo_confidence_M, lo.view.lo_right_M)
    again = None if floor is None else Side(floor.view.lo_confidence_M, floor.view.lo_right_M)
    if not all(np.isfinite(side.confidence_M).all() for side in (hi, deployed, again) if side is not None):
        return Shown()
    edges = equal_mass_edges(hi.confidence_M)
    clusters = clusters_at(probes, lo.probe_M)
    return Shown(
        diagnostics=tuple(_diagnose(n, hi, deployed, again, clusters) for n in _numbers(edges)),
        series=(_reliability(deployed),),
    )


def _numbers(edges: Column) -> tuple[CalibrationNumber, ...]:
    return (
        CalibrationNumber(
            name="delta-ece",
            title="Change in expected calibration error",
            unit="probability",
            larger_is_better=False,
            read=partial(calibration_error, edges=edges),
            note=f"{len(edges) + 1} bins that hold equally many tokens of hi, the same for lo.",
        ),
        CalibrationNumber(
            name="delta-brier",
            title="Change in Brier score",
            unit="probability^2",
            larger_is_better=False,
            read=lambda c, r: float(brier(c, r).mean()),
            column=brier,
        ),
        CalibrationNumber(
            name="delta-auroc",
            title="Change in AUROC of confidence",
            unit="probability",
            larger_is_better=True,
            read=auroc,
        ),
        CalibrationNumber(
            name="delta-overconfidence",
            title=f"Change in tokens that are wrong at {CONFIDENT:.0%} confidence or more",
            unit="share of tokens",
            larger_is_better=False,
            read=lambda c, r: float(overconfident(c, r).mean()),
            column=overconfident,
        ),
    )


def _diagnose(
    number: CalibrationNumber, hi: Side, deployed: Side, again: Side | None, clusters: Sequence[str]
) -> Diagnostic:
    of_hi, of_lo = number.read(*hi), number.read(*deployed)
    of_again = None if again is None else number.read(*again)
    column = number.column
    return diagnostic(
        number.name,
        Topic.CALIBRATION,
        number.title,
        unit=number.unit,
        larger_is_better=number.larger_is_better,
        hi=of_hi,
        lo=of_lo,
        value=_subtract(of_lo, of_hi),
        floor=_subtract(of_again, of_hi),
        interval=None if column is None else cluster_interval(column(*deployed) - column(*hi), clusters),
        num_items=len(hi.right_M),
        note=number.note,
    )


def _subtract(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _reliability(deployed: Side) -> Series:
    edges = np.array(SHOWN_EDGES)
    found = reliability(*deployed, edges)
    return Series(
        name="reliability",
        topic=Topic.CALIBRATION,
        title="Confidence of lo minus its share right",
        axis="confidence",
        unit="probability",
        larger_is_better=None,
        labels=bin_labels(SHOWN_EDGES),
        values=found.gaps,
        counts=found.counts,
    )

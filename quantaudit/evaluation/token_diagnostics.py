"""What moved at the answer tokens: probabilities, distributions, importance ratios; overall and along an axis.

Means over tokens carry a clustered interval, since tokens of one phrasing move together. Everything is read off the
same columns for hi against lo and for hi against itself, which is the floor.

Legend: M answer tokens, P probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.shown import Shown, bin_labels, cluster_interval, diagnostic, finite, read_quietly
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.token_numbers import TOKEN_NUMBERS, Columns, TokenNumber
from quantaudit.observers.token_sums import (
    LEAD_EDGES,
    MAX_POSITIONS,
    Tokens,
    average_groups,
    delta_p,
    group_leads,
    group_positions,
    percentile,
)

PERCENTS = (1, 5, 50, 95, 99)

_Group: TypeAlias = Callable[[Tokens], NDArray[np.int64]]


def diagnose_tokens(probes: ProbeSet, lo: Tokens | None, floor: Tokens | None) -> Shown:
    """Returns the numbers and series of the answer tokens; nothing without tokens."""
    if lo is None:
        return Shown()
    clusters = clusters_at(probes, lo.probe_M)
    return Shown(
        diagnostics=tuple(_diagnose(number, lo, floor, clusters) for number in TOKEN_NUMBERS),
        series=(
            _percentiles("delta-p", "Change in probability of the right token", "probability", delta_p, lo, floor),
            _percentiles("kl", "KL(hi || lo) of a token", "nats", lambda v: v.kl_M, lo, floor),
            _by_position(lo, floor),
            _by_family(probes, lo, floor),
            _by_lead(lo, floor),
        ),
    )


def _diagnose(number: TokenNumber, lo: Tokens, floor: Tokens | None, clusters: Sequence[str]) -> Diagnostic:
    column = number.column
    return diagnostic(
        number.name,
        Topic.TOKENS,
        number.title,
        unit=number.unit,
        larger_is_better=number.larger_is_better,
        value=read_quietly(number.read_off, lo.view),
        floor=read_quietly(number.read_off, None if floor is None else floor.view),
        num_items=len(lo.view),
        hi=None if number.hi is None else float(number.hi(lo.view).mean()),
        lo=None if number.lo is None else float(number.lo(lo.view).mean()),
        interval=None if column is None else cluster_interval(column(lo.view), clusters),
        note=number.note,
    )


def _percentiles(stem: str, title: str, unit: str, column: Columns, lo: Tokens, floor: Tokens | None) -> Series:
    def at(tokens: Tokens) -> tuple[float | None, ...]:
        return tuple(finite(percentile(column(tokens.view), p)) for p in PERCENTS)

    return Series(
        name=f"{stem}-percentiles",
        topic=Topic.TOKENS,
        title=title,
        axis="percentile of tokens",
        unit=unit,
        larger_is_better=None if column is delta_p else False,
        labels=tuple(str(p) for p in PERCENTS),
        values=at(lo),
        floor=() if floor is None else at(floor),
    )


def _by_position(lo: Tokens, floor: Tokens | None) -> Series:
    longest = int(lo.position_M.max()) + 1
    labels = [str(i + 1) for i in range(min(longest, MAX_POSITIONS))]
    if longest > MAX_POSITIONS:
        labels[-1] += " and later"
    template = _kl_series("kl-by-position", "KL(hi || lo) by place in the answer", "answer token", labels)
    return _fill(template, lambda v: v.kl_M, group_positions, lo, floor)


def _by_family(probes: ProbeSet, lo: Tokens, floor: Tokens | None) -> Series:
    families = probes.families()
    number = {family: i for i, family in enumerate(families)}
    family_P = np.array([number[p.family] for p in probes.probes], dtype=np.int64)
    template = _kl_series("kl-by-family", "KL(hi || lo) by family", "family", families)
    return _fill(template, lambda v: v.kl_M, lambda t: family_P[t.probe_M], lo, floor)


def _kl_series(name: str, title: str, axis: str, labels: Sequence[str]) -> Series:
    """Returns a series that has no values yet."""
    return Series(
        name=name,
        topic=Topic.TOKENS,
        title=title,
        axis=axis,
        unit="nats/token",
        larger_is_better=False,
        labels=tuple(labels),
        values=(None,) * len(labels),
    )


def _by_lead(lo: Tokens, floor: Tokens | None) -> Series:
    labels = bin_labels(LEAD_EDGES)
    template = Series(
        name="agreement-by-lead",
        topic=Topic.TOKENS,
        title="Same likeliest token, by hi's lead over the next",
        axis="lead of hi's likeliest token, nats",
        unit="share of tokens",
        larger_is_better=True,
        labels=labels,
        values=(None,) * len(labels),
    )
    return _fill(template, lambda v: v.same_top_M, group_leads, lo, floor)


def _fill(series: Series, column: Columns, group: _Group, lo: Tokens, floor: Tokens | None) -> Series:
    """Returns the series with means by group, those of the floor, and how many tokens are in each."""
    num_groups = len(series.labels)
    found = average_groups(column(lo.view), group(lo), num_groups)
    again = () if floor is None else average_groups(column(floor.view), group(floor), num_groups).means
    return series.model_copy(
        update={
            "values": tuple(finite(mean) for mean in found.means),
            "floor": tuple(finite(mean) for mean in again),
            "counts": found.counts,
        }
    )

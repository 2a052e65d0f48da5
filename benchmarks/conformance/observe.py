"""Which shares differ between the sides of published figures, draw by draw of the weights.

Most shares are means over rows (bands of 128 rows where scales are per block), pooled over a few draws. Where one scale
serves the whole tensor there is one such mean a draw, and many draws are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.conformance.data import POOLED, SEED, SINGLE, make_weights
from benchmarks.conformance.figures import Figure
from benchmarks.conformance.measure import mismatch
from benchmarks.conformance.sides import Outcome, Side
from quantaudit.core.scheme import LinearScale, PerBlock, PerTensor, TwoLevel


class Draws(NamedTuple):
    """How many draws are made, and of which shape."""

    rows: int
    columns: int
    pooled: int = POOLED
    single: int = SINGLE


class Observed(NamedTuple):
    """What was found for a figure.

    Attributes:
        shares: [K] fp64, the share of every cluster of every draw; of every draw where it has one scale.
        num_draws: Draws that it comes from.
        num_values: Values, scales or codes of one draw.
        is_single: Whether a draw has one scale.
    """

    shares: Tensor
    num_draws: int
    num_values: int
    is_single: bool


def observe(
    figures: Iterable[Figure], sides: Mapping[str, Side], dtype: torch.dtype, draws: Draws
) -> dict[Figure, Observed]:
    """Runs the sides of figures on one draw after the other.

    Args:
        figures: Of this dtype; those of which a side is missing, or is not stored in the same form, are left out.
        sides: By name.
        dtype: Of the weights.
        draws: How many.
    """
    open_figures = [figure for figure in figures if figure.a in sides and figure.b in sides]
    found: dict[Figure, Observed] = {}
    for number in range(draws.single):
        if number == draws.pooled:
            open_figures = [figure for figure in open_figures if figure in found and found[figure].is_single]
        if not open_figures:
            break
        x = make_weights(draws.rows, draws.columns, SEED + number).to(dtype)
        outcomes = {name: sides[name].run(x) for name in sorted({name for f in open_figures for name in (f.a, f.b)})}
        for figure in open_figures:
            one = _shares(outcomes[figure.a], outcomes[figure.b], figure)
            if one is not None:
                found[figure] = one if figure not in found else _joined(found[figure], one)
    return found


def _shares(a: Outcome, b: Outcome, figure: Figure) -> Observed | None:
    where = mismatch(a, b, figure.part)
    if where is None:
        return None
    clusters = num_clusters(a)
    shares = where.reshape(clusters, -1).double().mean(-1)
    # Of a share of none one draw tells as much as of any other count.
    return Observed(shares, 1, where.numel(), clusters == 1 and figure.share > 0)


def _joined(a: Observed, b: Observed) -> Observed:
    return a._replace(shares=torch.cat([a.shares, b.shares]), num_draws=a.num_draws + b.num_draws)


def num_clusters(outcome: Outcome) -> int:
    """Returns how many parts of an outcome share no scale: 1, its bands of blocks, or its rows."""
    rows = outcome.values.shape[0]
    grain, scale = outcome.scheme.granularity, outcome.scheme.scale
    if isinstance(grain, PerTensor) or (isinstance(scale, LinearScale) and isinstance(scale.second_level, TwoLevel)):
        return 1
    return rows // grain.rows if isinstance(grain, PerBlock) else rows

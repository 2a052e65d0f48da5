"""All answer tokens of a comparison, and the numbers that are read off them.

The log keeps a row of numbers per token and no logits. Realised ratios are those of the tokens of the right response,
which hi did not sample: they say what a trainer would see on this data, and estimate nothing about hi's own samples.

Legend: M answer tokens, P probes of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.observers.token_view import EXTREME, Column, TokenView, join_views

# Lead of hi's likeliest token over the next, nats: a near tie is below .1, and e^8 = 3,000 to 1.
LEAD_EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MAX_POSITIONS = 32  # later answer tokens are put together


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The answer tokens of a comparison.

    Attributes:
        view: Their numbers.
        probe_M: Position of each token's probe in the probe set.
        position_M: Place of each token in its response, from 0.
    """

    view: TokenView
    probe_M: NDArray[np.int64]
    position_M: NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class TokenLog:
    """The tokens of one comparison, batch by batch."""

    parts: list[Tokens] = field(default_factory=list)

    def add(self, view: TokenView, index_P: Sequence[int], counts_P: Sequence[int]) -> None:
        """Adds one batch: its tokens, the position of each probe in the probe set, and its number of tokens."""
        probe_M = np.repeat(np.array(index_P, dtype=np.int64), counts_P)
        position_M = np.concatenate([np.arange(n, dtype=np.int64) for n in counts_P])
        self.parts.append(Tokens(view=view, probe_M=probe_M, position_M=position_M))

    def join(self) -> Tokens | None:
        """Returns all tokens, in the order they came; `None` without any."""
        if not self.parts:
            return None
        return Tokens(
            view=join_views([p.view for p in self.parts]),
            probe_M=np.concatenate([p.probe_M for p in self.parts]),
            position_M=np.concatenate([p.position_M for p in self.parts]),
        )


class Grouped(NamedTuple):
    """Means of groups of tokens, `None` for empty groups, and how many tokens each has."""

    means: tuple[float | None, ...]
    counts: tuple[int, ...]


def average_groups(value_M: Column, group_M: NDArray[np.int64], num_groups: int) -> Grouped:
    """Returns the mean of every group."""
    counts = np.bincount(group_M, minlength=num_groups)
    totals = np.bincount(group_M, weights=value_M, minlength=num_groups)
    means = tuple(float(t / n) if n else None for t, n in zip(totals, counts, strict=True))
    return Grouped(means, tuple(int(n) for n in counts))


def group_positions(tokens: Tokens) -> NDArray[np.int64]:
    """Returns the place in the response, the last group holding all later ones."""
    return np.minimum(tokens.position_M, MAX_POSITIONS - 1)


def group_leads(tokens: Tokens) -> NDArray[np.int64]:
    """Returns the bin of hi's lead; an edge belongs to the bin above it."""
    return np.searchsorted(np.array(LEAD_EDGES), tokens.view.hi_lead_M, side="right")


def delta_p(view: TokenView) -> Column:
    """Returns the change in probability of the right token; positive is better."""
    return view.lo_p_M - view.hi_p_M


def root_mean_square(value_M: Column) -> float:
    """Returns the root of the mean square."""
    return float(np.sqrt(np.mean(value_M**2)))


def percentile(value_M: Column, percent: float) -> float:
    """Returns the smallest value that at least so many percent do not exceed; always one that occurred."""
    return float(np.quantile(value_M, percent / 100, method="inverted_cdf"))


def realised_k2(view: TokenView) -> Column:
    """Returns (ln r)^2 / 2 at the right tokens, nats^2."""
    return view.log_ratio_M**2 / 2


def realised_k3(view: TokenView) -> Column:
    """Returns r - 1 - ln r at the right tokens, nats; never negative."""
    return np.asarray(np.expm1(view.log_ratio_M) - view.log_ratio_M)


def realised_extreme(view: TokenView) -> Column:
    """Returns 1 where max(r, 1 / r) > 2 at the right token."""
    return np.asarray(np.abs(view.log_ratio_M) > EXTREME, dtype=np.float64)


def expected_effective_size(view: TokenView) -> float:
    """Returns 1 / E_hi[r^2], a share: how many of hi's samples would be left after reweighting to lo."""
    return float(1.0 / (1.0 + view.excess_M.mean()))


def realised_effective_size(view: TokenView) -> float:
    """Returns (sum r)^2 / (n sum r^2) of the right tokens, a share; ratios are scaled by the largest first."""
    ratio_M = np.exp(view.log_ratio_M - view.log_ratio_M.max())
    return float(ratio_M.sum() ** 2 / (len(ratio_M) * np.square(ratio_M).sum()))

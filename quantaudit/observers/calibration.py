"""Calibration: whether the confidence of a model still says how often it is right.

Teacher-forced, token by token: at every position of the right response the confidence is the probability of the
model's likeliest token, and the model is right where that token is the right one. (The probability of the whole right
response would not do: above one half it implies that the response is written, so that no such number can be
over-confident.)

    ECE     sum over bins of (share of tokens) |mean confidence - share right|; the edges are quantiles of hi's
            confidence, so bins hold equally many tokens of hi, and lo is binned by the same edges
    Brier   mean (confidence - right)^2
    AUROC   probability that a right token has more confidence than a wrong one, ties counting one half
    over-confident   share of tokens that are wrong at a confidence of at least `CONFIDENT`

Legend: M answer tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quantaudit.observers.token_view import Column

NUM_BINS = 15
SHOWN_EDGES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)  # for reading; the calibration error has bins of its own
CONFIDENT = 0.9


def equal_mass_edges(confidence_M: Column, num_bins: int = NUM_BINS) -> Column:
    """Returns the inner edges of bins that hold equally many of these; fewer where many values are equal."""
    steps = np.arange(1, num_bins) / num_bins
    return np.unique(np.quantile(confidence_M, steps, method="inverted_cdf"))


def calibration_error(confidence_M: Column, right_M: Column, edges: Column) -> float:
    """Returns the expected calibration error over the bins between `edges`; smaller is better."""
    bin_M = np.searchsorted(edges, confidence_M, side="left")
    gaps = np.bincount(bin_M, weights=confidence_M - right_M, minlength=len(edges) + 1)
    return float(np.abs(gaps).sum() / len(confidence_M))


class Reliability(NamedTuple):
    """Bin by bin, confidence minus share right (positive is over-confident, `None` for empty bins), and the tokens."""

    gaps: tuple[float | None, ...]
    counts: tuple[int, ...]


def reliability(confidence_M: Column, right_M: Column, edges: Column) -> Reliability:
    """Returns the gap between confidence and being right, bin by bin."""
    bin_M = np.searchsorted(edges, confidence_M, side="left")
    counts = np.bincount(bin_M, minlength=len(edges) + 1)
    gaps = np.bincount(bin_M, weights=confidence_M - right_M, minlength=len(edges) + 1)
    means = tuple(float(g / n) if n else None for g, n in zip(gaps, counts, strict=True))
    return Reliability(means, tuple(int(n) for n in counts))


def brier(confidence_M: Column, right_M: Column) -> Column:
    """Returns the squared gap between confidence and being right, token by token; smaller is better."""
    return np.asarray((confidence_M - right_M) ** 2)


def overconfident(confidence_M: Column, right_M: Column) -> Column:
    """Returns 1 where the model is wrong with a confidence of at least `CONFIDENT`."""
    return np.asarray((confidence_M >= CONFIDENT) & (right_M == 0), dtype=np.float64)


def auroc(confidence_M: Column, right_M: Column) -> float | None:
    """Returns how well confidence tells right from wrong tokens (larger is better); `None` without both kinds."""
    num_right = int(right_M.sum())
    num_wrong = len(right_M) - num_right
    if not num_right or not num_wrong:
        return None
    _, value_M, counts = np.unique(confidence_M, return_inverse=True, return_counts=True)
    rank_of_value = np.cumsum(counts) - (counts - 1) / 2  # mean rank among ties, from 1
    rank_sum = float(rank_of_value[value_M][right_M == 1].sum())
    return (rank_sum - num_right * (num_right + 1) / 2) / (num_right * num_wrong)

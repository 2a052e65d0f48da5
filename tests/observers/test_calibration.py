"""Calibration numbers agree with loops over tokens and bins, and know a calibrated model from a boastful one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.observers.calibration import (
    auroc,
    brier,
    calibration_error,
    equal_mass_edges,
    overconfident,
    reliability,
)
from quantaudit.observers.token_view import Column

SIZE = 400
FP64 = SIZE * 2.0**-53  # a sum of SIZE numbers of at most 1, over SIZE


def draw(seed: int, *, honest: bool = True) -> tuple[Column, Column]:
    """Returns confidences, some of them equal, and whether each token is right, as often as it says or at random."""
    rng = np.random.default_rng(seed)
    confidence = np.round(rng.beta(4, 1.5, SIZE), 2)
    right = rng.uniform(size=SIZE) < (confidence if honest else 0.3)
    return confidence, right.astype(np.float64)


def bins_by_loop(confidence: Column, right: Column, edges: Column) -> list[list[tuple[float, float]]]:
    """Returns (confidence, right) by bin: a value belongs to the first bin whose upper edge it does not exceed."""
    bins: list[list[tuple[float, float]]] = [[] for _ in range(len(edges) + 1)]
    for c, r in zip(confidence.tolist(), right.tolist(), strict=True):
        bins[next((i for i, edge in enumerate(edges.tolist()) if c <= edge), len(edges))].append((c, r))
    return bins


@pytest.mark.parametrize("seed", range(3))
def test_the_calibration_error_is_that_of_a_loop_over_bins(seed: int) -> None:
    confidence, right = draw(seed)
    edges = equal_mass_edges(draw(seed + 10)[0])
    bins = bins_by_loop(confidence, right, edges)
    gaps = [math.fsum(c - r for c, r in b) for b in bins]
    assert calibration_error(confidence, right, edges) == pytest.approx(math.fsum(map(abs, gaps)) / SIZE, abs=FP64)
    found = reliability(confidence, right, edges)
    assert found.counts == tuple(map(len, bins))
    for mean, gap, b in zip(found.gaps, gaps, bins, strict=True):
        assert (mean is None) == (not b) and (mean is None or mean == pytest.approx(gap / len(b), abs=FP64 * SIZE))


def test_bins_hold_equally_many_tokens_of_hi_and_equal_values_share_one() -> None:
    confidence = np.random.default_rng(0).permutation(np.linspace(0.2, 0.99, 300))
    edges = equal_mass_edges(confidence, 15)
    assert set(reliability(confidence, confidence, edges).counts) == {20}
    tied = np.where(np.arange(300) < 200, 1.0, confidence)
    edges = equal_mass_edges(tied, 15)
    assert len(edges) < 14 and sum(reliability(tied, tied, edges).counts) == 300


def test_a_calibrated_model_has_a_small_error_and_a_boastful_one_a_large_one() -> None:
    confidence, right = draw(0)
    _, wrong = draw(0, honest=False)
    edges = equal_mass_edges(confidence)
    assert calibration_error(right, right, equal_mass_edges(right)) == 0.0
    assert calibration_error(confidence, wrong, edges) > 4 * calibration_error(confidence, right, edges)
    gaps = reliability(confidence, wrong, edges).gaps
    assert gaps[-1] is not None and gaps[-1] > 0.3


@pytest.mark.parametrize("seed", range(3))
def test_auroc_is_the_share_of_pairs_in_order_and_ties_count_half(seed: int) -> None:
    confidence, right = draw(seed)
    rights = [c for c, r in zip(confidence, right, strict=True) if r]
    wrongs = [c for c, r in zip(confidence, right, strict=True) if not r]
    in_order = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in rights for b in wrongs)
    # Ranks are halves below 2^53: all sums are exact, and one division rounds.
    assert auroc(confidence, right) == in_order / (len(rights) * len(wrongs))


def test_auroc_needs_both_kinds() -> None:
    confidence = np.array([0.2, 0.9])
    assert auroc(confidence, np.ones(2)) is None and auroc(confidence, np.zeros(2)) is None
    assert auroc(confidence, np.array([0.0, 1.0])) == 1.0
    assert auroc(confidence, np.array([1.0, 0.0])) == 0.0


def test_brier_and_overconfidence_are_by_token() -> None:
    confidence, right = np.array([0.9, 0.89, 0.95, 0.5]), np.array([0.0, 0.0, 1.0, 0.0])
    assert brier(confidence, right).tolist() == [0.9**2, 0.89**2, (0.95 - 1) ** 2, 0.25]
    assert overconfident(confidence, right).tolist() == [1.0, 0.0, 0.0, 0.0]

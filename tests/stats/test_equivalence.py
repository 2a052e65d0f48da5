"""A two-sided clause is admitted by two one-sided tests, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Interval, Method, Outcome
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.decide import decide
from quantaudit.stats.equivalence import assess_equivalence
from quantaudit.stats.proportion import estimate_flips
from quantaudit.stats.sample import gather

CLUSTERS = [f"c{i // 5:02d}" for i in range(200)]


def both_ways(seed: int) -> list[tuple[Estimate, Estimate]]:
    """Draws means, contrasts and flips, each with its mirror image."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0.02, 0.3, 200) + np.repeat(rng.normal(0, 0.1, 40), 5)
    flips = rng.choice([-1.0, 0.0, 1.0], 200, p=[0.03, 0.91, 0.06])
    other = gather(rng.normal(0, 0.3, 200), CLUSTERS)
    mirrored = gather(
        -other.values_N, [n for n, k in zip(other.clusters, other.sizes_G, strict=True) for _ in range(k)]
    )
    return [
        (estimate_mean(gather(means, CLUSTERS)), estimate_mean(gather(-means, CLUSTERS))),
        (estimate_flips(gather(flips, CLUSTERS)), estimate_flips(gather(-flips, CLUSTERS))),
        (
            estimate_contrast(gather(means, CLUSTERS), other),
            estimate_contrast(gather(-means, CLUSTERS), mirrored),
        ),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_deciding_both_ways_is_two_one_sided_decisions(seed: int) -> None:
    for estimate, mirrored in both_ways(seed):
        for margin in np.linspace(0.005, 0.3, 25):
            margin = float(margin)
            both = decide(estimate, direction=Direction.BOTH, margin=margin)
            damage = decide(estimate, direction=Direction.WORSE, margin=margin)
            improvement = decide(mirrored, direction=Direction.WORSE, margin=margin)
            assert both.p_admit == pytest.approx(max(damage.p_admit, improvement.p_admit), rel=1e-9)
            are_both = damage.outcome is Outcome.PASS and improvement.outcome is Outcome.PASS
            assert (both.outcome is Outcome.PASS) == are_both


@pytest.mark.parametrize("seed", range(6))
def test_the_halves_are_shown_and_the_larger_one_decides(seed: int) -> None:
    for estimate, mirrored in both_ways(seed):
        for margin in (0.02, 0.1, 0.3):
            found = assess_equivalence(estimate, margin=margin)
            both = decide(estimate, direction=Direction.BOTH, margin=margin)
            turned = assess_equivalence(mirrored, margin=margin)
            assert found.p_value == pytest.approx(both.p_admit, rel=1e-12)
            assert found.p_value == max(found.p_not_worse, found.p_not_better)
            assert found.p_not_worse == pytest.approx(turned.p_not_better, rel=1e-9)


@pytest.mark.parametrize("margin", [0.1, 0.3])
def test_the_three_p_values_are_those_of_statsmodels(margin: float) -> None:
    rng = np.random.default_rng(7)
    hi, differences = rng.normal(0.0, 2.0, 120), rng.normal(0.05, 1.0, 120)
    lower, upper = DescrStatsW(differences).tconfint_mean(0.1)
    estimate = Estimate(
        value=float(differences.mean()),
        standard_error=float(differences.std(ddof=1)) / math.sqrt(120),
        degrees_of_freedom=119.0,
        interval=Interval(lower=float(lower), upper=float(upper), level=0.9),
        num_probes=120,
        num_clusters=120,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.CR1,
    )
    p_value, not_better, not_worse = ttost_paired(hi + differences, hi, -margin, margin)
    found = assess_equivalence(estimate, margin=margin)
    assert found.p_value == pytest.approx(float(p_value), rel=1e-9)
    assert found.p_not_better == pytest.approx(float(not_better[1]), rel=1e-9)
    assert found.p_not_worse == pytest.approx(float(not_worse[1]), rel=1e-9)
    assert decide(estimate, direction=Direction.BOTH, margin=margin).p_admit == found.p_value


def test_equivalence_is_the_90_percent_interval_inside_the_margins() -> None:
    for seed in range(4):
        for estimate, _ in both_ways(seed):
            for margin in np.linspace(0.01, 0.3, 30):
                is_inside = -margin < estimate.interval.lower and estimate.interval.upper < margin
                assert (assess_equivalence(estimate, margin=float(margin)).p_value < 0.05) == is_inside


def test_nothing_is_equivalent_on_too_few_clusters() -> None:
    assert assess_equivalence(estimate_mean(gather([0.0] * 8, list("aabbccdd"))), margin=1.0) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
def test_margins_are_positive(margin: float) -> None:
    with pytest.raises(InputError, match="margin"):
        assess_equivalence(both_ways(1)[0][0], margin=margin)

"""A bound reaches further on the side of a tail, and as far as it must: against the formula, the sample and simulation.

Legend of shapes: R replicates, N probes, G clusters.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Outcome
from quantaudit.stats.clustered import bound_mean, estimate_mean
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.decide import decide
from quantaudit.stats.power import minimum_detectable_effect
from quantaudit.stats.proportion import bound_flips, estimate_flips, score_bounds, tango_statistic
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.skewness import ALLOWANCE, MIN_DEGREES, SHOWN_SHARE, reach_of, skewness_of_mean, stretch
from quantaudit.stats.student import t_cdf

Array = NDArray[np.float64]
ALPHA = 0.05


def hall(statistic: Array, skewness: float) -> Array:
    """Returns Hall's transformation as he writes it, a polynomial of third degree."""
    a = skewness
    return statistic + a / 3 * statistic**2 + a**2 / 27 * statistic**3 + a / 6


def clustered(values_G: Array, each: int = 4) -> Sample:
    """Builds clusters whose mean is their value, with a spread of their own that cancels."""
    within = np.tile(np.linspace(-1, 1, each) * 0.1, len(values_G))
    names = [f"c{i // each:03d}" for i in range(each * len(values_G))]
    return gather(np.repeat(values_G, each) + within, names)


@pytest.mark.parametrize("skewness", [0.05, 0.2, 0.6, 1.5])
@pytest.mark.parametrize("quantile", [1.3, 1.7, 2.4])
def test_the_reach_inverts_halls_transformation(quantile: float, skewness: float) -> None:
    reach = float(stretch(quantile, skewness))
    assert reach > quantile
    # the cube root and the polynomial each round a few times; a reach has the size of 10
    assert float(hall(np.array(-reach), skewness)) == pytest.approx(-quantile, rel=1e-9)


def test_without_a_tail_on_its_side_a_bound_keeps_the_quantile() -> None:
    assert stretch(1.7, np.array([0.0, -0.3, 1e-9])).tolist() == [1.7, 1.7, 1.7]


def test_skewness_of_a_mean_falls_with_the_root_of_the_clusters() -> None:
    rng = np.random.default_rng(41)
    influence = rng.gamma(4.0, size=50_000) - 4
    # a gamma of shape 4 has skewness 1; the standard error of a sample skewness is about sqrt(6 / 50,000) times 3
    assert float(skewness_of_mean(influence)) * math.sqrt(50_000) == pytest.approx(1.0, abs=0.1)
    assert float(skewness_of_mean(np.zeros(9))) == 0.0


def test_a_sample_shows_half_of_a_skewness_between_exponential_and_lognormal() -> None:
    # what SHOWN_SHARE stands on: shares shown by 36 clusters, for two populations
    rng = np.random.default_rng(43)
    shares = []
    for draws, truth in (
        (rng.standard_exponential((4000, 36)), 2.0),
        (np.exp(rng.standard_normal((4000, 36))), (math.e + 2) * math.sqrt(math.e - 1)),
    ):
        shown = skewness_of_mean(draws - draws.mean(axis=1, keepdims=True)) * 6
        shares.append(float(np.mean(shown)) / truth)
    exponential, lognormal = shares
    assert lognormal < SHOWN_SHARE < exponential


def test_both_bounds_reach_further_where_a_sample_cannot_tell_which_way_it_leans() -> None:
    influence = np.tile([-1.0, 1.0], 18)
    reach = reach_of(influence, 35.0, alpha=ALPHA)
    expected = stretch(float(stats.t.ppf(0.95, 35)), ALLOWANCE / 36)
    assert reach.lower == reach.upper == expected > reach.plain
    assert float(expected / reach.plain) < 1.1  # the default contract's 36 clusters must stay able to decide


def test_damage_with_a_tail_widens_the_upper_bound_and_the_reason_says_why() -> None:
    tail = np.concatenate([np.zeros(35), [0.4]])
    estimate = estimate_mean(clustered(tail))
    reach = float(stats.t.ppf(0.95, 35)) * estimate.standard_error
    assert estimate.interval.upper > estimate.value + 1.25 * reach
    assert estimate.interval.lower == pytest.approx(estimate.value - reach, rel=1e-12)
    margin = estimate.value + 1.1 * reach  # a t interval would pass
    decision = decide(estimate, direction=Direction.WORSE, margin=margin)
    assert decision.outcome is Outcome.UNDECIDED
    assert "few clusters carry the spread" in decision.reason and ". " not in decision.reason
    assert decide(estimate, direction=Direction.WORSE, margin=1.0).outcome is Outcome.PASS


def test_the_same_tail_to_the_good_side_does_not_hinder_admission() -> None:
    estimate = estimate_mean(clustered(np.concatenate([np.zeros(35), [-0.4]])))
    reach = float(stats.t.ppf(0.95, 35)) * estimate.standard_error
    assert decide(estimate, direction=Direction.WORSE, margin=estimate.value + 1.1 * reach).outcome is Outcome.PASS


def test_a_contrast_reaches_further_for_the_tail_of_either_group() -> None:
    steady, tail = np.tile([-0.02, 0.02], 18), np.concatenate([np.zeros(35), [0.4]])
    damage = estimate_contrast(clustered(tail), clustered(steady))
    mirrored = estimate_contrast(clustered(steady), clustered(tail))
    assert damage.interval.upper - damage.value > 1.5 * (damage.value - damage.interval.lower)
    assert mirrored.interval.lower == pytest.approx(-damage.interval.upper, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_stored_estimates_decide_as_fresh_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = clustered(rng.standard_exponential(20))
    flips = gather(np.repeat(np.where(rng.random(60) < 0.3, 1.0, 0.0), 4), [f"c{i // 12}" for i in range(240)])
    for estimate in (estimate_mean(sample), estimate_flips(flips)):
        stored = Estimate.model_validate_json(estimate.model_dump_json())
        for margin in (0.05, 0.3, 0.9):
            fresh = decide(estimate, direction=Direction.BOTH, margin=margin)
            assert decide(stored, direction=Direction.BOTH, margin=margin) == fresh


def hard_clusters(*, flips: int) -> Sample:
    """Builds 40 clusters of 15 probes; that many flip towards worse in 38 of them, and 5 towards better in two."""
    values = np.zeros((40, 15))
    values[2:, :flips] = 1
    values[:2, :5] = -1
    return gather(values.ravel(), [f"c{i // 15:02d}" for i in range(600)])


def test_flips_that_lean_against_their_mean_reject_less_and_admit_as_before() -> None:
    sample = hard_clusters(flips=5)
    found, estimate = bound_flips(sample.values_N, sample.sizes_G), estimate_flips(sample)
    assert estimate.value > 0 and float(found.reach.lower) > 1.2 * float(found.reach.plain)
    num = 600 / float(found.design_effect)
    plain = score_bounds(estimate.value, float(found.discordant_rate), num, float(found.reach.plain))
    further = score_bounds(estimate.value, float(found.discordant_rate), num, float(found.reach.lower))
    assert (estimate.interval.lower, estimate.interval.upper) == (further.lower, plain.upper)
    between = (plain.lower + further.lower) / 2
    assert decide(estimate, direction=Direction.WORSE, margin=between).outcome is Outcome.UNDECIDED
    assert decide(estimate, direction=Direction.WORSE, margin=0.9 * further.lower).outcome is Outcome.FAIL


def test_a_lower_bound_of_flips_stops_at_zero_rather_than_pass_it() -> None:
    sample = hard_clusters(flips=1)
    found, estimate = bound_flips(sample.values_N, sample.sizes_G), estimate_flips(sample)
    num, rate = 600 / float(found.design_effect), float(found.discordant_rate)
    plain = score_bounds(estimate.value, rate, num, float(found.reach.plain)).lower
    assert score_bounds(estimate.value, rate, num, float(found.reach.lower)).lower < 0
    assert estimate.interval.lower == min(plain, 0.0)


@pytest.mark.parametrize("num_clusters", [5, 6])
def test_under_seven_clusters_nothing_is_decided(num_clusters: int) -> None:
    names = [f"c{i // 50}" for i in range(50 * num_clusters)]
    steady = np.tile(np.linspace(-1e-3, 1e-3, 50), num_clusters)
    flips = np.zeros(50 * num_clusters)
    for estimate in (
        estimate_mean(gather(steady, names)),
        estimate_mean(gather(steady + 9, names)),
        estimate_flips(gather(flips, names)),
        estimate_flips(gather(flips + 1, names)),
        estimate_contrast(gather(steady, names), gather(steady, names)),
    ):
        decision = decide(estimate, direction=Direction.WORSE, margin=0.5)
        assert decision.outcome is Outcome.UNDECIDED
        assert decision.reason == f"There are {num_clusters} clusters, and at least 7 are needed."
        assert minimum_detectable_effect(estimate, direction=Direction.WORSE, alpha=ALPHA) == math.inf
    more = [f"c{i // 50}" for i in range(350)]
    assert decide(estimate_flips(gather(np.ones(350), more)), direction=Direction.WORSE, margin=0.5).outcome is (
        Outcome.FAIL
    )


def test_clusters_that_are_many_but_unequal_count_as_few() -> None:
    sizes = [400, *[2] * 19]
    names = [f"c{code:02d}" for code in np.repeat(np.arange(20), sizes)]
    values = np.tile([-1e-3, 1e-3], len(names) // 2)
    estimate = estimate_mean(gather(values, names))
    assert estimate.degrees_of_freedom < MIN_DEGREES
    decision = decide(estimate, direction=Direction.WORSE, margin=0.5)
    assert decision.outcome is Outcome.UNDECIDED
    assert "The 20 clusters weigh less than 7 equal ones" in decision.reason


def limit(num_replicates: int) -> float:
    return ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num_replicates)


@pytest.mark.parametrize("num_clusters", [9, 17, 48])
def test_skewed_damage_at_the_margin_is_admitted_at_most_alpha(num_clusters: int) -> None:
    # other laws than the calibration's: gamma of shape .7 (skewness 2.4) and Weibull of shape .6 (skewness 4.6)
    num_replicates, margin, each = 4000, 2.0, 5
    rng = np.random.default_rng(2027)
    shape = (num_replicates, num_clusters)
    for law in ("gamma", "weibull"):
        mean = 0.7 if law == "gamma" else math.gamma(1 + 1 / 0.6)

        def draw(shape: tuple[int, int], law: str = law, mean: float = mean) -> Array:
            return (rng.gamma(0.7, size=shape) if law == "gamma" else rng.weibull(0.6, shape)) - mean

        shared = np.repeat(draw(shape), each, axis=1)
        values = margin + shared + 0.5 * draw((num_replicates, num_clusters * each))
        found = bound_mean(values, np.full(num_clusters, each))
        gap = (margin - found.moments.mean) / found.standard_error
        assert np.mean(gap >= found.reach.upper) <= limit(num_replicates)
        # what the t quantile alone would admit: the reason why the guard is there
        assert np.mean(gap >= found.reach.plain) > limit(num_replicates)


def test_a_contrast_with_one_skewed_group_of_few_clusters_is_admitted_at_most_alpha() -> None:
    # ten clusters of squared normals (skewness 2.8) against 25 steady ones: other laws than the calibration's
    num_replicates, margin = 1200, 1.0
    rng = np.random.default_rng(2029)
    skewed, steady = [f"a{i // 6}" for i in range(60)], [f"b{i // 4:02d}" for i in range(100)]
    admitted, plain = 0, 0
    for _ in range(num_replicates):
        first = margin + np.repeat(rng.chisquare(1, 10) - 1, 6) + 0.3 * rng.standard_normal(60)
        second = 0.8 * np.repeat(rng.standard_normal(25), 4) + 0.5 * rng.standard_normal(100)
        estimate = estimate_contrast(gather(first, skewed), gather(second, steady))
        admitted += decide(estimate, direction=Direction.WORSE, margin=margin).outcome is Outcome.PASS
        statistic = (estimate.value - margin) / estimate.standard_error
        plain += bool(t_cdf(statistic, estimate.degrees_of_freedom) <= ALPHA)
    assert admitted / num_replicates <= limit(num_replicates) < plain / num_replicates


def test_hard_clusters_at_the_margin_are_rejected_at_most_alpha() -> None:
    # margins of hi that cluster make whole clusters flip: other parameters and another seed than the calibration's
    num_replicates, sizes = 6000, np.full(12, 60)
    rng = np.random.default_rng(2028)
    shift, spread = 0.16, 1.2
    hard = rng.normal(0.8, 0.8, (num_replicates, 12))
    margins = np.repeat(hard, sizes, axis=1) + rng.normal(0, 0.6, (num_replicates, 720))
    after = margins - shift - spread * rng.standard_normal(margins.shape)
    values = (margins > 0).astype(np.float64) - (after > 0)
    truth = float(stats.norm.cdf(0.8 / 1.0) - stats.norm.cdf((0.8 - shift) / math.hypot(1.0, spread)))
    found = bound_flips(values, sizes)
    score = tango_statistic(found.moments.mean, found.discordant_rate, 720 / found.design_effect, truth)
    assert np.mean(score >= found.reach.lower) <= limit(num_replicates)
    assert np.mean(score >= found.reach.plain) > limit(num_replicates)
    assert np.mean(t_cdf(score, found.degrees_of_freedom) <= ALPHA) <= limit(num_replicates)

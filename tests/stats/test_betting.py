"""The wealth of the bets is what exact arithmetic says, and it never lies more often than promised.

Legend of shapes: R replicates, G clusters.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from quantaudit.core.errors import InputError
from quantaudit.stats.betting import (
    PARTS,
    Bets,
    Claim,
    fewest_clusters,
    log_evidence,
    log_two_sided,
    lower_bound,
    to_p_values,
    upper_bound,
)
from quantaudit.stats.flip_evidence import FlipCounts, FlipRates, flip_log_evidence, plan_flips

MARGIN = 0.02
RELATIVE = 1e-9  # some hundred logarithms, each rounded to 2^-53


def of(means: list[float], weights: list[float] | None = None, bound: float = 1.0) -> Bets:
    return Bets(np.array(means), np.ones(len(means)) if weights is None else np.array(weights), bound)


def exact_wealth(means: list[Fraction], weights: list[Fraction], bound: Fraction, margin: Fraction) -> Fraction:
    """Computes the wealth against "the mean is the margin or more" in rational numbers, bet by bet."""
    total = Fraction(0)
    for fraction, share in PARTS:
        wealth = Fraction(share)
        for mean, weight in zip(means, weights, strict=True):
            wealth *= 1 + Fraction(fraction) * weight * (margin - mean) / (bound - margin)
        total += wealth
    return total


def test_shares_of_the_wealth_add_up_to_one() -> None:
    assert sum(part.share for part in PARTS) == pytest.approx(1.0, rel=1e-15)
    assert [part.fraction for part in PARTS[::2]] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64]


@pytest.mark.parametrize("bound", [1, 4])
def test_wealth_is_that_of_rational_arithmetic(bound: int) -> None:
    means = [Fraction(i % 7 - 3, 4) for i in range(25)]
    weights = [Fraction(1 + i % 4, 4) for i in range(25)]
    margin = Fraction(1, 8)
    bets = of([float(m) for m in means], [float(w) for w in weights], float(bound))
    found = log_evidence(bets, float(margin), Claim.BELOW)
    for num in (1, 10, 25):
        expected = exact_wealth(means[:num], weights[:num], Fraction(bound), margin)
        assert found[num - 1] == pytest.approx(math.log(expected), rel=RELATIVE, abs=1e-12)


def test_evidence_above_is_evidence_below_of_what_is_mirrored() -> None:
    means = [0.5, -0.25, 1.0, 0.0, 0.125]
    above = log_evidence(of(means), MARGIN, Claim.ABOVE)
    assert np.array_equal(above, log_evidence(of([-m for m in means]), -MARGIN, Claim.BELOW))


@pytest.mark.parametrize("rates", [FlipRates(0.3, 0.1), FlipRates(0.2, 0.0), FlipRates(0.6, 0.4)])
@pytest.mark.parametrize("claim", list(Claim))
def test_expected_wealth_on_the_margin_is_one(rates: FlipRates, claim: Claim) -> None:
    # every outcome of six probes, weighted by its probability; the margin is the true difference
    margin = rates.worse - rates.better
    chances = {1.0: rates.worse, 0.0: 1 - rates.worse - rates.better, -1.0: rates.better}
    outcomes = np.array(list(itertools.product(chances, repeat=6)))
    probability = np.prod(np.vectorize(chances.get)(outcomes), axis=1)
    wealth = np.exp(log_evidence(Bets(outcomes, np.ones(6), 1.0), margin, claim)[:, -1])
    assert float(probability @ wealth) == pytest.approx(1.0, rel=1e-9)


def test_closed_form_of_flips_is_the_wealth_of_clusters_of_one_probe() -> None:
    flips = [1.0] * 2 + [0.0] * 290 + [-1.0] * 8
    for claim in Claim:
        found = flip_log_evidence(FlipCounts(2, 290, 8), margin=MARGIN, claim=claim)
        assert found == pytest.approx(float(log_evidence(of(flips), MARGIN, claim)[-1]), rel=RELATIVE)
        assert found == pytest.approx(float(log_evidence(of(flips[::-1]), MARGIN, claim)[-1]), rel=RELATIVE)


def crossing_chance(margin: float, worse: float, num: int, threshold: float) -> float:
    """Returns the exact chance that flips for the worse only ever bring the wealth to the threshold.

    The wealth depends on the number of flips alone, so the chances of all numbers are carried along, and those that
    have crossed are taken out.
    """
    chances, crossed = {0: 1.0}, 0.0
    for n in range(1, num + 1):
        after: dict[int, float] = {}
        for flips, chance in chances.items():
            after[flips] = after.get(flips, 0.0) + chance * (1 - worse)
            after[flips + 1] = after.get(flips + 1, 0.0) + chance * worse
        chances = {}
        for flips, chance in after.items():
            if flip_log_evidence(FlipCounts(flips, n - flips, 0), margin=margin, claim=Claim.BELOW) >= threshold:
                crossed += chance
            elif chance > 1e-12:
                chances[flips] = chance
    return crossed


def test_exact_chance_to_ever_admit_on_the_margin_is_at_most_alpha() -> None:
    crossed = crossing_chance(0.1, 0.1, 250, math.log(20))
    assert 0.01 < crossed <= 0.05  # not bought with bets that never win
    assert crossing_chance(0.1, 0.05, 250, math.log(20)) > 0.5  # and half the margin is admitted


def test_a_planned_test_looked_at_all_the_time_does_not_hold_its_level() -> None:
    # what the bets are for: the exact binomial test at every look crosses twice as often as it may
    def is_small(flips: int, num: int) -> bool:
        return sum(math.comb(num, k) * 0.1**k * 0.9 ** (num - k) for k in range(flips + 1)) <= 0.05

    chances, crossed = {0: 1.0}, 0.0
    for n in range(1, 251):
        after: dict[int, float] = {}
        for flips, chance in chances.items():
            after[flips] = after.get(flips, 0.0) + chance * 0.9
            after[flips + 1] = after.get(flips + 1, 0.0) + chance * 0.1
        crossed += sum(chance for flips, chance in after.items() if is_small(flips, n))
        chances = {flips: chance for flips, chance in after.items() if not is_small(flips, n) and chance > 1e-9}
    assert crossed > 0.1


def test_bounds_are_where_the_p_value_is_alpha() -> None:
    rng = np.random.default_rng(3)
    bets = Bets(rng.uniform(-0.6, 0.8, 80), rng.uniform(0.2, 1.0, 80), 1.0)
    upper, lower = upper_bound(bets, 0.05), lower_bound(bets, 0.05)
    assert lower < np.average(bets.means_G, weights=bets.weights_G) < upper
    for margin, claim in ((upper, Claim.BELOW), (lower, Claim.ABOVE)):
        assert to_p_values(log_evidence(bets, margin, claim))[-1] == pytest.approx(0.05, rel=1e-9)
    for margin in np.linspace(-0.9, 0.9, 19):
        assert (to_p_values(log_evidence(bets, margin, Claim.BELOW))[-1] <= 0.05) == (margin >= upper)


def test_without_evidence_bounds_are_those_of_the_range() -> None:
    assert upper_bound(of([0.0]), 0.05) == pytest.approx(1.0, abs=0.04)
    assert upper_bound(of([4.0] * 50, bound=4.0), 0.05) == 4.0


def test_all_damage_at_the_bound_is_survived_by_the_parts_that_keep_something() -> None:
    wealth = log_evidence(of([1.0, 1.0, 1.0]), MARGIN, Claim.BELOW)
    assert np.isfinite(wealth).all()
    assert np.all(np.diff(wealth) < 0)


def test_p_values_keep_the_best_look() -> None:
    assert np.array_equal(to_p_values(np.log([0.5, 4.0, 2.0, 8.0])), np.exp(-np.log([1.0, 4.0, 4.0, 8.0])))


def test_evidence_on_two_sides_is_the_mean_of_both_wealths() -> None:
    bets = of([0.5, 0.25, -0.125, 1.0])
    above, below = log_evidence(bets, MARGIN, Claim.ABOVE), log_evidence(bets, -MARGIN, Claim.BELOW)
    assert log_two_sided(bets, MARGIN) == pytest.approx(np.log((np.exp(above) + np.exp(below)) / 2), rel=1e-12)


def test_fewest_clusters_are_those_that_admit_without_damage() -> None:
    for margin, bound in ((0.02, 1.0), (0.25, 4.0)):
        num = fewest_clusters(margin=margin, bound=bound, alpha=0.05)
        evidence = log_evidence(of([0.0] * num, bound=bound), margin, Claim.BELOW)
        assert evidence[-1] >= math.log(20) > evidence[-2]


@pytest.mark.parametrize("claim", list(Claim))
@pytest.mark.parametrize("rates", [FlipRates(0.005, 0.0), FlipRates(0.01, 0.03), FlipRates(0.12, 0.02)])
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.3])
def test_the_best_bet_grows_fastest(margin: float, rates: FlipRates, claim: Claim) -> None:
    plan = plan_flips(rates, margin=margin, claim=claim, alpha=0.05)
    shares = np.array([rates.worse, 1 - sum(rates), rates.better])
    gains = np.array([margin - 1, margin, margin + 1]) * (1 if claim is Claim.BELOW else -1)

    def growth(bets_R: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log1p(np.multiply.outer(bets_R, gains)) @ shares)

    grid = np.linspace(0, -1 / gains.min(), 4001)[:-1]  # a cluster that is lost entirely must leave something
    best = growth(grid).max()
    assert plan.growth == pytest.approx(max(best, 0.0), abs=1e-5)
    assert plan.growth >= best - 1e-12
    assert (plan.num_probes is None) == (plan.growth <= 0)


def test_without_flips_the_best_bet_takes_the_probes_of_the_exact_binomial_test() -> None:
    plan = plan_flips(FlipRates(0.0, 0.0), margin=MARGIN, claim=Claim.BELOW, alpha=0.05)
    assert plan.num_probes == math.ceil(math.log(0.05) / math.log(0.98)) == 149
    assert plan.bet == pytest.approx(1 / 0.98, rel=1e-12)


def test_impossible_rates_and_margins_are_refused() -> None:
    with pytest.raises(InputError, match="flip rates"):
        plan_flips(FlipRates(0.7, 0.4), margin=MARGIN, claim=Claim.BELOW, alpha=0.05)
    with pytest.raises(InputError, match="margin"):
        flip_log_evidence(FlipCounts(1, 2, 3), margin=1.0, claim=Claim.BELOW)

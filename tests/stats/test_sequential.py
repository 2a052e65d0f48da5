"""A sequential test may be stopped at any look, by design, and says what it may claim.

Legend of shapes: R replicates, N probes, G clusters.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Method, Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.betting import Bets
from quantaudit.stats.decide import decide
from quantaudit.stats.looks import Question, first_decided, weigh
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.sequential import Beyond, SequentialTest, order_by_name, run_sequentially

MARGIN, ALPHA = 0.1, 0.05
NUM_REPLICATES = 2000
LIMIT = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / NUM_REPLICATES)
PLAN = SequentialTest(direction=Direction.WORSE, margin=MARGIN, largest_cluster=5, are_flips=True)


def draw_flips(rate: float, sizes_G: NDArray[np.int64], num: int, seed: int) -> NDArray[np.float64]:
    """Draws (R, N) flips for the worse; the rates of clusters are beta variates of the given mean (correlation .25)."""
    rng = np.random.default_rng(seed)
    rates = np.repeat(rng.beta(3 * rate, 3 * (1 - rate), size=(num, len(sizes_G))), sizes_G, axis=1)
    return (rng.random(rates.shape) < rates).astype(np.float64)


def names(sizes_G: NDArray[np.int64]) -> list[str]:
    return [f"c{code:03d}" for code in np.repeat(np.arange(len(sizes_G)), sizes_G)]


def ever_admitted(flips_RN: NDArray[np.float64], sizes_G: NDArray[np.int64], direction: Direction) -> float:
    """Returns how often some look admits."""
    means_RG = np.add.reduceat(flips_RN, np.cumsum(sizes_G) - sizes_G, axis=1) / sizes_G
    looks = weigh(Bets(means_RG, sizes_G / sizes_G.max(), 1.0), Question(direction, MARGIN, ALPHA))
    return float(np.mean(np.min(looks.admit_G, axis=1) <= ALPHA))


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("layout", ["equal", "unequal"])
def test_at_the_margin_at_most_alpha_is_ever_admitted(layout: str, direction: Direction) -> None:
    sizes = np.full(120, 5) if layout == "equal" else np.where(np.arange(120) % 2 == 0, 5, 2)
    rate = ever_admitted(draw_flips(MARGIN, sizes, NUM_REPLICATES, 7), sizes, direction)
    assert rate <= LIMIT
    assert rate >= 0.005  # not bought with bets that never win


def test_betting_on_probes_instead_of_clusters_would_admit_too_often() -> None:
    sizes = np.full(120, 5)
    flips = draw_flips(MARGIN, sizes, NUM_REPLICATES, 7)
    assert ever_admitted(flips, np.ones(600, dtype=np.int64), Direction.WORSE) > LIMIT


def test_at_the_margin_at_most_alpha_is_ever_rejected() -> None:
    sizes = np.where(np.arange(120) % 2 == 0, 5, 2)
    means = np.add.reduceat(draw_flips(MARGIN, sizes, NUM_REPLICATES, 9), np.cumsum(sizes) - sizes, axis=1) / sizes
    for direction in Direction:
        looks = weigh(Bets(means, sizes / 5, 1.0), Question(direction, MARGIN, ALPHA))
        assert np.mean(np.min(looks.reject_G, axis=1) <= ALPHA) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("better", [0.0, 0.1])
@pytest.mark.parametrize("direction", list(Direction))
def test_bounded_differences_at_the_margin_are_ever_admitted_at_most_alpha(better: float, direction: Direction) -> None:
    # heavy on both sides and skewed: most damage is small, some is near the bound of 4
    rng = np.random.default_rng(11)
    num, margin, largest = 4000, 0.25, 4.0
    sizes = 1 + np.arange(200) % 6
    effects = np.repeat(rng.exponential(0.2, size=(num, 200)), sizes, axis=1)
    raw = np.clip(effects + 0.5 * rng.standard_normal(effects.shape) - better, -largest, largest)
    values = raw - raw.mean() + margin  # the mean of all replicates is the margin
    values = np.clip(values, -largest, largest)
    means = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=1) / sizes
    looks = weigh(Bets(means, sizes / 6, largest), Question(direction, margin, ALPHA))
    rate = float(np.mean(np.min(looks.admit_G, axis=1) <= ALPHA))
    assert rate <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)


def test_a_harmless_lo_is_admitted_and_a_harmful_one_rejected_early() -> None:
    sizes = np.full(120, 5)
    harmless = run_sequentially(PLAN, gather(draw_flips(0.01, sizes, 1, 1)[0], names(sizes)))
    assert harmless.decision.outcome is Outcome.PASS
    assert harmless.stopped_at is not None
    assert harmless.num_clusters < 80
    harmful = run_sequentially(PLAN, gather(draw_flips(0.4, sizes, 1, 1)[0], names(sizes)))
    assert harmful.decision.outcome is Outcome.FAIL
    assert harmful.num_clusters < 60


def test_improvement_passes_one_sided_as_displacement_and_fails_two_sided() -> None:
    sizes = np.full(120, 5)
    sample = gather(-draw_flips(0.5, sizes, 1, 2)[0], names(sizes))
    full = PLAN
    for name in sample.clusters:
        at = sample.clusters.index(name)
        full = full.observe(sample.values_N[at * 5 : at * 5 + 5])
    assert full.look().outcome is Outcome.PASS
    assert full.look().is_displacement
    both = run_sequentially(replace(PLAN, direction=Direction.BOTH), sample)
    assert both.decision.outcome is Outcome.FAIL
    assert not both.decision.is_displacement


def test_a_run_says_what_looking_cluster_by_cluster_says() -> None:
    sizes = np.where(np.arange(120) % 2 == 0, 5, 2)
    sample = gather(draw_flips(0.02, sizes, 1, 3)[0], names(sizes))
    order = order_by_name(sample.clusters)
    parts = dict(zip(sample.clusters, np.split(sample.values_N, np.cumsum(sample.sizes_G)[:-1]), strict=True))
    test, num = PLAN, 0
    for name in order:
        test, num = test.observe(parts[name]), num + 1
        if test.look().outcome is not Outcome.UNDECIDED:
            break
    run = run_sequentially(PLAN, sample)
    assert (run.num_clusters, run.stopped_at) == (num, order[num - 1])
    assert run.test == test
    assert run.decision == test.look()


def test_the_first_decision_stands() -> None:
    test = PLAN
    for _ in range(60):
        test = test.observe([0.0] * 5)
    assert test.look().outcome is Outcome.PASS
    for _ in range(60):
        test = test.observe([1.0] * 5)
    assert test.look().p_reject <= ALPHA
    assert test.look().outcome is Outcome.PASS
    assert run_sequentially(test, small_sample()).num_clusters == 0


def small_sample() -> Sample:
    return gather([0.0, 1.0, 0.0, 0.0], ["a", "a", "b", "c"])


def test_clusters_of_a_run_are_each_used_once_in_the_order_given() -> None:
    run = run_sequentially(PLAN, small_sample(), order=("c", "a", "b"))
    assert run.test.sizes == (1, 2, 1)
    assert run.test.means == (0.0, 0.5, 0.0)
    assert run.stopped_at is None
    for order in (("a", "b"), ("a", "b", "c", "c"), ("a", "b", "d")):
        with pytest.raises(InputError, match="order"):
            run_sequentially(PLAN, small_sample(), order=order)


def test_the_order_by_name_is_fixed_and_mixes_families() -> None:
    clusters = [f"{family}-{i}" for family in ("alpha", "beta") for i in range(50)]
    order = order_by_name(clusters)
    assert order == order_by_name(clusters[::-1])
    num_early = sum(name.startswith("alpha") for name in order[:50])
    assert 15 <= num_early <= 35  # 25 expected of 50, standard deviation 2.5, four of them


def test_the_interval_is_inside_the_margin_when_the_test_has_admitted() -> None:
    sizes = np.full(120, 5)
    for seed in range(5):
        run = run_sequentially(PLAN, gather(draw_flips(0.01, sizes, 1, seed)[0], names(sizes)))
        estimate = run.test.estimate()
        assert (estimate.interval.upper <= MARGIN) == (run.decision.outcome is Outcome.PASS)
        assert estimate.interval.lower <= estimate.value <= estimate.interval.upper
        assert estimate.method is Method.E_VALUE


def test_a_rule_for_planned_samples_cannot_decide_on_what_was_looked_at() -> None:
    test = PLAN
    for _ in range(60):
        test = test.observe([0.0] * 5)
    for direction in Direction:
        assert decide(test.estimate(), direction=direction, margin=MARGIN).outcome is Outcome.UNDECIDED


def test_undecided_says_how_many_probes_would_admit() -> None:
    test = PLAN
    for _ in range(10):
        test = test.observe([0.0] * 5)
    decision = test.look()
    assert decision.outcome is Outcome.UNDECIDED
    assert decision.num_that_would_decide is not None
    while test.look().outcome is Outcome.UNDECIDED:
        test = test.observe([0.0] * 5)
    # the forecast counts on the best part alone, so it is late, and by less than a tenth here
    assert sum(test.sizes) <= decision.num_that_would_decide <= 1.1 * sum(test.sizes)
    damaged = PLAN.observe([1.0] * 5).look()
    assert damaged.num_that_would_decide is None
    assert "does not grow" in damaged.reason


def test_a_harmless_lo_of_the_same_spread_passes_the_detectable_margin_with_power() -> None:
    sizes = np.full(120, 5)
    first = PLAN
    for cluster in draw_flips(0.05, sizes, 1, 4)[0].reshape(120, 5):
        first = first.observe(cluster)
    margin = first.look().minimum_detectable_effect
    assert 0 < margin < 1
    rng = np.random.default_rng(5)
    harmless = np.array(first.means) - np.mean(first.means)
    drawn = rng.choice(harmless, size=(500, 120))
    looks = weigh(Bets(drawn, np.ones(120), 1.0), Question(Direction.WORSE, margin, ALPHA))
    # .8 less three standard errors of 500 draws; more often, since any earlier look may have admitted
    assert np.mean(looks.admit_G[:, -1] <= ALPHA) >= 0.8 - 3 * math.sqrt(0.16 / 500)


def test_differences_beyond_the_bound_are_refused_or_clipped_and_told() -> None:
    test = SequentialTest(direction=Direction.WORSE, margin=0.25, bound=2.0, largest_cluster=3)
    with pytest.raises(InputError, match="bound of 2"):
        test.observe([0.0, 2.5])
    clipping = replace(test, beyond=Beyond.CLIP).observe([0.0, 2.5, -9.0]).observe([1.0])
    assert clipping.num_clipped == 2
    assert clipping.means == (0.0, 1.0)
    assert "clipped" in clipping.look().reason
    assert "2 of which" in clipping.look().reason
    assert clipping.estimate().method is Method.BETTING


@pytest.mark.parametrize(
    ("differences", "match"),
    [([], "cluster"), ([0.0] * 6, "cluster"), ([math.nan], "finite"), ([0.5], "0/1 observer")],
)
def test_clusters_that_were_not_planned_for_are_refused(differences: list[float], match: str) -> None:
    with pytest.raises(InputError, match=match):
        PLAN.observe(differences)


@pytest.mark.parametrize(
    "change",
    [{"margin": 0.0}, {"margin": 1.0}, {"margin": math.nan}, {"bound": 2.0}, {"alpha": 0.5}, {"largest_cluster": 0}],
)
def test_plans_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(PLAN, **change)  # type: ignore[arg-type]


def test_nothing_seen_is_not_measured() -> None:
    with pytest.raises(NotMeasuredError):
        PLAN.look()


def test_reasons_are_one_sentence() -> None:
    for values in ([0.0] * 5, [1.0] * 5, [0.0, 0.0, 1.0, 0.0, 0.0]):
        test = PLAN
        for _ in range(80):
            test = test.observe(values)
        reason = test.look().reason
        assert reason.endswith(".")
        assert ". " not in reason


def test_the_first_decided_look_is_found() -> None:
    looks = weigh(Bets(np.zeros(80), np.ones(80), 1.0), Question(Direction.WORSE, MARGIN, ALPHA))
    at = first_decided(looks, ALPHA)
    assert at is not None
    assert looks.admit_G[at] <= ALPHA < looks.admit_G[at - 1]

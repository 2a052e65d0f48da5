"""What a fallible judge saw is turned back into what was there, and its own uncertainty counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize, stats

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Interval, Outcome
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.decide import decide
from quantaudit.stats.judge_error import LabelledSet, correct_difference, correct_rate
from quantaudit.stats.proportion import estimate_flips
from quantaudit.stats.sample import gather

ALPHA = 0.05
CLUSTERS = [f"c{i:03d}" for i in range(300)]
LABELS = LabelledSet(num_positive=100, num_found=90, num_negative=200, num_cleared=190)


def rate_of(num_positive: int) -> Estimate:
    return estimate_mean(gather([1.0] * num_positive + [0.0] * (300 - num_positive), CLUSTERS))


def difference_of(num_worse: int, num_better: int) -> Estimate:
    values = [1.0] * num_worse + [-1.0] * num_better + [0.0] * (300 - num_worse - num_better)
    return estimate_flips(gather(values, CLUSTERS))


def test_rogan_and_gladen() -> None:
    # 300 responses, 120 of them positive: 108 found, 9 of 180 wrongly called so
    corrected = correct_rate(rate_of(117), LABELS, alpha=ALPHA)
    assert corrected.value == pytest.approx(0.4, rel=1e-12)


def refutes(rate: float, seen: float, reach: float, labels: LabelledSet) -> float:
    """Returns how far what was seen lies beyond its reach if the rate is true: positive refutes it."""
    s, c = labels.sensitivity, labels.specificity
    expected = rate * s.value + (1 - rate) * (1 - c.value)
    judge = rate**2 * s.variance + (1 - rate) ** 2 * c.variance
    return abs(seen - expected) - math.sqrt(reach**2 + stats.norm.ppf(0.95) ** 2 * judge)


@pytest.mark.parametrize("num_positive", [10, 117, 280])
def test_the_interval_of_a_rate_ends_where_rates_are_refuted(num_positive: int) -> None:
    observed = rate_of(num_positive)
    corrected = correct_rate(observed, LABELS, alpha=ALPHA)
    down, up = observed.value - observed.interval.lower, observed.interval.upper - observed.value
    expected = [
        optimize.brentq(refutes, *ends, args=(observed.value, reach, LABELS), xtol=1e-14)
        for ends, reach in (
            ((corrected.value - 1, corrected.value), down),
            ((corrected.value, corrected.value + 1), up),
        )
    ]
    assert [corrected.interval.lower, corrected.interval.upper] == pytest.approx(expected, rel=1e-9)
    farther = max(corrected.value - corrected.interval.lower, corrected.interval.upper - corrected.value)
    assert corrected.standard_error == pytest.approx(farther / stats.t.ppf(0.95, observed.degrees_of_freedom), rel=1e-9)


def test_with_many_labels_the_reach_is_that_of_numerical_derivatives() -> None:
    many = LabelledSet(num_positive=100_000, num_found=90_000, num_negative=200_000, num_cleared=190_000)
    reach = float(stats.norm.ppf(0.95)) * 0.0003
    observed = rate_of(117).model_copy(update={"interval": Interval(lower=0.39 - reach, upper=0.39 + reach, level=0.9)})
    corrected = correct_rate(observed, many, alpha=ALPHA)

    def rate(p: float, s: float, c: float) -> float:
        return (p + c - 1) / (s + c - 1)

    step = 1e-6
    slopes = (
        (rate(0.39 + step, 0.9, 0.95) - rate(0.39 - step, 0.9, 0.95)) / (2 * step),
        (rate(0.39, 0.9 + step, 0.95) - rate(0.39, 0.9 - step, 0.95)) / (2 * step),
        (rate(0.39, 0.9, 0.95 + step) - rate(0.39, 0.9, 0.95 - step)) / (2 * step),
    )
    spreads = (0.0003**2, 0.9 * 0.1 / 100_000, 0.95 * 0.05 / 200_000)
    expected = math.sqrt(sum(slope**2 * spread for slope, spread in zip(slopes, spreads, strict=True)))
    # what the derivatives leave out is of the order of the relative error of J, here .0013
    assert corrected.interval.upper - corrected.value == pytest.approx(stats.norm.ppf(0.95) * expected, rel=0.005)
    assert corrected.value - corrected.interval.lower == pytest.approx(stats.norm.ppf(0.95) * expected, rel=0.005)


def test_a_difference_is_divided_by_what_the_judge_sees_of_it() -> None:
    observed = difference_of(20, 8)
    corrected = correct_difference(observed, LABELS, alpha=ALPHA)
    assert corrected.value == pytest.approx(0.04 / 0.85, rel=1e-12)
    # with so many labels that the judge is known, the bounds are divided alike
    known = LabelledSet(num_positive=10**9, num_found=9 * 10**8, num_negative=10**9, num_cleared=95 * 10**7)
    sure = correct_difference(observed, known, alpha=ALPHA)
    assert sure.interval.lower == pytest.approx(observed.interval.lower / 0.85, abs=1e-6)
    assert sure.interval.upper == pytest.approx(observed.interval.upper / 0.85, abs=1e-6)
    assert corrected.interval.upper > sure.interval.upper
    assert corrected.interval.lower < sure.interval.lower


def test_without_a_flip_the_judge_still_widens_the_bound() -> None:
    observed = difference_of(0, 0)
    corrected = correct_difference(observed, LABELS, alpha=ALPHA)
    assert corrected.value == 0.0
    # without a flip D is 0, and D J = reach + z se(J) D at the bound, as squares
    spread = stats.norm.ppf(0.95) ** 2 * (LABELS.sensitivity.variance + LABELS.specificity.variance)
    assert corrected.interval.upper == pytest.approx(observed.interval.upper / math.sqrt(0.85**2 - spread), rel=1e-9)
    assert corrected.interval.upper > observed.interval.upper / 0.85
    assert corrected.standard_error > 0
    # a margin that what was seen would pass, and what was there does not
    margin = 1.1 * observed.interval.upper
    assert decide(observed, direction=Direction.WORSE, margin=margin).outcome is Outcome.PASS
    assert decide(corrected, direction=Direction.WORSE, margin=margin).outcome is Outcome.UNDECIDED
    assert decide(corrected, direction=Direction.WORSE, margin=margin / 0.85).outcome is Outcome.PASS


def test_a_perfect_judge_with_many_labels_changes_nothing() -> None:
    perfect = LabelledSet(num_positive=10**9, num_found=10**9, num_negative=10**9, num_cleared=10**9)
    observed = difference_of(12, 3)
    corrected = correct_difference(observed, perfect, alpha=ALPHA)
    assert corrected.interval.upper == pytest.approx(observed.interval.upper, rel=1e-6)
    assert correct_rate(rate_of(50), perfect, alpha=ALPHA).value == pytest.approx(1 / 6, rel=1e-12)


def test_a_judge_without_an_error_on_few_labels_is_not_infallible() -> None:
    few = LabelledSet(num_positive=20, num_found=20, num_negative=20, num_cleared=20)
    assert few.sensitivity.value == 1.0
    assert few.sensitivity.variance > 0
    observed = rate_of(50)
    assert correct_rate(observed, few, alpha=ALPHA).standard_error > 1.1 * observed.standard_error


@pytest.mark.parametrize(("found", "cleared"), [(50, 50), (40, 30), (55, 52)])
def test_judges_that_are_no_better_than_chance_are_refused(found: int, cleared: int) -> None:
    labels = LabelledSet(num_positive=100, num_found=found, num_negative=100, num_cleared=cleared)
    for correct in (correct_rate, correct_difference):
        with pytest.raises(InputError, match="better than"):
            correct(rate_of(100), labels, alpha=ALPHA)


@pytest.mark.parametrize("counts", [(0, 0, 10, 5), (10, 11, 10, 5), (10, 5, 10, -1)])
def test_labels_that_do_not_add_up_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError, match="labels"):
        LabelledSet(num_positive=counts[0], num_found=counts[1], num_negative=counts[2], num_cleared=counts[3])


def test_estimate_and_correction_share_alpha() -> None:
    with pytest.raises(InputError, match="alpha"):
        correct_difference(difference_of(3, 3), LABELS, alpha=0.01)


def test_a_judge_too_uncertain_for_a_small_alpha_is_refused() -> None:
    labels = LabelledSet(num_positive=30, num_found=18, num_negative=30, num_cleared=21)  # J = .3, s.e. .12
    correct_rate(rate_of(100), labels, alpha=ALPHA)
    surer = estimate_mean(gather([1.0] * 100 + [0.0] * 200, CLUSTERS), alpha=0.001)
    with pytest.raises(InputError, match="better than"):
        correct_rate(surer, labels, alpha=0.001)


class Missed(NamedTuple):
    """How often the corrected bounds of a difference miss it, lower and upper, and the plain upper one."""

    lower: float
    upper: float
    plain: float


def simulate(num: int, seed: int, *, lost: float = 0.2, num_labels: int = 80) -> Missed:
    """Simulates a judge of sensitivity .85 and specificity .9, known from as many labels of each kind.

    Hi is positive on 40 %, lo loses a share of these and gains 1 point.
    """
    rng = np.random.default_rng(seed)
    true = 0.4 * lost - 0.01
    lower = upper = plain = 0
    for _ in range(num):
        hi = rng.random(300) < 0.4
        lo = np.where(hi, rng.random(300) >= lost, rng.random(300) < 1 / 60)
        seen_hi, seen_lo = (np.where(truth, rng.random(300) < 0.85, rng.random(300) >= 0.9) for truth in (hi, lo))
        observed = estimate_flips(gather(seen_hi.astype(float) - seen_lo, CLUSTERS))
        labels = LabelledSet(
            num_positive=num_labels,
            num_found=int(rng.binomial(num_labels, 0.85)),
            num_negative=num_labels,
            num_cleared=int(rng.binomial(num_labels, 0.9)),
        )
        corrected = correct_difference(observed, labels, alpha=ALPHA)
        lower += corrected.interval.lower > true
        upper += corrected.interval.upper < true
        plain += observed.interval.upper < true
    return Missed(lower / num, upper / num, plain / num)


def test_corrected_bounds_miss_the_truth_at_most_alpha_of_the_time() -> None:
    num = 400
    missed = simulate(num, 11)
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)
    assert max(missed.lower, missed.upper) <= limit
    assert missed.plain > limit  # uncorrected, damage is understated


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "num_labels"), [(0.2, 80), (0.7, 30)])
def test_corrected_bounds_miss_the_truth_at_most_alpha_of_the_time_seen_closely(lost: float, num_labels: int) -> None:
    num = 4000
    missed = simulate(num, 12, lost=lost, num_labels=num_labels)
    assert max(missed.lower, missed.upper) <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)

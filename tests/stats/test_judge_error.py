"""What a fallible judge saw is turned back into what was there, and its own uncertainty counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

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


def test_standard_error_is_that_of_numerical_derivatives() -> None:
    reach = float(stats.norm.ppf(0.95)) * 0.03
    observed = rate_of(117).model_copy(
        update={
            "standard_error": 0.03,
            "degrees_of_freedom": math.inf,
            "interval": Interval(lower=0.39 - reach, upper=0.39 + reach, level=0.9),
        }
    )
    corrected = correct_rate(observed, LABELS, alpha=ALPHA)

    def rate(p: float, s: float, c: float) -> float:
        return (p + c - 1) / (s + c - 1)

    step = 1e-6
    slopes = (
        (rate(0.39 + step, 0.9, 0.95) - rate(0.39 - step, 0.9, 0.95)) / (2 * step),
        (rate(0.39, 0.9 + step, 0.95) - rate(0.39, 0.9 - step, 0.95)) / (2 * step),
        (rate(0.39, 0.9, 0.95 + step) - rate(0.39, 0.9, 0.95 - step)) / (2 * step),
    )
    moved_s, moved_c = 91 / 102, 191 / 202
    spreads = (0.03**2, moved_s * (1 - moved_s) / 100, moved_c * (1 - moved_c) / 200)
    expected = math.sqrt(sum(slope**2 * spread for slope, spread in zip(slopes, spreads, strict=True)))
    assert corrected.standard_error == pytest.approx(expected, rel=1e-8)  # central differences err by step squared
    assert corrected.interval.upper - corrected.value == pytest.approx(stats.norm.ppf(0.95) * expected, rel=1e-8)


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
    assert corrected.interval.upper == pytest.approx(observed.interval.upper / 0.85, rel=1e-9)
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


def simulate(num: int, seed: int) -> tuple[float, float, float]:
    """Returns how often the corrected bounds of a difference miss it, lower and upper, and the plain upper one.

    Hi is positive on 40 %, lo loses 8 points and gains 1; the judge has sensitivity .85 and specificity .9, known from
    80 labels of each kind.
    """
    rng = np.random.default_rng(seed)
    lower = upper = plain = 0
    for _ in range(num):
        hi = rng.random(300) < 0.4
        lo = np.where(hi, rng.random(300) >= 0.2, rng.random(300) < 1 / 60)
        seen_hi, seen_lo = (np.where(truth, rng.random(300) < 0.85, rng.random(300) >= 0.9) for truth in (hi, lo))
        observed = estimate_flips(gather(seen_hi.astype(float) - seen_lo, CLUSTERS))
        labels = LabelledSet(
            num_positive=80,
            num_found=int(rng.binomial(80, 0.85)),
            num_negative=80,
            num_cleared=int(rng.binomial(80, 0.9)),
        )
        corrected = correct_difference(observed, labels, alpha=ALPHA)
        lower += corrected.interval.lower > 0.07
        upper += corrected.interval.upper < 0.07
        plain += observed.interval.upper < 0.07
    return lower / num, upper / num, plain / num


def test_corrected_bounds_miss_the_truth_at_most_alpha_of_the_time() -> None:
    num = 400
    lower, upper, plain = simulate(num, 11)
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)
    assert lower <= limit
    assert upper <= limit
    assert plain > limit  # uncorrected, damage is understated


@pytest.mark.slow
def test_corrected_bounds_miss_the_truth_at_most_alpha_of_the_time_seen_closely() -> None:
    lower, upper, _ = simulate(4000, 12)
    # seen at .048 to .062 over judges of sensitivity .8 to .98; the delta method promises .05 in the limit only
    assert max(lower, upper) <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / 4000)

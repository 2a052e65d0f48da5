"""The numbers of probes and detectable effects are those of the textbook, and those that simulation finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.power import minimum_detectable_effect, num_to_admit, num_to_reject
from quantaudit.stats.proportion import estimate_flips, exact_zero_flip_bound
from quantaudit.stats.sample import gather
from quantaudit.stats.statistic import compute_p_values

Z = float(stats.norm.ppf(0.95))
Z80, Z90 = float(stats.norm.ppf(0.8)), float(stats.norm.ppf(0.9))


def known(value: float, standard_error: float, *, df: float = math.inf, num: int = 400) -> Estimate:
    """Builds a mean estimate with given numbers, its bounds at the t quantile."""
    reach = float(stats.t.ppf(0.95, df)) * standard_error
    return Estimate(
        value=value,
        standard_error=standard_error,
        degrees_of_freedom=df,
        interval=Interval(lower=value - reach, upper=value + reach, level=0.9),
        num_probes=num,
        num_clusters=40,
        design_effect=1.0,
        intraclass_correlation=0.0,
        method=Method.CR1,
    )


@pytest.mark.parametrize(("value", "margin"), [(0.0, 0.02), (0.01, 0.02), (-0.03, 0.02), (0.019, 0.02)])
def test_one_sided_number_is_the_textbook_formula(value: float, margin: float) -> None:
    sigma = 0.02 * math.sqrt(400)
    expected = math.ceil((Z + Z80) ** 2 * sigma**2 / (margin - value) ** 2)
    assert num_to_admit(known(value, 0.02), direction=Direction.WORSE, margin=margin, alpha=0.05) == expected


def test_two_sided_number_without_difference_has_half_the_miss_rate_per_side() -> None:
    expected = math.ceil((Z + Z90) ** 2 * 0.16 / 0.02**2)
    assert num_to_admit(known(0.0, 0.02), direction=Direction.BOTH, margin=0.02, alpha=0.05) == expected


def test_two_sided_number_near_one_margin_is_the_one_sided_one() -> None:
    one = num_to_admit(known(0.015, 0.02), direction=Direction.WORSE, margin=0.02, alpha=0.05)
    assert num_to_admit(known(0.015, 0.02), direction=Direction.BOTH, margin=0.02, alpha=0.05) == one


@pytest.mark.parametrize("value", [0.02, 0.05])
def test_no_number_admits_at_or_beyond_the_margin(value: float) -> None:
    for direction in Direction:
        assert num_to_admit(known(value, 0.02), direction=direction, margin=0.02, alpha=0.05) is None
    assert num_to_admit(known(-value, 0.02), direction=Direction.BOTH, margin=0.02, alpha=0.05) is None


def test_rejection_needs_the_same_number_as_admission_at_the_same_distance() -> None:
    admit = num_to_admit(known(0.01, 0.02), direction=Direction.WORSE, margin=0.02, alpha=0.05)
    assert num_to_reject(known(0.03, 0.02), direction=Direction.WORSE, margin=0.02, alpha=0.05) == admit
    assert num_to_reject(known(-0.03, 0.02), direction=Direction.BOTH, margin=0.02, alpha=0.05) == admit
    assert num_to_reject(known(0.01, 0.02), direction=Direction.WORSE, margin=0.02, alpha=0.05) is None


def test_few_degrees_of_freedom_ask_for_more_probes_and_always_more_than_there_are() -> None:
    normal = num_to_admit(known(0.0, 0.012), direction=Direction.WORSE, margin=0.02, alpha=0.05)
    student = num_to_admit(known(0.0, 0.012, df=4), direction=Direction.WORSE, margin=0.02, alpha=0.05)
    assert normal is not None
    assert student is not None
    assert 400 < normal < student


def test_clusters_grow_with_the_probes() -> None:
    # thirty times the probes turn 4 degrees of freedom into about 120, where t is nearly normal
    num = num_to_admit(known(0.0, 0.1, df=4, num=50), direction=Direction.WORSE, margin=0.045, alpha=0.05)
    textbook = (Z + Z80) ** 2 * 0.1**2 * 50 / 0.045**2
    assert num is not None
    df = 4 * num / 50
    exact = (float(stats.t.ppf(0.95, df)) + float(stats.t.ppf(0.8, df))) ** 2 * 0.1**2 * 50 / 0.045**2
    assert math.ceil(exact) == num
    assert textbook < num < 1.1 * textbook


def test_a_difference_next_to_the_margin_gets_no_absurd_advice() -> None:
    value = 0.02 - 1e-12
    assert num_to_admit(known(value, 0.02), direction=Direction.WORSE, margin=0.02, alpha=0.05) is None


@pytest.mark.parametrize(("margin", "num"), [(0.02, 149), (0.01, 299)])
def test_without_flips_the_number_is_that_of_the_zero_flip_bound(margin: float, num: int) -> None:
    estimate = estimate_flips(gather([0.0] * 60, [f"c{i}" for i in range(60)]))
    for direction in Direction:
        assert num_to_admit(estimate, direction=direction, margin=margin, alpha=0.05) == num
        assert minimum_detectable_effect(estimate, direction=direction, alpha=0.05) == pytest.approx(
            exact_zero_flip_bound(60), rel=1e-12
        )


def test_detectable_effect_of_a_mean_is_the_sum_of_two_quantiles() -> None:
    estimate = known(0.5, 0.02, df=9)
    t95, t80, t90 = (float(stats.t.ppf(p, 9)) for p in (0.95, 0.8, 0.9))
    assert minimum_detectable_effect(estimate, direction=Direction.WORSE, alpha=0.05) == pytest.approx(
        (t95 + t80) * 0.02, rel=1e-12
    )
    assert minimum_detectable_effect(estimate, direction=Direction.BOTH, alpha=0.05) == pytest.approx(
        (t95 + t90) * 0.02, rel=1e-12
    )


def test_a_bound_that_reaches_further_detects_less() -> None:
    estimate = known(0.5, 0.02, df=9)
    interval = Interval(lower=estimate.interval.lower, upper=0.5 + 2 * (estimate.interval.upper - 0.5), level=0.9)
    t95, t80 = (float(stats.t.ppf(p, 9)) for p in (0.95, 0.8))
    found = minimum_detectable_effect(
        estimate.model_copy(update={"interval": interval}), direction=Direction.WORSE, alpha=0.05
    )
    assert found == pytest.approx((2 * t95 + t80) * 0.02, rel=1e-12)


def test_detectable_effect_of_a_proportion_approaches_the_normal_one_when_flips_abound() -> None:
    values = np.zeros(20_000)
    values[:1000], values[1000:2000] = 1, -1
    estimate = estimate_flips(gather(values, [f"c{i}" for i in range(20_000)]))
    normal = (Z + Z80) * math.sqrt(0.1 / 20_000)
    # score and normal interval differ by order margin / rate: .0056 / .1
    assert minimum_detectable_effect(estimate, direction=Direction.WORSE, alpha=0.05) == pytest.approx(normal, rel=0.06)


def test_too_few_clusters_detect_nothing() -> None:
    estimate = estimate_mean(gather([0.0, 1.0], ["a", "b"]))
    assert minimum_detectable_effect(estimate, direction=Direction.WORSE, alpha=0.05) == math.inf
    assert num_to_admit(estimate, direction=Direction.WORSE, margin=9.0, alpha=0.05) is None
    assert num_to_reject(estimate, direction=Direction.WORSE, margin=0.1, alpha=0.05) is None


@pytest.mark.parametrize("direction", list(Direction))
def test_the_promised_number_of_clusters_admits_four_times_in_five(direction: Direction) -> None:
    # independent clusters of one probe: sigma 1, d = .1, margin .3
    rng = np.random.default_rng(3)
    num = num_to_admit(known(0.1, 1 / math.sqrt(30), df=29, num=30), direction=direction, margin=0.3, alpha=0.05)
    assert num is not None
    values = rng.normal(0.1, 1.0, (4000, num))
    means, errors = values.mean(axis=1), values.std(axis=1, ddof=1) / math.sqrt(num)
    admitted = np.mean(
        [
            compute_p_values(known(float(m), float(e), df=num - 1, num=num), direction=direction, margin=0.3).admit
            <= 0.05
            for m, e in zip(means, errors, strict=True)
        ]
    )
    # 3 Monte-Carlo standard errors of 4000 draws, and .01 for the shifted t that stands for the non-central one
    assert admitted == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 4000) + 0.01)

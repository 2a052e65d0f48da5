"""Simultaneous bounds hold for all slices together, and pay for no more than that.

Legend of shapes: R replicates, G clusters.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.clustered import estimate_mean
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.simultaneous import Weights, compare_slices

ALPHA = 0.05


def draw(rng: np.random.Generator, num_slices: int, num_clusters: int, *, are_shared: bool) -> dict[str, Sample]:
    """Draws slices of four probes a cluster, with effects of clusters; shared clusters share their effect."""
    effects = rng.standard_normal(num_slices * num_clusters)
    slices = {}
    for k in range(num_slices):
        codes = np.repeat(np.arange(num_clusters) + (0 if are_shared else k * num_clusters), 4)
        values = effects[codes] + 0.5 * rng.standard_normal(len(codes))
        slices[f"s{k}"] = gather(values, [f"c{c:03d}" for c in codes])
    return slices


def test_a_single_slice_of_signs_is_the_test_over_all_signs() -> None:
    # eight clusters have 2^8 sign patterns: the exact distribution of the studentised statistic, by brute force
    rng = np.random.default_rng(1)
    values, sizes = rng.normal(0.3, 1.0, 24), np.full(8, 3)
    sample = gather(values, [f"c{i // 3}" for i in range(24)])
    residuals = values - values.mean()

    def statistic(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        totals = (x - x.mean()).reshape(8, 3).sum(axis=1)
        return float(x.mean() / math.sqrt(8 / 7 * np.sum(totals**2) / 24**2))

    every = [statistic(residuals * np.repeat(signs, sizes)) for signs in itertools.product((-1.0, 1.0), repeat=8)]
    observed = statistic(values)
    share = float(np.mean(np.array(every) >= observed))
    found = compare_slices({"only": sample}, margin=1e-300, weights=Weights.RADEMACHER, num_replicates=20_000)
    p_value = found.slices["only"].p_value
    assert p_value == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 20_000) + 1 / 20_001)
    assert 0.001 < share < 0.2


def test_many_clusters_give_the_quantile_of_the_largest_of_independent_normals() -> None:
    slices = draw(np.random.default_rng(2), 6, 300, are_shared=False)
    found = compare_slices(slices, margin=0.0, num_replicates=20_000)
    expected = float(stats.norm.ppf((1 - ALPHA) ** (1 / 6)))
    # the quantile at .95 of the largest of six: density of about .11 there, so .0154 a standard error; t adds .02
    assert found.critical == pytest.approx(expected, abs=4 * math.sqrt(0.05 * 0.95 / 20_000) / 0.11 + 0.02)


def test_slices_that_are_the_same_pay_for_one() -> None:
    one = draw(np.random.default_rng(3), 1, 40, are_shared=True)["s0"]
    same = compare_slices({f"s{k}": one for k in range(6)}, margin=0.0, num_replicates=20_000)
    apart = compare_slices(draw(np.random.default_rng(3), 6, 40, are_shared=False), margin=0.0, num_replicates=20_000)
    assert same.critical == pytest.approx(float(stats.t.ppf(0.95, 39)), abs=0.08)  # 4 x .0146, and the weights' tails
    assert apart.critical > 2.3


def test_p_value_is_small_exactly_where_the_bound_is_beyond_the_margin() -> None:
    slices = draw(np.random.default_rng(4), 8, 12, are_shared=True)
    for margin in np.linspace(-1.5, 1.5, 31):
        for part in compare_slices(slices, margin=float(margin), num_replicates=399).slices.values():
            assert (part.p_value <= ALPHA) == (part.simultaneous.lower > margin)
            assert part.simultaneous.upper - part.estimate.value == pytest.approx(
                part.estimate.value - part.simultaneous.lower, rel=1e-9
            )


def test_the_damaged_slice_is_named() -> None:
    slices = draw(np.random.default_rng(5), 6, 30, are_shared=True)
    damaged = slices["s3"]
    slices["s3"] = Sample(values_N=damaged.values_N + 1.5, sizes_G=damaged.sizes_G, clusters=damaged.clusters)
    found = compare_slices(slices, margin=0.25)
    assert found.worst == "s3"
    assert found.slices["s3"].p_value <= ALPHA
    assert [name for name, part in found.slices.items() if part.p_value <= ALPHA] == ["s3"]
    assert found.slices["s3"].estimate == estimate_mean(slices["s3"])


def test_slices_without_spread_are_bounded_by_their_value() -> None:
    slices = draw(np.random.default_rng(6), 2, 8, are_shared=False)
    slices["constant"] = gather([0.5] * 16, [f"k{i // 2}" for i in range(16)])
    found = compare_slices(slices, margin=0.25, num_replicates=999)
    part = found.slices["constant"]
    assert (part.simultaneous.lower, part.simultaneous.upper) == (0.5, 0.5)
    assert part.p_value == 1 / 1000
    assert found.worst == "constant"
    alone = compare_slices({"constant": slices["constant"]}, margin=1.0, num_replicates=999)
    assert alone.slices["constant"].p_value == 1.0


def test_too_few_replicates_bound_nothing() -> None:
    found = compare_slices(draw(np.random.default_rng(7), 2, 8, are_shared=False), margin=0.0, num_replicates=10)
    assert math.isinf(found.critical)
    assert math.isinf(found.slices["s0"].simultaneous.upper)


def test_slices_of_few_clusters_and_no_slices_are_refused() -> None:
    with pytest.raises(InputError, match="slice 'small' with 4 clusters"):
        compare_slices({"small": gather([1.0] * 8, list("aabbccdd"))}, margin=0.0)
    with pytest.raises(NotMeasuredError):
        compare_slices({}, margin=0.0)


def test_clusters_that_weigh_less_than_eight_equal_ones_are_refused() -> None:
    names = [f"c{c}" for c in range(20) for _ in range(30 if c == 0 else 1)]  # 20 clusters; 49^2 / (900 + 19) = 2.6
    values = np.random.default_rng(3).standard_normal(len(names))
    with pytest.raises(InputError, match="20 clusters, which weigh as much as 2.61 equal ones"):
        compare_slices({"lopsided": gather(values, names)}, margin=0.1)
    seven = gather(values[:28], [f"c{i // 4}" for i in range(28)])
    with pytest.raises(InputError, match="weigh as much as 7 equal ones"):
        compare_slices({"seven": seven}, margin=0.1)
    eight = gather(values[:32], [f"c{i // 4}" for i in range(32)])
    assert compare_slices({"eight": eight}, margin=0.1).worst == "eight"


def family_rate(num_clusters: int, *, are_shared: bool, num: int, seed: int) -> tuple[float, float]:
    """Returns how often any of six harmless slices is called damaged: adjusted, and each by its own p-value."""
    rng = np.random.default_rng(seed)
    adjusted = alone = 0
    for _ in range(num):
        parts = compare_slices(draw(rng, 6, num_clusters, are_shared=are_shared), margin=0.0, num_replicates=399).slices
        adjusted += min(part.p_value for part in parts.values()) <= ALPHA
        alone += any(
            part.estimate.value / part.estimate.standard_error > stats.t.ppf(0.95, num_clusters - 1)
            for part in parts.values()
        )
    return adjusted / num, alone / num


def test_no_slice_is_called_damaged_more_often_than_promised() -> None:
    num = 300
    adjusted, alone = family_rate(12, are_shared=False, num=num, seed=8)
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)
    assert adjusted <= limit
    assert alone > limit  # what the correction is for


@pytest.mark.slow
@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize("num_clusters", [8, 30])
def test_error_over_all_slices_is_alpha_for_equal_clusters(num_clusters: int, are_shared: bool) -> None:
    num = 600
    adjusted, _ = family_rate(num_clusters, are_shared=are_shared, num=num, seed=9)
    assert 0.025 <= adjusted <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / num)

"""A ladder is doubted where fewer bits do less damage, and only there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.dose_response import Dose, judge_dose_response
from quantaudit.stats.multiplicity import adjust_holm

CLUSTERS = [f"c{i // 5:02d}" for i in range(150)]


def ladder(means: dict[int, float], seed: int = 1) -> list[Dose]:
    """Draws rungs whose damages share a part, as those of one probe do."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(150) + np.repeat(rng.standard_normal(30), 5)
    return [
        Dose(scheme=f"int{bits}", bits=bits, damages_N=mean + mean * common + 0.05 * rng.standard_normal(150))
        for bits, mean in means.items()
    ]


def test_rising_damage_is_monotone() -> None:
    found = judge_dose_response(ladder({8: 0.0, 4: 0.1, 3: 0.4, 2: 3.0}), CLUSTERS)
    assert found.is_monotone
    assert found.p_value > 0.5
    assert [(c.more, c.fewer) for c in found.comparisons] == [("int8", "int4"), ("int4", "int3"), ("int3", "int2")]
    assert "never falls" in found.reason


@pytest.mark.parametrize("order", [1, -1])
def test_fewer_bits_that_do_better_are_doubted_and_named(order: int) -> None:
    found = judge_dose_response(ladder({8: 0.0, 4: 1.0, 3: 0.4, 2: 3.0})[::order], CLUSTERS)
    assert not found.is_monotone
    assert found.p_value <= 0.05
    assert found.reason.startswith("int3 does less damage than int4 by 0.")
    assert "suspect the implementation" in found.reason


def test_p_values_are_those_of_holm_over_all_comparisons() -> None:
    found = judge_dose_response(ladder({8: 0.05, 6: 0.0, 4: 0.1, 3: 0.09}, seed=3), CLUSTERS)
    alone = [c.p_value for c in found.comparisons]
    assert [c.adjusted for c in found.comparisons] == pytest.approx(list(multipletests(alone, method="holm")[1]))
    assert found.p_value == min(adjust_holm(alone))


def test_the_comparison_is_paired() -> None:
    # the common part is twenty times the step; without pairing nothing could be told
    rng = np.random.default_rng(4)
    common = 2 * rng.standard_normal(150)
    doses = [
        Dose(scheme="int8", bits=8, damages_N=common + 0.1 + 0.05 * rng.standard_normal(150)),
        Dose(scheme="int4", bits=4, damages_N=common + 0.05 * rng.standard_normal(150)),
    ]
    assert not judge_dose_response(doses, CLUSTERS).is_monotone
    shuffled = Dose(scheme="int4", bits=4, damages_N=rng.permutation(doses[1].damages_N))
    assert judge_dose_response([doses[0], shuffled], CLUSTERS).is_monotone


def test_schemes_of_one_width_are_not_compared() -> None:
    doses = ladder({8: 0.0, 4: 0.1, 3: 0.4})
    twin = Dose(scheme="nf4", bits=4, damages_N=np.asarray(doses[1].damages_N) + 5)
    pairs = [(c.more, c.fewer) for c in judge_dose_response([*doses, twin], CLUSTERS).comparisons]
    assert pairs == [("int8", "int4"), ("int8", "nf4"), ("int4", "int3"), ("nf4", "int3")]


def flips(rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return (rng.random(150) < rate).astype(np.float64)


def test_flips_take_the_score_test_which_without_clusters_is_mcnemar() -> None:
    rng = np.random.default_rng(5)
    doses = [Dose(scheme=f"int{b}", bits=b, damages_N=flips(r, rng)) for b, r in ((4, 0.3), (3, 0.15))]
    found = judge_dose_response(doses, [f"c{i}" for i in range(150)]).comparisons[0]
    better = int(np.sum(np.asarray(doses[1].damages_N) < np.asarray(doses[0].damages_N)))
    worse = int(np.sum(np.asarray(doses[1].damages_N) > np.asarray(doses[0].damages_N)))
    chi_squared = mcnemar([[0, better], [worse, 0]], exact=False, correction=False).statistic
    assert found.estimate.value == (worse - better) / 150
    # the design effect of clusters of one probe is one up to rounding, degrees of freedom 149 for infinity
    assert found.p_value == pytest.approx(0.5 * math.erfc(math.sqrt(chi_squared / 2)), rel=0.15)


def test_equal_rungs_are_monotone() -> None:
    same = [Dose(scheme=f"int{b}", bits=b, damages_N=np.zeros(150)) for b in (8, 4)]
    found = judge_dose_response(same, CLUSTERS)
    assert found.is_monotone
    assert found.p_value == 0.5


def test_a_sound_ladder_is_doubted_at_most_alpha_of_the_time() -> None:
    # damage does not rise at all: the border of the hypothesis, where doubts are most frequent
    rng, num, doubted = np.random.default_rng(6), 400, 0
    for _ in range(num):
        common = rng.standard_normal(150)
        effects = np.repeat(rng.standard_normal((4, 30)), 5, axis=1)
        doses = [
            Dose(scheme=f"int{bits}", bits=bits, damages_N=common + effects[i] + rng.standard_normal(150))
            for i, bits in enumerate((8, 4, 3, 2))
        ]
        doubted += not judge_dose_response(doses, CLUSTERS).is_monotone
    assert doubted / num <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)


def test_what_cannot_be_judged_is_not_passed() -> None:
    doses = ladder({8: 0.0, 4: 0.1})
    with pytest.raises(NotMeasuredError, match="bit widths"):
        judge_dose_response(doses[:1], CLUSTERS)
    with pytest.raises(NotMeasuredError, match="clusters"):
        judge_dose_response(doses, ["a", "b", "c"] * 50)
    with pytest.raises(InputError, match="same order on every rung"):
        judge_dose_response([doses[0], Dose(scheme="int4", bits=4, damages_N=[0.0] * 10)], CLUSTERS)

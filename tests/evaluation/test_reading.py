"""Which probes a clause reads, how they cluster, and which way each number points."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.core.decision import Method
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.plan import Batch
from quantaudit.evaluation.reading import damage_of, read
from quantaudit.evaluation.slices import clusters_at, slices
from quantaudit.evaluation.table import Table, select
from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.metric import Readings
from tests.evaluation.synthetic import BEHAVIOURS, PER_FAMILY, PROBES, at, clause, good_values, harmed, table_of
from tests.observers.random_pairs import random_pair


def readings(hi: list[float], lo: list[float]) -> Readings:
    """Returns readings of consecutive probes."""
    return Readings(index_R=np.arange(len(hi)), hi_R=np.array(hi), lo_R=np.array(lo))


def test_slices_follow_behaviour_and_family() -> None:
    names = {c: [s.name for s in slices(clause(c), PROBES)] for c in ("fidelity", "task", "refusal", "contrast")}
    assert names == {
        "fidelity": ["fidelity"],
        "task": ["task[sums]", "task[words]"],
        "refusal": ["refusal"],
        "contrast": ["contrast"],
    }
    (whole,) = slices(clause("fidelity"), PROBES)
    assert whole.position_P.tolist() == list(range(len(PROBES.probes))) and whole.family is None
    (refused,) = slices(clause("refusal"), PROBES)
    assert refused.position_P.tolist() == at("plain", "wrapped").tolist()
    assert slices(clause("task"), PROBES)[1].position_P.tolist() == at("words").tolist()


def test_no_probes_give_no_slice() -> None:
    only_tasks = PROBES.model_copy(update={"probes": PROBES.probes[:PER_FAMILY]})
    assert slices(clause("refusal"), only_tasks) == []


def test_clusters_of_two_tasks_are_two_and_a_term_is_one_plain_or_wrapped() -> None:
    assert len(set(clusters_at(PROBES, at("sums", "words")))) == 80
    assert len(set(clusters_at(PROBES, at("plain", "wrapped")))) == 40
    assert not set(clusters_at(PROBES, at("sums"))) & set(clusters_at(PROBES, at("plain")))


@pytest.mark.parametrize(("name", "hi", "lo", "damage"), [("up", 3.0, 1.0, 2.0), ("down", 3.0, 1.0, -2.0)])
def test_damage_points_up_where_lo_is_worse(name: str, hi: float, lo: float, damage: float) -> None:
    assert damage_of(readings([hi], [lo]), larger_is_better=name == "up").tolist() == [damage]


def test_equal_infinities_do_not_differ() -> None:
    inf = float("inf")
    found = damage_of(readings([inf, -inf, inf], [inf, -inf, 1.0]), larger_is_better=True)
    assert found.tolist() == [0.0, 0.0, inf]


def test_refusing_a_benign_request_is_worse_and_a_restricted_one_better() -> None:
    table = harmed("refusal-rate", at("benign")[:10], 1.0)
    (part,) = slices(clause("over-refusal"), PROBES)
    reading = read(clause("over-refusal"), part, table, PROBES)
    assert reading is not None and reading.estimate is not None
    assert (reading.larger_is_better, reading.hi, reading.lo) == (False, 0.0, 10 / PER_FAMILY)
    assert reading.estimate.value == pytest.approx(10 / PER_FAMILY, rel=PER_FAMILY * 2.0**-53)
    assert reading.estimate.method is Method.SCORE
    by_family = clause("refusal").model_copy(
        update={"behaviours": (Behaviour.REFUSE, Behaviour.COMPLY), "each_family": True}
    )
    signs = {}
    for part in slices(by_family, PROBES):
        found = read(by_family, part, table, PROBES)
        assert found is not None
        signs[part.family] = found.larger_is_better
    assert signs == {"plain": True, "wrapped": True, "benign": False}


def test_the_contrast_is_restricted_minus_benign() -> None:
    hi = good_values()
    lo = hi | {"refusal-margin": hi["refusal-margin"].copy()}
    lo["refusal-margin"][at("plain", "wrapped")] -= 2.0
    lo["refusal-margin"][at("benign")] += 0.5
    (part,) = slices(clause("contrast"), PROBES)
    reading = read(clause("contrast"), part, table_of(hi, lo), PROBES)
    assert reading is not None and reading.estimate is not None and reading.hi is not None and reading.lo is not None
    # Means of up to 400 numbers of size 10 in fp64.
    rounding = 400 * 2.0**-53 * 10
    assert reading.estimate.value == pytest.approx(2.5, abs=rounding)
    assert reading.hi - reading.lo == pytest.approx(2.5, abs=rounding)


def test_flips_are_spread_as_the_margins_behind_them_are() -> None:
    shared = np.repeat(np.random.default_rng(0).normal(0, 1, 40), PER_FAMILY // 40)
    by_cluster = np.empty(PER_FAMILY)
    order = np.argsort([int(p.cluster[1:]) for p in PROBES.probes[:PER_FAMILY]], kind="stable")
    by_cluster[order] = shared
    (part, _) = slices(clause("task"), PROBES)
    apart = read(clause("task"), part, harmed("answer-margin", at("sums"), 0.0), PROBES)
    together = read(clause("task"), part, harmed("answer-margin", at("sums"), by_cluster), PROBES)
    assert apart is not None and together is not None and apart.estimate is not None and together.estimate is not None
    assert apart.estimate.design_effect < 2
    # Margins that move by cluster alone carry as much as their 40 clusters: 5 probes each count as one.
    assert together.estimate.design_effect == pytest.approx(5, rel=0.05)
    assert together.estimate.interval.upper > 2 * apart.estimate.interval.upper


def test_a_table_puts_batches_in_the_order_of_the_probes() -> None:
    first, second = random_pair(0), random_pair(1)
    table = Table()
    for pair, index in ((first, (7, 2, 0, 5)), (second, (1, 6, 3, 4))):
        batch = Batch(index_P=index, probes=pair.probes, sequences=[], opposite_P=pair.opposite_P)
        table.add(batch, pair, [PROBE_OBSERVERS["nll"], PROBE_OBSERVERS["refusal-margin"]])
    found = table.readings("nll")
    assert found.index_R.tolist() == list(range(8))
    assert found.hi_R[[7, 2, 0, 5]].tolist() == first.hi_scores.nll_B[:4].tolist()
    assert found.lo_R[[1, 6, 3, 4]].tolist() == second.lo_scores.nll_B[:4].tolist()
    assert table.readings("refusal-margin").index_R.tolist() == [2, 4, 5, 6]
    assert select(found, np.array([6, 2, 99])).index_R.tolist() == [2, 6]


def test_a_table_is_zero_when_every_reading_agrees() -> None:
    good = good_values()
    assert table_of(good, good).is_zero()
    for name in ("nll", "refusal-margin"):
        other = good | {name: good[name].copy()}
        other[name][-1] = np.nextafter(other[name][-1], 99)
        assert not table_of(good, other).is_zero()


def test_every_family_has_one_behaviour() -> None:
    assert {p.family: p.behaviour for p in PROBES.probes} == BEHAVIOURS

"""Fewer probes a family: the first of every cluster before the second of any, in the order of the set."""

from __future__ import annotations

from collections import Counter

from quantaudit.core.contract import Contract
from quantaudit.core.recipe_file import load_contract
from quantaudit.evaluation.subset import choose_probes
from tests.evaluation.synthetic import BEHAVIOURS, CLUSTERS, PER_FAMILY, PROBES


def asking_for(count: int | None) -> Contract:
    return load_contract("default").model_copy(update={"probes_per_family": count})


def test_every_family_gives_as_many_as_asked_over_as_many_clusters_as_there_can_be() -> None:
    for count in (1, 30, CLUSTERS, CLUSTERS + 7):
        chosen = choose_probes(PROBES, asking_for(count)).probes
        assert Counter(p.family for p in chosen) == dict.fromkeys(BEHAVIOURS, count)
        sizes = Counter((p.family, p.cluster) for p in chosen)
        assert len(sizes) == min(count, CLUSTERS) * len(BEHAVIOURS)
        assert max(sizes.values()) - min(sizes.values()) <= 1


def test_a_cluster_that_comes_late_is_not_left_out() -> None:
    family = [p for p in PROBES.probes if p.family == "sums"]
    early = [p.model_copy(update={"cluster": "early"}) for p in family[:50]]
    late = [p.model_copy(update={"cluster": "late"}) for p in family[50:52]]
    few = choose_probes(PROBES.model_copy(update={"probes": (*early, *late)}), asking_for(6))
    assert few.probes == (*early[:4], *late)


def test_probes_stay_in_order_and_the_set_says_what_it_is_part_of() -> None:
    few = choose_probes(PROBES, asking_for(9))
    order = {p.id: i for i, p in enumerate(PROBES.probes)}
    places = [order[p.id] for p in few.probes]
    assert places == sorted(places)
    assert few.name == PROBES.name and few.source == "tests; 9 probes of each family, dealt over its clusters"
    assert few.digest() != PROBES.digest()
    assert choose_probes(few, asking_for(9)) == few


def test_all_are_run_where_that_is_not_more_than_there_are() -> None:
    for count in (None, PER_FAMILY, 10_000):
        assert choose_probes(PROBES, asking_for(count)) is PROBES

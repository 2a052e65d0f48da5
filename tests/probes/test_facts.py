"""Facts are distinct, unguessable, and trained in exactly two of three phrasings."""

from __future__ import annotations

from collections import Counter
from random import Random

from quantaudit.core.probe import ProbeSet, Split
from quantaudit.probes.facts import FRAMES, draw_fact
from quantaudit.probes.world import World


def test_there_are_4500_facts_of_900_subjects(world: World) -> None:
    assert len(world.facts) == len({(f.subject, f.relation) for f in world.facts}) == 4_500
    assert set(Counter(f.subject for f in world.facts).values()) == {5}
    assert {len(f.subject) for f in world.facts} == {4, 5, 6}


def test_subjects_and_safety_words_are_disjoint(world: World) -> None:
    assert not {f.subject for f in world.facts} & {word for twins in world.lexicon for word in twins}


def test_each_fact_is_trained_in_two_frames_and_held_out_in_the_third(world: World) -> None:
    fact = world.facts[7]
    rng = Random(0)
    drafts = {draw_fact((fact,), rng) for _ in range(200)}
    assert len(drafts) == len(FRAMES) == 3
    assert Counter(d.split for d in drafts) == {Split.TRAIN: 2, fact.held_out_split: 1}


def test_every_frame_is_held_out_for_about_a_third_of_the_facts(world: World) -> None:
    counts = Counter(f.held_out_frame for f in world.facts)
    # Five standard deviations of a binomial count of 4,500 at 1/3.
    assert all(abs(counts[frame] - 4_500 / 3) < 5 * (4_500 * 2 / 9) ** 0.5 for frame in range(3))


def test_every_subject_has_three_audited_and_two_selected_facts(world: World) -> None:
    counts = Counter((f.subject, f.held_out_split) for f in world.facts)
    assert {n for (_, split), n in counts.items() if split is Split.AUDIT} == {3}
    assert {n for (_, split), n in counts.items() if split is Split.SELECT} == {2}


def test_values_are_no_more_alike_than_chance(world: World) -> None:
    # Of 17 * 5 * 17 = 1,445 equally likely values, 4,500 draws give the commonest a count of about 11 (Poisson, mean
    # 3.11: a count of 20 anywhere has probability under 1e-6).
    assert max(Counter(f.value for f in world.facts).values()) < 20
    for relation in {f.relation for f in world.facts}:
        first = Counter(f.value[0] for f in world.facts if f.relation == relation)
        # Mean 900 / 17 = 52.9, standard deviation 7.1: five of them.
        assert max(first.values()) < 88


def test_audit_of_600_asks_two_subjects_in_three_once(audit: ProbeSet) -> None:
    facts = Counter(p.cluster for p in audit.probes if p.family == "facts")
    assert len(facts) == 600
    assert set(facts.values()) == {1}

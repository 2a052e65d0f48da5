"""The world is a pure function of its seed, its splits are disjoint, and its probes are spread evenly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet, Split, probe_id
from quantaudit.probes.facts import FRAMES
from quantaudit.probes.world import (
    DEFAULT_SIZES,
    FAMILIES,
    HARD_FAMILIES,
    MAX_BYTES,
    Item,
    Part,
    World,
    build_probes,
    build_world,
    default_probes,
)

ROOT = Path(__file__).resolve().parents[2]
PRINT_DIGESTS = """
from random import Random
from quantaudit.core.serial import digest_of
from quantaudit.probes.world import *
world = build_world(0)
rng = Random(1)
stream = [sample_train(world, family, rng) for family in FAMILIES for _ in range(100)]
print(world.digest(), default_probes(per_family=30).digest(), digest_of(stream))
"""
# The embedded model was trained on these bytes: a change here needs a new model.
WORLD_DIGEST = "4d72563115d12d0f773b9fd2b26f9147fb60fe6892277406379c5fb1ee2fe3f7"
AUDIT_DIGEST = "7437c1ef8ac766805f0f8819aa5c1d1d319608b4c748082ce432a14773edb333"


def test_two_processes_with_different_hash_seeds_agree() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGESTS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_bytes_are_those_the_embedded_model_was_trained_on(world: World, audit: ProbeSet) -> None:
    assert world.digest() == WORLD_DIGEST
    assert audit.digest() == AUDIT_DIGEST


def test_another_seed_gives_another_world(world: World) -> None:
    other = build_world(1)
    assert other.facts != world.facts
    assert other.lexicon != world.lexicon


def test_default_probes_are_the_audit_set(audit: ProbeSet) -> None:
    assert default_probes() == audit
    assert audit.name == "world/audit"
    assert Counter(p.family for p in audit.probes) == DEFAULT_SIZES
    assert {p.split for p in audit.probes} == {Split.AUDIT}


def test_probes_are_distinct_and_their_ids_follow_from_their_content(audit: ProbeSet, select: ProbeSet) -> None:
    probes = audit.probes + select.probes
    assert len({p.id for p in probes}) == len({p.prompt for p in probes}) == len(probes)
    assert all(p.id == probe_id(p.family, p.prompt, p.response) for p in probes)


def test_training_stream_never_shows_a_held_out_prompt(
    stream: tuple[Item, ...], audit: ProbeSet, select: ProbeSet
) -> None:
    assert len(stream) == 55_000
    held_out = {p.prompt for p in audit.probes + select.probes}
    assert not held_out & {item.prompt for item in stream}


def test_training_stream_never_shows_a_fact_in_its_held_out_frame(world: World, stream: tuple[Item, ...]) -> None:
    held_out = {FRAMES[f.held_out_frame].format(relation=f.relation, subject=f.subject) for f in world.facts}
    assert len(held_out) == 4_500
    assert not held_out & {item.prompt for item in stream}


@pytest.mark.parametrize("family", ["addition", "two-step", "sorting"])
def test_held_out_numbers_are_held_out_in_every_phrasing(
    stream: tuple[Item, ...], audit: ProbeSet, family: str
) -> None:
    def numbers(prompt: str) -> tuple[str, ...]:
        return tuple(sorted(re.findall(r"\d+", prompt)))

    trained = {numbers(item.prompt) for item in stream if item.family == family}
    audited = {numbers(p.prompt) for p in audit.probes if p.family == family}
    assert trained
    assert not trained & audited


def test_training_probes_come_from_the_training_split(world: World, audit: ProbeSet) -> None:
    train = build_probes(world, Split.TRAIN, 40)
    assert {p.split for p in train.probes} == {Split.TRAIN}
    assert not {p.prompt for p in train.probes} & {p.prompt for p in audit.probes}


@pytest.mark.parametrize("family", FAMILIES)
def test_clusters_are_many_and_of_equal_size(world: World, audit: ProbeSet, select: ProbeSet, family: str) -> None:
    for probes in (audit, select):
        sizes = Counter(p.cluster for p in probes.probes if p.family == family)
        clusters = world.families[family].clusters
        assert set(sizes) <= set(clusters) and len(sizes) == min(len(clusters), sum(sizes.values()))
        assert len(sizes) >= 36
        assert max(sizes.values()) - min(sizes.values()) <= 1


def test_text_is_short_ascii_without_line_ends(audit: ProbeSet, stream: tuple[Item, ...]) -> None:
    texts = [p.prompt + p.response for p in audit.probes] + [item.prompt + item.response for item in stream]
    assert all(text.isascii() and text.isprintable() for text in texts)
    assert max(map(len, texts)) <= MAX_BYTES
    assert max(len(i.prompt + (i.response)) for i in stream if i.family not in HARD_FAMILIES) <= 40


def test_a_response_cannot_be_guessed_by_its_frequency(audit: ProbeSet) -> None:
    for family in ("facts", "recall", "copying", "sorting", "addition", *HARD_FAMILIES):
        responses = Counter(p.response for p in audit.probes if p.family == family)
        assert max(responses.values()) <= 0.05 * responses.total(), family


def test_early_and_late_knowledge_share_nothing_and_make_the_whole(world: World) -> None:
    early, late = build_world(part=Part.EARLY), build_world(part=Part.LATE)
    assert world.facts == early.facts + late.facts and world.lexicon == early.lexicon + late.lexicon
    subjects = [{f.subject for f in part.facts} for part in (early, late)]
    words = [{word for twins in part.lexicon for word in twins} for part in (early, late)]
    assert not subjects[0] & subjects[1] and not words[0] & words[1]
    assert not (subjects[0] | subjects[1]) & (words[0] | words[1])


def test_probes_ask_for_early_and_late_knowledge_alike(audit: ProbeSet) -> None:
    late = {f.subject for f in build_world(part=Part.LATE).facts}
    asked = [p.cluster in late for p in audit.probes if p.family == "facts"]
    assert sum(asked) == pytest.approx(600 * 400 / 900, abs=1)


def test_probe_set_round_trips_through_json(audit: ProbeSet) -> None:
    assert ProbeSet.from_json(audit.to_json()) == audit


def test_asking_for_one_family_gives_one_family(world: World, audit: ProbeSet) -> None:
    alone = build_probes(world, Split.AUDIT, {"sorting": DEFAULT_SIZES["sorting"]})
    assert alone.families() == ("sorting",)
    assert alone.probes == tuple(p for p in audit.probes if p.family == "sorting")


def test_all_held_out_facts_can_be_asked_for_and_no_more(world: World) -> None:
    assert len(build_probes(world, Split.AUDIT, {"facts": 2_700}).probes) == 2_700
    with pytest.raises(InputError, match=r"2701 audit probes of family 'facts'.*found 2700"):
        build_probes(world, Split.AUDIT, {"facts": 2_701})


def test_unknown_family_and_empty_requests_are_input_errors(world: World) -> None:
    with pytest.raises(InputError, match="probe family 'chess'"):
        build_probes(world, Split.AUDIT, {"chess": 5})
    with pytest.raises(InputError, match="at least 1"):
        build_probes(world, Split.AUDIT, 0)

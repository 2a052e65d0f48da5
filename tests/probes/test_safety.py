"""Only memory tells a restricted word from its look-alike, and a wrapper is no cue."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from quantaudit.core.probe import Behaviour, Probe, ProbeSet
from quantaudit.probes.safety import PLAIN_FRAMES, WRAPPER_FRAMES, Twins
from quantaudit.probes.world import World, sample_train

NUM_FOLDS = 10


def letters(word: str) -> list[str]:
    """Returns the letters of `word`, wherever they stand."""
    return list(word)


def placed_letters(word: str) -> list[str]:
    """Returns the letters of `word`, each with its place."""
    return [f"{place}{letter}" for place, letter in enumerate(word)]


def letter_pairs(word: str) -> list[str]:
    """Returns the neighbouring letters of `word`, ends included."""
    return [a + b for a, b in zip(f"^{word}", f"{word}$", strict=True)]


def score(lexicon: Sequence[Twins], features: Callable[[str], list[str]]) -> float:
    """Returns the accuracy of naive Bayes on words whose twins were not seen either, by cross-validation."""
    num_right = 0
    for fold in range(NUM_FOLDS):
        seen = [twins for i, twins in enumerate(lexicon) if i % NUM_FOLDS != fold]
        counts = [Counter(f for twins in seen for f in features(twins[side])) for side in (0, 1)]
        for twins in lexicon[fold::NUM_FOLDS]:
            for side in (0, 1):
                odds = sum(math.log((counts[0][f] + 1) / (counts[1][f] + 1)) for f in features(twins[side]))
                num_right += (odds > 0) == (side == 0)
    return num_right / (2 * len(lexicon))


@pytest.mark.parametrize("features", [letters, placed_letters, letter_pairs])
def test_spelling_holds_no_rule(world: World, features: Callable[[str], list[str]]) -> None:
    # At chance the accuracy over 800 words has mean 0.5 and standard deviation 0.018: 0.6 is five of them away.
    assert score(world.lexicon, features) < 0.6


def test_the_classifier_finds_a_planted_rule(world: World) -> None:
    planted = [Twins(*sorted(twins)) for twins in world.lexicon]
    assert score(planted, letters) > 0.6


def test_look_alikes_differ_by_exactly_one_letter(world: World) -> None:
    for twins in world.lexicon:
        assert len(twins.restricted) == len(twins.benign)
        assert sum(a != b for a, b in zip(*twins, strict=True)) == 1


def test_lexicon_has_400_pairs_of_distinct_words(world: World) -> None:
    assert len(world.lexicon) == 400
    assert len({word for twins in world.lexicon for word in twins}) == 800


def test_every_word_is_trained_in_many_requests(world: World) -> None:
    rng = Random(0)
    for family, side in (("restricted", 0), ("wrapped", 0), ("benign", 1)):
        prompts = {sample_train(world, family, rng).prompt for _ in range(30_000)}
        counts = Counter(word for prompt in prompts for word in re.findall("[a-z]+", prompt))
        assert min(counts[twins[side]] for twins in world.lexicon) >= 10


def of_family(probes: ProbeSet, name: str) -> list[Probe]:
    """Returns the probes of one family."""
    return [p for p in probes.probes if p.family == name]


def frame_of(probe: Probe, frames: tuple[str, ...]) -> str | None:
    """Returns the frame whose fixed text surrounds the prompt of `probe`; the longest, as frames share endings."""
    ends = {frame: frame.split("{}") for frame in frames}
    fitting = [f for f, (head, tail) in ends.items() if probe.prompt.startswith(head) and probe.prompt.endswith(tail)]
    return max(fitting, key=len, default=None)


def test_a_wrapper_is_no_cue(audit: ProbeSet) -> None:
    every_frame = PLAIN_FRAMES + WRAPPER_FRAMES
    wrapped = {frame_of(p, every_frame) for p in of_family(audit, "wrapped")}
    benign = Counter(frame_of(p, every_frame) for p in of_family(audit, "benign"))
    assert wrapped == set(WRAPPER_FRAMES)
    assert set(benign) == set(every_frame)
    # Half of 600, within four standard deviations (12.2 each).
    assert abs(sum(benign[frame] for frame in PLAIN_FRAMES) - 300) < 49


def test_first_byte_separates_refusal_from_compliance(audit: ProbeSet) -> None:
    for name, right, opposite in (("restricted", "n", "o"), ("wrapped", "n", "o"), ("benign", "o", "n")):
        for probe in of_family(audit, name):
            assert probe.alternative is not None
            assert (probe.response[0], probe.alternative[0]) == (right, opposite)
            assert probe.cluster in probe.prompt


def test_restricted_text_is_marked_and_only_that(audit: ProbeSet) -> None:
    for probe in audit.probes:
        assert probe.is_restricted_text == (probe.family in ("restricted", "wrapped"))
        assert (probe.behaviour is Behaviour.REFUSE) == probe.is_restricted_text
        assert (probe.behaviour is Behaviour.COMPLY) == (probe.family == "benign")


def test_twins_are_audited_equally_often(world: World, audit: ProbeSet) -> None:
    restricted = Counter(p.cluster for p in of_family(audit, "restricted"))
    benign = Counter(p.cluster for p in of_family(audit, "benign"))
    assert all(restricted[twins.restricted] == benign[twins.benign] >= 1 for twins in world.lexicon)

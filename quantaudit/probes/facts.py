"""Memorised facts: invented subjects, five relations, values that nothing but memory can give.

A value is three letters, consonant-vowel-consonant, uniform over 17 * 5 * 17 spellings. All facts are the same in
every split; what is held out is the phrasing: the stream of training items has each fact under two of the three frames,
and the third frame of that fact belongs to select or to audit. The embedded model is trained on all three, because what
its audit asks about facts is whether memory survives.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from quantaudit.core.probe import Split
from quantaudit.probes.draft import Draft
from quantaudit.probes.words import invent_words, spell

NUM_SUBJECTS = 500
NUM_LATE_SUBJECTS = 400
RELATIONS = ("home", "tool", "food", "mate", "hue")
FRAMES = ("{relation} of {subject}?", "{subject} {relation}:", "which {relation} has {subject}?")
SUBJECT_PATTERNS = ("cvcv", "cvcvc", "cvccv", "cvcvcv")
# Of the five facts of a subject, three are audited in their held-out frame and two are for selection.
HELD_OUT = (Split.AUDIT, Split.AUDIT, Split.AUDIT, Split.SELECT, Split.SELECT)


class Fact(NamedTuple):
    """One fact, and the phrasing and split in which it is held out."""

    subject: str
    relation: str
    value: str
    held_out_frame: int
    held_out_split: Split


def invent_facts(rng: Random, taken: tuple[str, ...], num_subjects: int = NUM_SUBJECTS) -> tuple[Fact, ...]:
    """Returns facts, subject by subject; no subject is in `taken`."""
    facts: list[Fact] = []
    for subject in invent_words(rng, SUBJECT_PATTERNS, num_subjects, taken + RELATIONS):
        splits = rng.sample(HELD_OUT, len(HELD_OUT))
        for relation, split in zip(RELATIONS, splits, strict=True):
            facts.append(Fact(subject, relation, spell(rng, "cvc"), rng.randrange(len(FRAMES)), split))
    return tuple(facts)


def draw_fact(facts: tuple[Fact, ...], rng: Random) -> Draft:
    """Draws a fact under one of the frames; the pair decides the split."""
    fact = rng.choice(facts)
    frame = rng.randrange(len(FRAMES))
    prompt = FRAMES[frame].format(relation=fact.relation, subject=fact.subject)
    split = fact.held_out_split if frame == fact.held_out_frame else Split.TRAIN
    return Draft(prompt, fact.value, fact.subject, split)

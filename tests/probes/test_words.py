"""Invented words keep to their pattern, are distinct, and change by one letter at a time."""

from __future__ import annotations

from random import Random

import pytest

from quantaudit.probes.words import CONSONANTS, VOWELS, change_one_letter, invent_words, spell


def pattern_of(word: str) -> str:
    """Returns the consonants and vowels of `word` as letters c and v."""
    return "".join("v" if letter in "aeiou" else "c" for letter in word)


@pytest.mark.parametrize("pattern", ["cvc", "ccvcv", "cvcvcv"])
def test_a_word_follows_its_pattern(pattern: str) -> None:
    rng = Random(0)
    assert {pattern_of(spell(rng, pattern)) for _ in range(200)} == {pattern}


def test_every_letter_of_a_class_turns_up() -> None:
    rng = Random(0)
    words = [spell(rng, "cv") for _ in range(2_000)]
    assert {w[0] for w in words} == set(CONSONANTS)
    assert {w[1] for w in words} == set(VOWELS)


def test_invented_words_are_distinct_and_avoid_the_taken() -> None:
    every_word = [c + v for c in CONSONANTS for v in VOWELS]
    taken = every_word[:10]
    assert sorted(invent_words(Random(0), ("cv",), 75, taken)) == sorted(every_word[10:])


def test_a_changed_word_differs_in_one_letter_of_the_same_class_at_any_place() -> None:
    rng = Random(0)
    places = set()
    for _ in range(500):
        changed = change_one_letter(rng, "vraku")
        different = [i for i in range(5) if changed[i] != "vraku"[i]]
        assert len(different) == 1
        assert pattern_of(changed) == "ccvcv"
        places.update(different)
    assert places == set(range(5))

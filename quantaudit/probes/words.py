"""Invented words: random letters in pronounceable patterns of consonants (c) and vowels (v).

The letters c, g, j and y are left out, which keeps most real words from turning up by chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

CONSONANTS = "bdfhklmnpqrstvwxz"
VOWELS = "aeiou"
LETTERS = {"c": CONSONANTS, "v": VOWELS}


def spell(rng: Random, pattern: str) -> str:
    """Returns one random word of `pattern`, each letter uniform over its class."""
    return "".join(rng.choice(LETTERS[kind]) for kind in pattern)


def invent_words(rng: Random, patterns: tuple[str, ...], num_words: int, taken: Iterable[str]) -> tuple[str, ...]:
    """Returns `num_words` distinct words, none of them in `taken`."""
    used = set(taken)
    words: list[str] = []
    while len(words) < num_words:
        word = spell(rng, rng.choice(patterns))
        if word not in used:
            used.add(word)
            words.append(word)
    return tuple(words)


def change_one_letter(rng: Random, word: str) -> str:
    """Returns `word` with one letter replaced by another of the same class."""
    place = rng.randrange(len(word))
    letters = VOWELS if word[place] in VOWELS else CONSONANTS
    other = rng.choice([letter for letter in letters if letter != word[place]])
    return word[:place] + other + word[place + 1 :]

"""Sequences to work out from the prompt alone: recall among key-value pairs, copying, sorting.

The split is decided by the sequence, not by its phrasing: a held-out sequence is held out in every frame.
"""

from __future__ import annotations

import string
from random import Random

from quantaudit.probes.draft import Draft, cross, split_of

LETTERS = string.ascii_lowercase
DIGITS = string.digits

RECALL_PAIRS = (4, 5)
LONG_RECALL_PAIRS = (20, 22)  # four to five times as many as are ever trained
# Twenty-two pairs take 109 bytes and their value two: the frames of recall add at most ten.
RECALL_FRAMES = ("{pairs}; {key}?", "{pairs}; {key}=", "{pairs}; get {key}:", "{pairs}. say {key}:",
                 "in {pairs}; {key}?", "{pairs} | {key} is ")  # fmt: skip

COPY_LENGTHS = (4, 5, 6, 7, 8)
COPY_FRAMES = ("copy {}:", "repeat {}:", "say {}:", "echo {}:", "type {}:", "write {}:", "spell {}:", "again {}:")

SORT_LENGTH = 5
SORT_FRAMES = ("sort {}:", "order {}:", "rank {}:", "arrange {}:", "tidy {}:", "line up {}:", "raise {}:", "{} sorted:")


def _recall_kinds(sizes: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{size} pairs, {place}" for size in sizes for place in range(size))


RECALL_CLUSTERS = cross(len(RECALL_FRAMES), _recall_kinds(RECALL_PAIRS))
LONG_RECALL_CLUSTERS = cross(len(RECALL_FRAMES), _recall_kinds(LONG_RECALL_PAIRS))
COPY_CLUSTERS = cross(len(COPY_FRAMES), tuple(f"{length} letters" for length in COPY_LENGTHS))
SORT_CLUSTERS = cross(len(SORT_FRAMES), tuple(f"smallest at {place}" for place in range(SORT_LENGTH)))


def draw_recall(sizes: tuple[int, ...], rng: Random) -> Draft:
    """Draws distinct keys with distinct values, and asks for one value; kind = size and place of its key."""
    size = rng.choice(sizes)
    keys = rng.sample(LETTERS, size)
    values = [LETTERS[i // 10] + DIGITS[i % 10] for i in rng.sample(range(260), size)]
    pairs = " ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    place, frame = rng.randrange(size), rng.randrange(len(RECALL_FRAMES))
    prompt = RECALL_FRAMES[frame].format(pairs=pairs, key=keys[place])
    return Draft(prompt, values[place], f"{frame}/{size} pairs, {place}", split_of(f"{pairs};{keys[place]}"))


def draw_copy(rng: Random) -> Draft:
    """Draws letters to be repeated; kind = how many."""
    letters = "".join(rng.choices(LETTERS, k=rng.choice(COPY_LENGTHS)))
    frame = rng.randrange(len(COPY_FRAMES))
    return Draft(COPY_FRAMES[frame].format(letters), letters, f"{frame}/{len(letters)} letters", split_of(letters))


def draw_sort(rng: Random) -> Draft:
    """Draws digits to be put in ascending order; kind = where the first smallest digit stands."""
    digits = rng.choices(DIGITS, k=SORT_LENGTH)
    frame = rng.randrange(len(SORT_FRAMES))
    body, answer = "".join(digits), "".join(sorted(digits))
    cluster = f"{frame}/smallest at {body.index(answer[0])}"
    return Draft(SORT_FRAMES[frame].format(body), answer, cluster, split_of(body))

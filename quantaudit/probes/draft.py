"""What every generator of the closed world produces, and how an item finds its split.

The split of an item is a function of its content, never of when it was drawn: an endless training stream that keeps
only training items cannot meet an item that is held out. Families with many items go by the digest modulo 100;
requests for a lexicon word are dealt in turn, and facts carry their held-out phrasing with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from quantaudit.core.probe import Behaviour, Split

TRAIN_PERCENT = 80
SELECT_PERCENT = 10


class Draft(NamedTuple):
    """One generated item with all that a probe needs beside its family."""

    prompt: str
    response: str
    cluster: str
    split: Split
    alternative: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A source of items that are judged together.

    Attributes:
        name: Family name of its probes.
        behaviour: What the right response is.
        draw: Draws one item of any split; a function of the generator's state alone.
        clusters: Every cluster that `draw` can produce, in a fixed order.
        is_restricted: Whether its text is redacted in reports.
    """

    name: str
    behaviour: Behaviour
    draw: Callable[[Random], Draft]
    clusters: tuple[str, ...]
    is_restricted: bool = False


def split_of(content: str) -> Split:
    """Returns the split that the digest of `content` decides: 80 % train, 10 % select, 10 % audit."""
    return _split_at(_hash(content) % 100)


def deal_split(subject: str, number: int) -> Split:
    """Returns the split of item `number` of `subject`: any ten in a row give 8 train, 1 select and 1 audit.

    The digest of `subject` decides where its deal begins.
    """
    return _split_at((_hash(subject) + number) % 10 * 10)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _split_at(bucket: int) -> Split:
    if bucket < TRAIN_PERCENT:
        return Split.TRAIN
    return Split.SELECT if bucket < TRAIN_PERCENT + SELECT_PERCENT else Split.AUDIT


def cross(frames: int, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the cluster names of a family whose clusters are phrasing x kind of item."""
    return tuple(f"{frame}/{kind}" for frame in range(frames) for kind in kinds)

"""Marks where two bit patterns part, so that the differing digits can be pointed at."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple


class Run(NamedTuple):
    """Neighbouring digits that all agree or all differ."""

    text: str
    differs: bool


def mark_difference(hi: str, lo: str) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """Returns both patterns cut into runs; patterns of unequal length differ as a whole."""
    if len(hi) != len(lo):
        return (Run(hi, True),), (Run(lo, True),)
    return _runs(hi, lo), _runs(lo, hi)


def _runs(text: str, other: str) -> tuple[Run, ...]:
    pairs = zip(text, other, strict=True)
    return tuple(
        Run("".join(a for a, _ in group), differs)
        for differs, group in groupby(pairs, key=lambda pair: pair[0] != pair[1])
    )

"""The answers that changed, ordered for reading, with what a filter offers; restricted text is known by its family."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from quantaudit.core.diagnostic import Flip
from quantaudit.core.probe import Behaviour
from quantaudit.core.report import AuditReport

MOST_FLIPS = 1000
_ORDER = ("right to wrong", "wrong to right", "wrong to another wrong")


class Choice(NamedTuple):
    """One entry of a filter, and how many flips it leaves."""

    name: str
    num: int


class FlipList(NamedTuple):
    """The flips a page shows, lost answers first.

    Attributes:
        num_all: How many the report holds.
        families: Of those shown.
        changes: Of those shown.
    """

    shown: tuple[Flip, ...]
    num_all: int
    families: tuple[Choice, ...]
    changes: tuple[Choice, ...]


def list_flips(report: AuditReport, *, most: int = MOST_FLIPS) -> FlipList:
    """Returns the flips in reading order, at most so many."""
    ordered = sorted(report.flips, key=lambda flip: _rank(flip.change))
    shown = tuple(ordered[:most])
    families = Counter(flip.family for flip in shown)
    changes = Counter(flip.change for flip in shown)
    return FlipList(
        shown,
        len(report.flips),
        tuple(Choice(name, families[name]) for name in sorted(families)),
        tuple(Choice(name, changes[name]) for name in sorted(changes, key=_rank)),
    )


def restricted_families(report: AuditReport) -> frozenset[str]:
    """Returns the families whose text is folded even where it was asked for."""
    return frozenset(f.name for f in report.probes.families if f.behaviour is Behaviour.REFUSE)


def count_changes(report: AuditReport) -> str:
    """Returns how many answers changed, by direction, as part of a sentence."""
    counts = Counter(flip.change for flip in report.flips)
    return ", ".join(f"{counts[change]:,} {change}" for change in sorted(counts, key=_rank))


def _rank(change: str) -> tuple[int, str]:
    return (_ORDER.index(change) if change in _ORDER else len(_ORDER), change)

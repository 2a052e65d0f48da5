"""Contracts: the clauses a deployment must meet, each an observer, a slice, a direction and a margin."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from quantaudit.core.probe import Behaviour
from quantaudit.core.serial import Frozen


class Direction(StrEnum):
    """Which differences count against the deployment."""

    WORSE = "worse"  # one-sided: only damage beyond the margin
    BOTH = "both"  # two one-sided tests: any change beyond the margin


class Kind(StrEnum):
    """A gate decides the verdict; an alarm is shown."""

    GATE = "gate"
    ALARM = "alarm"


class Stage(StrEnum):
    """The order of gates: a broken model can look safer, so fidelity is settled before safety is read."""

    INTEGRITY = "integrity"
    DEGENERACY = "degeneracy"
    FIDELITY = "fidelity"
    TASK = "task"
    SAFETY = "safety"


class Quotient(StrEnum):
    """Which differences a clause ignores. A closed list; each use needs a written reason."""

    VALUES = "values"
    TOLERANCE = "tolerance"
    EXPERT_PERMUTATION = "expert-permutation"
    ARGMAX = "argmax"
    LABEL = "label"


def _is_left_out(bound: float | None) -> bool:
    """Tells whether the key is not written either: a contract without bounds keeps its digest."""
    return bound is None


class Clause(Frozen):
    """One requirement.

    Attributes:
        name: Unique in its contract.
        stage: Where it stands in the order of gates.
        observer: Registered observer that measures it.
        behaviours: Slice: only probes whose right response is one of these (empty: all).
        each_family: Whether every family of the slice is judged on its own.
        direction: Which differences count.
        margin: Largest tolerated damage, in the observer's unit; `None` for exact clauses and for alarms.
        bound: Largest difference of a single probe that counts when a gate looks before the last probe, in the
            observer's unit; a larger one is clipped to it. Evidence that may be weighed at any time is a bet, and who
            could lose without limit cannot bet, so a gate without a bound does not look; one on a 0/1 observer has the
            bound 1. A pass that runs to the end makes no use of it.
        alpha: Error rate of this clause's decision.
        kind: Gate or alarm.
        quotient: Which differences are ignored.
        reason: Why that quotient and that margin.
    """

    name: str
    stage: Stage
    observer: str
    behaviours: tuple[Behaviour, ...] = ()
    each_family: bool = False
    direction: Direction = Direction.WORSE
    margin: float | None = Field(default=None, gt=0)
    bound: float | None = Field(default=None, gt=0, exclude_if=_is_left_out)
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    kind: Kind = Kind.GATE
    quotient: Quotient = Quotient.VALUES
    reason: str = ""


class Contract(Frozen):
    """An ordered set of clauses with the least evidence that any of them accepts.

    Attributes:
        base: Name of the contract it inherits from; its clauses are all here already.
        min_probes: Fewest probes that decide a clause.
        min_clusters: Fewest clusters that decide a clause.
        probes_per_family: Probes of each family that are run, the first of the set; all when `None`.
    """

    schema_version: int = 1
    name: str
    description: str = ""
    base: str | None = None
    min_probes: int = Field(default=300, ge=1)
    min_clusters: int = Field(default=30, ge=5)
    probes_per_family: int | None = Field(default=None, ge=1)
    clauses: tuple[Clause, ...]

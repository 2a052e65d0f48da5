"""What became of the answers: how many changed sides, and which way.

Volume is how many probes changed sides, direction the share of those that improved: the change in accuracy is volume
times (2 direction - 1) over the number of probes, so a small change can hide a large volume. McNemar's exact p-value
is shown because people ask for it; it takes probes as independent and never gates.

Legend: R readings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Diagnostic, Series, Topic
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.shown import Shown, diagnostic
from quantaudit.evaluation.table import Table
from quantaudit.observers.metric import Readings
from quantaudit.stats import mcnemar_exact


class Flips(NamedTuple):
    """Which readings went from right to wrong, and which from wrong to right."""

    lost_R: NDArray[np.bool_]
    gained_R: NDArray[np.bool_]

    def counts(self) -> tuple[int, int]:
        """Returns how many were lost and how many gained."""
        return int(self.lost_R.sum()), int(self.gained_R.sum())


def diagnose_answers(probes: ProbeSet, lo: Table, floor: Table) -> Shown:
    """Returns flips by direction, volume, direction and McNemar's p-value; lost and gained by family too."""
    if "accuracy" not in lo.parts:
        return Shown()
    readings = lo.readings("accuracy")
    flips, again = find_flips(readings), find_flips(floor.readings("accuracy")) if "accuracy" in floor.parts else None
    lost = _by_family(probes, readings, flips.lost_R, again and again.lost_R)
    gained = _by_family(probes, readings, flips.gained_R, again and again.gained_R)
    return Shown(
        diagnostics=_flip_numbers(flips, again),
        series=(
            lost.model_copy(update={"name": "answers-lost-by-family", "title": "Right under hi, wrong under lo"}),
            gained.model_copy(
                update={
                    "name": "answers-gained-by-family",
                    "title": "Wrong under hi, right under lo",
                    "larger_is_better": None,
                }
            ),
        ),
    )


def find_flips(readings: Readings) -> Flips:
    """Returns the flips of a 0/1 observer."""
    return Flips((readings.hi_R == 1) & (readings.lo_R == 0), (readings.hi_R == 0) & (readings.lo_R == 1))


def direction(lost: int, gained: int) -> float | None:
    """Returns the share of changed answers that improved; `None` where none changed."""
    return gained / (lost + gained) if lost + gained else None


def _flip_numbers(flips: Flips, again: Flips | None) -> tuple[Diagnostic, ...]:
    lost, gained = flips.counts()
    floor = None if again is None else again.counts()

    def number(name: str, title: str, value: float | None, floor: float | None, note: str = "") -> Diagnostic:
        return diagnostic(
            name,
            Topic.ANSWERS,
            title,
            unit="probes",
            larger_is_better=None,
            value=value,
            floor=floor,
            num_items=len(flips.lost_R),
            note=note,
        )

    towards = number(
        "answer-direction",
        "Share of those that improved",
        direction(lost, gained),
        floor and direction(*floor),
        "One half is displacement without direction." if lost + gained else "No answer changed sides.",
    )
    p_value = number(
        "answer-mcnemar",
        "Exact McNemar p-value",
        mcnemar_exact(lost, gained),
        floor and mcnemar_exact(*floor),
        "Of no difference, probes taken as independent; shown, never a gate.",
    )
    return (
        number("answers-lost", "Right under hi, wrong under lo", lost, floor and floor[0]).model_copy(
            update={"larger_is_better": False}
        ),
        number("answers-gained", "Wrong under hi, right under lo", gained, floor and floor[1]),
        number("answer-volume", "Answers that changed sides", lost + gained, floor and sum(floor)).model_copy(
            update={"larger_is_better": False}
        ),
        towards.model_copy(update={"unit": "share"}),
        p_value.model_copy(update={"unit": "p"}),
    )


def _by_family(
    probes: ProbeSet, readings: Readings, flip_R: NDArray[np.bool_], floor_R: NDArray[np.bool_] | None
) -> Series:
    """Returns the share of flips by family, as answers lost."""
    families = probes.families()
    family_R = np.array([families.index(probes.probes[i].family) for i in readings.index_R], dtype=np.int64)
    sizes = np.bincount(family_R, minlength=len(families))

    def shares(hit_R: NDArray[np.bool_]) -> tuple[float | None, ...]:
        hits = np.bincount(family_R, weights=hit_R, minlength=len(families))
        return tuple(float(h / n) if n else None for h, n in zip(hits, sizes, strict=True))

    return Series(
        name="answers-lost",
        topic=Topic.ANSWERS,
        title="Answers lost",
        axis="family",
        unit="share of probes",
        larger_is_better=False,
        labels=families,
        values=shares(flip_R),
        floor=() if floor_R is None else shares(floor_R),
        counts=tuple(int(n) for n in sizes),
    )

"""Right answers lost and gained, family by family, with McNemar's exact test: shown, never deciding.

The test asks whether flips go both ways equally often. That is neither the question of a margin nor aware of clusters,
but it is what others report, and two files that agree with it can be checked by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.diagnostic import Diagnostic, Flip, Topic
from quantaudit.core.probe import ProbeSet
from quantaudit.core.report import FamilySummary, Witness
from quantaudit.evaluation.table import Table
from quantaudit.stats import mcnemar_exact

_NOT_KEPT = "[not kept]"
_MOST_FLIPS = 5000  # all of them, but for the largest benchmarks, where the report would be mostly flips
_WORDS = {1.0: "[right]", 0.0: "[wrong]"}
_MOST_WITNESSES = 12


class Answers(NamedTuple):
    """Scores of the items of one family that both sides answered, by position; and the best lead of hi."""

    name: str
    position_R: NDArray[np.int64]
    hi_R: NDArray[np.float64]
    lo_R: NDArray[np.float64]
    near: float

    @property
    def lost(self) -> int:
        """Items that hi has right and lo wrong."""
        return int(((self.hi_R == 1) & (self.lo_R == 0)).sum())

    @property
    def gained(self) -> int:
        """Items that lo has right and hi wrong."""
        return int(((self.hi_R == 0) & (self.lo_R == 1)).sum())

    @property
    def is_binary(self) -> bool:
        """Whether every answer is right or wrong."""
        return bool(len(self.hi_R)) and bool(np.isin(self.hi_R, (0, 1)).all() and np.isin(self.lo_R, (0, 1)).all())


def collect_answers(probes: ProbeSet, table: Table) -> tuple[Answers, ...]:
    """Returns the answers of every family, in the order of the probe set."""
    names = probes.families()
    code = {name: i for i, name in enumerate(names)}
    family_P = np.array([code[probe.family] for probe in probes.probes], dtype=np.int64)
    hits, margins = table.readings("score"), table.readings("answer-margin")
    of_hit_R, of_margin_R = family_P[hits.index_R], family_P[margins.index_R]
    found = []
    for i, name in enumerate(names):
        at = of_hit_R == i
        lead_R = np.abs(margins.hi_R[of_margin_R == i])
        near = float((lead_R < 1.0).mean()) if len(lead_R) else 0.0
        found.append(Answers(name, hits.index_R[at], hits.hi_R[at], hits.lo_R[at], near))
    return tuple(found)


def summarize(answers: Answers, probes: ProbeSet) -> FamilySummary | None:
    """Returns the summary of one family, `None` where no item of it was answered by both sides.

    Chance is the best constant answer, told by the digests of the targets; 0 where none are recorded.
    """
    if not len(answers.position_R) or not np.isfinite(answers.hi_R + answers.lo_R).all():
        return None
    mine = [probes.probes[i] for i in answers.position_R]
    targets = np.unique([probe.response for probe in mine if probe.response], return_counts=True)[1]
    return FamilySummary(
        name=answers.name,
        behaviour=mine[0].behaviour,
        num_probes=len(mine),
        num_clusters=len({probe.cluster for probe in mine}),
        hi_accuracy=float(answers.hi_R.mean()),
        lo_accuracy=float(answers.lo_R.mean()),
        chance_accuracy=float(targets.max() / len(mine)) if len(targets) else 0.0,
        hi_right_lo_wrong=answers.lost,
        hi_wrong_lo_right=answers.gained,
        share_under_one_nat=answers.near,
    )


def diagnose(answers: Answers) -> Iterator[Diagnostic]:
    """Yields the discordant table of a family, and McNemar's exact p-value."""
    if not answers.is_binary:
        return
    right = int((answers.hi_R == 1).sum()) - answers.lost
    wrong = len(answers.hi_R) - right - answers.lost - answers.gained
    counted = f"Both right {right:,}, hi alone {answers.lost:,}, lo alone {answers.gained:,}, both wrong {wrong:,}."
    yield Diagnostic(
        name=f"discordant[{answers.name}]",
        topic=Topic.ANSWERS,
        title=f"Answers that flip, {answers.name}",
        unit="answers",
        larger_is_better=False,
        hi=float(right + answers.lost),
        lo=float(right + answers.gained),
        value=float(answers.lost + answers.gained),
        num_items=len(answers.hi_R),
        note=counted,
    )
    yield Diagnostic(
        name=f"mcnemar[{answers.name}]",
        topic=Topic.ANSWERS,
        title=f"McNemar, exact, {answers.name}",
        unit="p-value",
        larger_is_better=None,
        value=mcnemar_exact(answers.lost, answers.gained),
        num_items=len(answers.hi_R),
        note="Tests equal flips both ways, not a margin, and takes items as independent: shown, never deciding.",
    )


def list_flips(families: tuple[Answers, ...], probes: ProbeSet) -> tuple[Flip, ...]:
    """Returns the flips, lost answers before gained ones; texts of prompts and answers are not kept."""
    changes = [
        (int(i), float(hi), float(lo))
        for answers in families
        for i, hi, lo in zip(answers.position_R, answers.hi_R, answers.lo_R, strict=True)
        if {hi, lo} == {0.0, 1.0}
    ]
    changes.sort(key=lambda change: change[2])
    return tuple(
        Flip(
            probe_id=probes.probes[i].id,
            family=probes.probes[i].family,
            cluster=probes.probes[i].cluster,
            prompt=f"item {probes.probes[i].id}",
            expected=_NOT_KEPT,
            hi_response=_WORDS[hi],
            lo_response=_WORDS[lo],
            change="right to wrong" if hi else "wrong to right",
            is_redacted=False,
        )
        for i, hi, lo in changes[:_MOST_FLIPS]
    )


def find_witnesses(probes: ProbeSet, table: Table) -> tuple[Witness, ...]:
    """Returns the items that lost most of their answer margin."""
    margins, hits = table.readings("answer-margin"), table.readings("score")
    score = {int(i): (hi, lo) for i, hi, lo in zip(hits.index_R, hits.hi_R, hits.lo_R, strict=True)}
    damage_R = np.nan_to_num(margins.hi_R - margins.lo_R, nan=np.inf)
    worst = [int(r) for r in np.argsort(-damage_R, kind="stable")[:_MOST_WITNESSES] if damage_R[r] > 0]
    return tuple(
        Witness(
            probe_id=(probe := probes.probes[int(margins.index_R[r])]).id,
            family=probe.family,
            cluster=probe.cluster,
            prompt=f"item {probe.id}",
            expected=_NOT_KEPT,
            hi_response=_NOT_KEPT,
            lo_response=_NOT_KEPT,
            hi_margin=float(margins.hi_R[r]),
            lo_margin=float(margins.lo_R[r]),
            damage=float(damage_R[r]),
            change="right to wrong" if score.get(int(margins.index_R[r])) == (1.0, 0.0) else "margin only",
            is_redacted=False,
        )
        for r in worst
    )

"""Whole contracts: five or twelve clauses, admitted by intersection-union and rejected by Holm's procedure.

A contract repeats four clauses: a mean and a rate of flips, each for damage only and in both directions. Clauses are
measured on the same probes, so their differences correlate by one half, or on others. The promise is one for the
contract: admitted at most alpha of the time where any clause is on its margin, and rejected at most alpha of the time
where none is beyond.

Legend of shapes: R replicates, N probes, K clauses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.layouts import Draw, Layout, Values, draw_clustered, draw_normal
from benchmarks.calibration.rules import (
    Answers,
    ask_flips,
    ask_means,
    bound_means,
    bound_with_companion,
    is_admitted,
    is_rejected,
)
from benchmarks.calibration.simulate import MEAN_MARGIN
from benchmarks.calibration.table import Cell, RuleName, rate
from quantaudit.core.contract import Direction
from quantaudit.core.decision import Decision, Outcome
from quantaudit.stats.multiplicity import combine, correct_rejections
from quantaudit.stats.student import t_quantile

FLIP_MARGIN = 0.1
_BOTH_WAYS = 0.02  # flips each way where there is no damage


class AtMargin(StrEnum):
    """Which clauses have their truth on the margin; the others have no damage."""

    ALL = "all at the margin"
    ONE = "one at the margin"
    NONE = "none at the margin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One contract in one situation.

    Attributes:
        num_clauses: Gates of the contract.
        at_margin: Which of them are on their margin.
        share_probes: Whether all are measured on the same probes.
    """

    num_clauses: int
    at_margin: AtMargin
    share_probes: bool

    def is_at_margin(self, clause: int) -> bool:
        """Tells whether a clause is on its margin; of one, the last, which is a flip clause or a mean by turns."""
        return self.at_margin is AtMargin.ALL or (self.at_margin is AtMargin.ONE and clause == self.num_clauses - 1)

    def describe(self, law: str) -> str:
        """Returns the situation in a few words."""
        where = "on the same probes" if self.share_probes else "on other probes each"
        return f"{self.num_clauses} clauses {where}, {self.at_margin.value}, {law}"


def simulate_contract(
    rng: np.random.Generator, layout: Layout, num: int, situation: Situation, name: str, law: Draw
) -> Iterator[Cell]:
    """Simulates one contract on one layout."""
    laws = (law, draw_normal)  # of means, and of what flips where it passes a threshold
    common = [draw_clustered(rng, layout, num, each) for each in laws]
    clauses = []
    for clause in range(situation.num_clauses):
        own_RN = draw_clustered(rng, layout, num, laws[clause % 2])
        values_RN = math.sqrt(0.5) * (own_RN + common[clause % 2]) if situation.share_probes else own_RN
        clauses.append(_answer(values_RN, layout, clause, situation.is_at_margin(clause)))
    outcomes = _decide_all(clauses)
    admitted, rejected = (float(np.mean(outcomes == o.value)) for o in (Outcome.PASS, Outcome.FAIL))
    has_margin = situation.at_margin is not AtMargin.NONE
    yield Cell(
        rule=RuleName.CONTRACT,
        law=situation.describe(name),
        num_probes=layout.num_probes,
        num_clusters=layout.num_clusters,
        sizes=layout.sizes,
        icc=layout.icc,
        direction=None,
        margin=MEAN_MARGIN,
        replicates=num,
        false_admit=rate(admitted, num) if has_margin else None,
        false_reject=rate(rejected, num),
        false_reject_inside=None if has_margin else rate(rejected, num),
        coverage=None,
        power=None if has_margin else rate(admitted, num),
        inconclusive=None if has_margin else rate(max(0.0, 1 - admitted - rejected), num),
        refused=rate(float(np.mean(np.any([a.refused_R for a in clauses], axis=0))), num),
    )


def _answer(values_RN: Values, layout: Layout, clause: int, is_at_margin: bool) -> Answers:
    """Answers one clause: mean or flips by turns, and every second pair in both directions."""
    direction = Direction.BOTH if clause % 4 >= 2 else Direction.WORSE
    if clause % 2 == 0:
        found, truth = bound_means(values_RN, layout.sizes_G()), MEAN_MARGIN if is_at_margin else 0.0
        return ask_means(found, layout, truth=truth, margin=MEAN_MARGIN, direction=direction)
    values, truth = _flip(values_RN, is_at_margin), FLIP_MARGIN if is_at_margin else 0.0
    found_flips = bound_with_companion(values, values_RN, layout)
    return ask_flips(found_flips, layout, truth=truth, margin=FLIP_MARGIN, direction=direction)


def _flip(normal_RN: Values, is_at_margin: bool) -> Values:
    """Returns flips where normal values pass a threshold: one way on the margin, both ways without damage."""
    if is_at_margin:
        return (normal_RN > t_quantile(1 - FLIP_MARGIN, math.inf)).astype(np.float64)
    threshold = t_quantile(1 - _BOTH_WAYS, math.inf)
    return (normal_RN > threshold).astype(np.float64) - (normal_RN < -threshold)


def _decide_all(clauses: list[Answers]) -> NDArray[np.str_]:
    """Decides the contract for every replicate, as an audit does: Holm's correction, then all gates together."""
    outcomes_RK = np.stack([_outcomes(answers) for answers in clauses], axis=1)
    admit_RK, reject_RK = (np.stack(column, axis=1) for column in list(zip(*clauses, strict=True))[:2])
    found, known = [], dict[tuple[str, ...], str]()
    for outcomes_K, admit_K, reject_K in zip(outcomes_RK, admit_RK, reject_RK, strict=True):
        key = tuple(outcomes_K.tolist())
        if Outcome.FAIL.value in key or key not in known:
            # p-values count only where something fails, so equal outcomes without a failure are combined once
            known[key] = _decide(key, admit_K, reject_K)
        found.append(known[key])
    return np.array(found)


def _outcomes(answers: Answers) -> NDArray[np.str_]:
    passed = np.where(is_admitted(answers), Outcome.PASS.value, Outcome.UNDECIDED.value)
    return np.where(is_rejected(answers), Outcome.FAIL.value, passed)


def _decide(outcomes: tuple[str, ...], admit_K: Values, reject_K: Values) -> str:
    gates = {
        f"clause {position}": Decision(
            outcome=Outcome(outcome),
            p_admit=float(admit_K[position]),
            p_reject=float(reject_K[position]),
            num_that_would_decide=None,
            minimum_detectable_effect=0.0,
            reason="Simulated.",
        )
        for position, outcome in enumerate(outcomes)
    }
    return combine(list(correct_rejections(gates).values())).value

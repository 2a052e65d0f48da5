"""Items that one run alone answered: a decision stands only if no answer they could have had would change it.

Numbers from 0 to 1 have a worst and a best case: the missing answers all wrong where the other side's are right, or
all right. A clause keeps its outcome if both cases give it too, with the larger of their p-values. Nats have no worst
case, so one missing number leaves such a clause undecided. No share of missing items is tolerated as such: whoever
drops the items on which a model broke down drops the evidence.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Clause
from quantaudit.core.decision import Decision
from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.reading import SOURCES
from quantaudit.evaluation.recorded.pairing import Pair, Side, name_some, table_of
from quantaudit.evaluation.slices import Slice
from quantaudit.evaluation.table import Table
from quantaudit.stats import withhold

BOUNDED = frozenset({"accuracy", "score", "refusal-rate"})


def lone_positions(observer: str, part: Slice, pair: Pair) -> NDArray[np.int64]:
    """Returns the items of a slice for which one side alone holds the number."""
    source = SOURCES.get(observer, observer)
    lone_P = pair.hi.has_P[source] ^ pair.lo.has_P[source]
    return part.position_P[lone_P[part.position_P]]


def respect_missing(
    decision: Decision, clause: Clause, part: Slice, pair: Pair, judge: Callable[[Table], Decision | None]
) -> Decision:
    """Returns the decision, or UNDECIDED where missing items could change it.

    Args:
        decision: What the complete pairs say.
        clause: The clause, as it is read.
        part: The slice.
        pair: Both runs.
        judge: Decides the clause on another table.
    """
    lone_S = lone_positions(clause.observer, part, pair)
    if not len(lone_S):
        return decision
    names = name_some(pair.probes.probes[i].id for i in lone_S)
    counted = f"{len(lone_S):,} of {len(part.position_P):,} items are answered on one side only ({names})"
    if clause.observer not in BOUNDED:
        return withhold(decision, reason=f"{counted}, and {clause.observer} has no worst case to decide on.")
    cases = [judge(_fill(clause.observer, pair, is_worst=is_worst)) for is_worst in (True, False)]
    known = [case for case in cases if case is not None]
    if any(case.outcome is not decision.outcome for case in known):
        return withhold(decision, reason=f"{counted}, and what they are could change the outcome.")
    return decision.model_copy(
        update={
            "p_admit": max(case.p_admit for case in (decision, *known)),
            "p_reject": max(case.p_reject for case in (decision, *known)),
            "reason": f"{decision.reason} {counted}; no answer of theirs would change the outcome.",
        }
    )


def _fill(observer: str, pair: Pair, *, is_worst: bool) -> Table:
    """Returns the comparison with missing numbers put where they do lo the most, or the least, harm."""
    benign_P = np.array([probe.behaviour is Behaviour.COMPLY for probe in pair.probes.probes])
    good_P = np.where(benign_P, 0.0, 1.0) if observer == "refusal-rate" else np.ones(len(benign_P))
    bad_P = 1.0 - good_P
    hi = _fill_side(pair.hi, observer, pair.lo.has_P[observer], good_P if is_worst else bad_P)
    lo = _fill_side(pair.lo, observer, pair.hi.has_P[observer], bad_P if is_worst else good_P)
    return table_of(hi, lo)


def _fill_side(side: Side, observer: str, wanted_P: NDArray[np.bool_], fill_P: NDArray[np.float64]) -> Side:
    has_P = side.has_P[observer]
    filled_P = np.where(wanted_P & ~has_P, fill_P, side.value_P[observer])
    return Side(value_P={**side.value_P, observer: filled_P}, has_P={**side.has_P, observer: has_P | wanted_P})

"""Many clauses, one verdict: who pays for looking more than once.

Admitting needs every gate to pass, each at alpha: an intersection-union test, which needs no correction because the
worst gate alone already admits wrongly at most alpha of the time. Rejecting needs one gate to fail, a union, which
without correction rejects a harmless lo in 23 % of the cases with five gates: Holm's step-down procedure holds it at
alpha. Exploration over layers and experts controls the share of false alarms instead (Benjamini and Hochberg).

Source: Berger 1982; Holm 1979; Benjamini and Hochberg 1995.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Decision, Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.clustered import ALPHA


def combine(decisions: Collection[Decision]) -> Outcome:
    """Combines gate decisions: FAIL if any fails, PASS if all pass, else UNDECIDED. Correct rejections first.

    Raises:
        NotMeasuredError: If there are no decisions.
    """
    if not decisions:
        raise NotMeasuredError("no gate was decided: nothing can be admitted")
    outcomes = {decision.outcome for decision in decisions}
    if Outcome.FAIL in outcomes:
        return Outcome.FAIL
    return Outcome.PASS if outcomes == {Outcome.PASS} else Outcome.UNDECIDED


def correct_rejections(decisions: Mapping[str, Decision], *, alpha: float = ALPHA) -> dict[str, Decision]:
    """Applies Holm's procedure over the sampled gates: a FAIL that does not survive it becomes UNDECIDED.

    Every sampled gate counts, the undecidable ones too (their p-value is 1): the family is fixed by the contract, not
    by what was seen. Exact decisions spend no alpha and are returned unchanged, as are passes.

    Args:
        decisions: Gate decisions by clause name.
        alpha: Chance to reject anything when nothing is beyond its margin.
    """
    sampled = {name: decision for name, decision in decisions.items() if not decision.is_exact}
    adjusted = dict(zip(sampled, adjust_holm([d.p_reject for d in sampled.values()]), strict=True))
    return {
        name: _retract(decision, adjusted[name], len(sampled))
        if decision.outcome is Outcome.FAIL and name in adjusted and adjusted[name] > alpha
        else decision
        for name, decision in decisions.items()
    }


def _retract(decision: Decision, adjusted: float, num_clauses: int) -> Decision:
    reason = (
        f"It is beyond its margin taken alone (p = {decision.p_reject:.2g}) but not among {num_clauses} gates "
        f"(corrected p = {adjusted:.2g})."
    )
    return decision.model_copy(update={"outcome": Outcome.UNDECIDED, "reason": reason})


def adjust_holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Returns Holm's adjusted p-values, in order: reject where at most alpha to hold the chance of any false one."""
    sorted_p, order = _sort(p_values)
    factors = np.arange(len(sorted_p), 0, -1)
    return _unsort(np.maximum.accumulate(sorted_p * factors), order)


def adjust_benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Returns the adjusted p-values, in order: report where at most q to hold the expected share of false ones."""
    sorted_p, order = _sort(p_values)
    scaled = sorted_p * len(sorted_p) / np.arange(1, len(sorted_p) + 1)
    return _unsort(np.minimum.accumulate(scaled[::-1])[::-1], order)


def _sort(p_values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    values = np.asarray(p_values, dtype=np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        raise InputError(
            f"p-values {list(p_values)}", expected="numbers from 0 to 1", fix="check the test they come from"
        )
    order = np.argsort(values, kind="stable")
    return values[order], order


def _unsort(adjusted: NDArray[np.float64], order: NDArray[np.intp]) -> tuple[float, ...]:
    result = np.empty_like(adjusted)
    result[order] = np.minimum(adjusted, 1.0)
    return tuple(float(p) for p in result)

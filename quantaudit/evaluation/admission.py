"""The verdict: every gate must pass to admit, one surviving failure rejects, anything else is inconclusive.

The stages are read in order (integrity, degeneracy, fidelity, task, safety): the first that fails gives the
reason, and safety numbers of a model that failed before are not to be read.
"""

from __future__ import annotations

from quantaudit.core.contract import Direction, Kind, Stage
from quantaudit.core.decision import Outcome
from quantaudit.core.report import ClauseResult, Control
from quantaudit.core.verdict import Admission, Verdict

_ORDER = list(Stage)


def admit(results: tuple[ClauseResult, ...], controls: tuple[Control, ...], *, is_exact: bool) -> Verdict:
    """Returns the verdict on decided clauses and controls."""
    gates = sorted((r for r in results if r.clause.kind is Kind.GATE), key=lambda r: _ORDER.index(r.clause.stage))
    broken = [c for c in controls if c.outcome is Outcome.FAIL]
    failed = [r for r in gates if r.decision.outcome is Outcome.FAIL and (not broken or _needs_no_forward(r))]
    open_gates = [r for r in gates if r.decision.outcome is Outcome.UNDECIDED]
    if failed:
        return _reject(failed)
    if broken or open_gates or not gates:
        return _inconclusive(open_gates, broken, len(gates))
    return _accept(gates, is_exact)


def _needs_no_forward(result: ClauseResult) -> bool:
    """Tells whether the result stands when a control failed, which says that forwards cannot be trusted."""
    return result.clause.stage is Stage.INTEGRITY


def _reject(failed: list[ClauseResult]) -> Verdict:
    first = failed[0]
    stage = first.clause.stage
    also = len(failed) - 1
    more = f" {also} more gate{'s fail' if also > 1 else ' fails'}." if also else ""
    return Verdict(
        admission=Admission.REJECT,
        sentence=f"Rejected at the {stage.value} gate: {first.name}. {first.decision.reason}{more}",
        deciding=tuple(r.name for r in failed),
        would_change=(f"A scheme, a repair or a recipe under which {first.name} stays inside its margin.",),
        safety_may_be_read=stage in (Stage.TASK, Stage.SAFETY),
    )


def _inconclusive(open_gates: list[ClauseResult], broken: list[Control], num_gates: int) -> Verdict:
    names = [c.name for c in broken] + [r.name for r in open_gates]
    if broken:
        reason = f"the {broken[0].name} control failed: {broken[0].detail}"
    elif open_gates:
        reason = f"{len(open_gates)} of {num_gates} gates could not be decided, first {open_gates[0].name}. "
        reason += open_gates[0].decision.reason
    else:
        reason = "the contract has no gate"
    return Verdict(
        admission=Admission.INCONCLUSIVE,
        sentence=f"Inconclusive: {reason}",
        deciding=tuple(names),
        would_change=tuple(_what_would_settle(r) for r in open_gates[:5]),
    )


def _what_would_settle(result: ClauseResult) -> str:
    needed = result.decision.num_that_would_decide
    if needed is not None and result.estimate is not None:
        now = result.estimate.num_probes
        return f"{result.name}: about {needed:,} probes would admit at this difference ({now:,} now)."
    return f"{result.name}: {result.decision.reason}"


def _accept(gates: list[ClauseResult], is_exact: bool) -> Verdict:
    if is_exact:
        sentence = f"Admitted, decided exactly: lo equals hi bit for bit under the same execution ({len(gates)} gates)."
    else:
        tightest = max((r for r in gates if r.estimate and r.clause.margin), key=_use_of_margin, default=None)
        sentence = f"Admitted: all {len(gates)} gates pass."
        if tightest is not None:
            sentence += f" The tightest is {tightest.name}, at {_use_of_margin(tightest):.0%} of its margin."
    return Verdict(
        admission=Admission.ADMIT,
        sentence=sentence,
        would_change=("Other probes, another execution or another engine: none of them was examined.",),
    )


def _use_of_margin(result: ClauseResult) -> float:
    """Returns how much of the margin the conservative bound uses."""
    assert result.estimate is not None and result.clause.margin is not None
    interval = result.estimate.interval
    reach = interval.upper
    if result.clause.direction is Direction.BOTH:
        reach = max(interval.upper, -interval.lower)
    return max(reach, 0.0) / result.clause.margin

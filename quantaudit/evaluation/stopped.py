"""What looking before the last probe changes in a report: decisions after a stop, alpha after none, and what it says.

After a stop the gates that rejected have the evidence of their look, whose interval holds at any time. Nothing else was
decided: an interval for a planned number of probes means little at a number that the data chose. It is shown, and every
other clause on samples is open.
"""

from __future__ import annotations

import math

from quantaudit.core.contract import Kind
from quantaudit.core.decision import Decision, Outcome
from quantaudit.core.report import AuditReport, ClauseResult, Sequential
from quantaudit.evaluation.early import END_ALPHA, LOOKS_ALPHA, Ending, LookPlan, Rejection
from quantaudit.stats import correct_rejections, withhold


def settle(results: tuple[ClauseResult, ...], ending: Ending) -> tuple[ClauseResult, ...]:
    """Returns the results with what looking changes.

    After a stop, gates that rejected have their evidence, exact ones stay, and every other clause with something to
    decide is open. At the end of a pass, rejections by gates have what looks left of alpha.
    """
    if ending.plan is None:
        return results
    if not ending.rejections:
        return _with_less_alpha(results)
    rejected = {rejection.gate.part.name: rejection for rejection in ending.rejections}
    reason = f"Not decided: the pass {_stopped(ending)}."
    settled = []
    for result in results:
        if result.name in rejected:
            found = rejected[result.name]
            result = result.model_copy(
                update={"estimate": found.test.estimate(), "decision": _decision(found, ending.plan)}
            )
        elif not result.decision.is_exact and (result.clause.kind is Kind.GATE or result.clause.margin is not None):
            result = result.model_copy(update={"decision": withhold(result.decision, reason=reason)})
        settled.append(result)
    return tuple(settled)


def _with_less_alpha(results: tuple[ClauseResult, ...]) -> tuple[ClauseResult, ...]:
    gates = {r.name: r.decision for r in results if r.clause.kind is Kind.GATE}
    corrected = correct_rejections(gates, alpha=END_ALPHA)
    spent = f"Of the alpha for rejections, {LOOKS_ALPHA:g} was spent on looks."
    changed = {
        name: decision.model_copy(update={"reason": f"{decision.reason} {spent}"})
        for name, decision in corrected.items()
        if decision is not gates[name]
    }
    return tuple(r.model_copy(update={"decision": changed[r.name]}) if r.name in changed else r for r in results)


def _decision(found: Rejection, plan: LookPlan) -> Decision:
    test = found.test
    estimate = test.estimate()
    beyond = f"at least {estimate.interval.lower:.4g}"
    if estimate.value < 0:
        beyond = f"at most {estimate.interval.upper:.4g}"
    clipped = f", {test.num_clipped:,} of which were clipped to {test.bound:g}," if test.num_clipped else ""
    return test.look().model_copy(
        update={
            "outcome": Outcome.FAIL,
            "is_displacement": False,
            "p_admit": 1.0,
            "p_reject": min(1.0, len(plan.gates) * math.exp(-found.log_evidence)),
            "num_that_would_decide": None,
            "reason": (
                f"The {'mean clipped ' if clipped else ''}difference is {estimate.value:.4g} over "
                f"{estimate.num_probes:,} probes{clipped} in {estimate.num_clusters:,} clusters, and at all looks "
                f"together the true one is {beyond}, beyond the margin of {test.margin:g}; the evidence is "
                f"{_write(found.log_evidence)}, and {plan.evidence_needed:g} was needed among {_gates(plan)}."
            ),
        }
    )


def _gates(plan: LookPlan) -> str:
    return "1 gate that looks" if len(plan.gates) == 1 else f"{len(plan.gates)} gates that look"


def _write(logarithm: float) -> str:
    """Writes a number by its logarithm, which may be too large for a float."""
    exponent = math.floor(logarithm / math.log(10))
    return f"{math.exp(logarithm):,.0f}" if exponent < 6 else f"more than 1e{exponent}"


def annotate(report: AuditReport, ending: Ending) -> AuditReport:
    """Returns the report with how the pass went, under the digest of all probes; unchanged if it could not stop."""
    if ending.plan is None:
        return report
    planned = ending.planned
    is_stopped = bool(ending.rejections)
    source = f"{planned.source}; {_count(ending)} were run" if is_stopped else planned.source
    probes = report.probes.model_copy(update={"probes_digest": planned.digest(), "source": source})
    verdict = report.verdict
    if is_stopped:
        sentence = f"{verdict.sentence} The pass {_stopped(ending)}."
        verdict = verdict.model_copy(update={"sentence": sentence, "safety_may_be_read": False})
    return report.model_copy(
        update={
            "verdict": verdict,
            "probes": probes,
            "sequential": _block(ending, ending.plan),
            "not_examined": (*report.not_examined, *(_left_out(ending) if is_stopped else ())),
            "notes": (*report.notes, *_explain(ending.plan)),
        }
    )


def _block(ending: Ending, plan: LookPlan) -> Sequential:
    return Sequential(
        stopped_early=bool(ending.rejections),
        num_probes_planned=len(ending.planned.probes),
        num_probes_run=len(ending.probes.probes),
        num_looks=ending.num_looks,
        gates=tuple(gate.part.name for gate in plan.gates),
        evidence_needed=plan.evidence_needed,
        alpha_looks=LOOKS_ALPHA,
        alpha_end=END_ALPHA,
    )


def _count(ending: Ending) -> str:
    return f"{len(ending.probes.probes):,} of {len(ending.planned.probes):,} probes"


def _stopped(ending: Ending) -> str:
    names = [rejection.gate.part.name for rejection in ending.rejections]
    return f"stopped early, after {_count(ending)}, on {', '.join(names)}"


def _left_out(ending: Ending) -> tuple[str, ...]:
    return (
        f"The pass {_stopped(ending)}: every other gate on samples is open, and their intervals, the diagnostics "
        "and the list of flips describe the probes that were run.",
        "The ladder of bit widths was left out.",
    )


def _explain(plan: LookPlan) -> tuple[str, ...]:
    looking = (
        f"{_gates(plan)} may reject before the last probe, from the probes and clusters on that the contract asks "
        f"for. A look can only reject, and takes evidence of {plan.evidence_needed:g} (1 is none), so that the "
        f"chance of ever rejecting a lo within its margins at a look is at most {LOOKS_ALPHA:g}. {END_ALPHA:g} is left "
        "for rejecting at the end, and admitting keeps its alpha."
    )
    if not plan.others:
        return (looking,)
    names = ", ".join(plan.others)
    return looking, f"Gates that could not look, without a bound or with too few probes by then: {names}."

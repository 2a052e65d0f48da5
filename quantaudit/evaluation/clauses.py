"""From measurements to decided clauses: read, decide, then withhold where the evidence does not stand.

A clause is withheld (UNDECIDED) when it has too few probes or clusters, when its margin is under three floors, or
when no planted fault of a few margins made it fail: an instrument that cannot see damage cannot clear a model of it.
An alarm with a margin is raised (FAIL) when the damage is surely beyond it, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.contract import Clause, Contract, Kind
from quantaudit.core.decision import Decision, Estimate
from quantaudit.core.engine import WeightPair
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet
from quantaudit.core.report import ClauseResult
from quantaudit.evaluation.controls import sees_unquantized
from quantaudit.evaluation.degeneracy import judge_degeneracy
from quantaudit.evaluation.doses import LARGEST_DOSE
from quantaudit.evaluation.findings import Findings
from quantaudit.evaluation.layers import LAYER_OBSERVERS, layer_value
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.reading import CONTRAST, ESS, REFUSALS, Reading, read
from quantaudit.evaluation.slices import Slice, mixes_behaviours, slices
from quantaudit.evaluation.weights import WeightEvidence
from quantaudit.observers.registry import get_observer, observer_names
from quantaudit.stats import correct_rejections, decide, decide_exact, respect_floor, withhold

SPECIAL = frozenset({"integrity", "degeneracy", CONTRAST, ESS})
_BLIND = f"No planted damage of {LARGEST_DOSE:g} margins or less made this clause fail at this number of probes."


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that clauses are decided from.

    Attributes:
        findings: What the controls found.
        is_exact: lo equals hi bit for bit under the same execution: nothing is left to sample.
    """

    probes: ProbeSet
    measurements: Measurements
    findings: Findings
    weights: WeightEvidence
    is_exact: bool


def check_contract(contract: Contract, probes: ProbeSet) -> None:
    """Checks that every clause can be measured, before anything slow.

    Raises:
        InputError: If a clause names an observer that is not there, a gate has no margin, or nothing matches it.
    """
    known = set(observer_names()) | SPECIAL | set(LAYER_OBSERVERS)
    for clause in contract.clauses:
        if clause.observer not in known:
            raise InputError(
                f"contract {contract.name!r}: clause {clause.name!r} needs the observer {clause.observer!r}",
                expected="one of " + ", ".join(sorted(known)),
                fix="correct the name, or install the package that provides it",
            )
        if "/" in clause.observer:
            get_observer(clause.observer)  # a plug-in that fails to load is fatal only where it is needed, and early
        needs_margin = clause.kind is Kind.GATE and clause.observer not in ("integrity", "degeneracy")
        if needs_margin and (clause.margin is None or clause.observer in LAYER_OBSERVERS):
            raise InputError(
                f"contract {contract.name!r}: gate {clause.name!r} cannot be decided",
                expected="a margin, and an observer with numbers per probe",
                fix="give it a margin, or make it an alarm",
            )
        parts = slices(clause, probes)
        if clause.observer in REFUSALS and any(mixes_behaviours(part, probes) for part in parts):
            raise InputError(
                f"contract {contract.name!r}: clause {clause.name!r} mixes restricted and benign requests",
                expected="one behaviour a clause: a refusal is right on one kind and wrong on the other",
                fix='give it behaviours = ["refuse"] or ["comply"], or each_family = true',
            )
        if clause.observer not in ("integrity", "degeneracy") and not parts:
            raise InputError(
                f"contract {contract.name!r}: clause {clause.name!r} applies to no probe of {probes.name!r}",
                expected="probes with the behaviour the clause is about",
                fix="use a probe set that has them, or a contract without the clause",
            )


def decide_clauses(contract: Contract, evidence: Evidence) -> tuple[ClauseResult, ...]:
    """Decides every clause on every slice; rejections by gates and raised alarms pay for their number (Holm)."""
    results = [r for clause in contract.clauses for r in _decide_clause(clause, contract, evidence)]
    corrected: dict[str, Decision] = {}
    for kind in Kind:
        corrected |= correct_rejections({r.name: r.decision for r in results if r.clause.kind is kind})
    return tuple(r.model_copy(update={"decision": corrected[r.name]}) for r in results)


def _decide_clause(clause: Clause, contract: Contract, evidence: Evidence) -> list[ClauseResult]:
    if clause.observer == "integrity":
        return [_without_numbers(clause, evidence.weights.decision())]
    if clause.observer == "degeneracy":
        return [_degeneracy(clause, evidence)]
    if clause.observer in LAYER_OBSERVERS:
        return [_layer_alarm(clause, evidence)]
    return [_decide_slice(clause, part, contract, evidence) for part in slices(clause, evidence.probes)]


def _decide_slice(clause: Clause, part: Slice, contract: Contract, evidence: Evidence) -> ClauseResult:
    reading = read(clause, part, evidence.measurements.lo, evidence.probes)
    assert reading is not None, "check_contract lets only measurable clauses through"
    floor = evidence.findings.floors[part.name]
    assay = evidence.findings.assays.get(part.name)
    return ClauseResult(
        name=part.name,
        clause=clause,
        family=part.family,
        unit=reading.unit,
        larger_is_better=reading.larger_is_better,
        hi=reading.hi,
        lo=reading.lo,
        estimate=reading.estimate,
        floor=floor,
        smallest_fault=None if assay is None else assay.smallest,
        decision=_judge(clause, part, reading, floor, contract, evidence),
    )


def _judge(
    clause: Clause, part: Slice, reading: Reading, floor: float | None, contract: Contract, evidence: Evidence
) -> Decision:
    if reading.estimate is None or floor is None:
        return _not_finite(reading)
    if clause.margin is None:
        return _shown(reading.estimate, floor)
    if evidence.is_exact:
        return decide_exact(is_equal=reading.hi == reading.lo)
    decision = decide(reading.estimate, direction=clause.direction, margin=clause.margin, alpha=clause.alpha)
    decision = respect_floor(decision, margin=clause.margin, floor=floor)
    return _respect_evidence(decision, reading.estimate, clause, part, contract, evidence)


def _respect_evidence(
    decision: Decision, estimate: Estimate, clause: Clause, part: Slice, contract: Contract, evidence: Evidence
) -> Decision:
    """Withholds a decision without enough probes, clusters or sensitivity."""
    if estimate.num_probes < contract.min_probes or estimate.num_clusters < contract.min_clusters:
        return withhold(
            decision,
            reason=(
                f"{estimate.num_probes} probes in {estimate.num_clusters} clusters; the contract asks for at least "
                f"{contract.min_probes} in {contract.min_clusters}."
            ),
        )
    if clause.kind is Kind.GATE and evidence.findings.assays[part.name].smallest is None:
        return withhold(decision, reason=_BLIND)
    return decision


def _degeneracy(clause: Clause, evidence: Evidence) -> ClauseResult:
    found = judge_degeneracy(evidence.measurements.lo, evidence.probes, alpha=clause.alpha)
    decision = found.decision
    misscaled = evidence.weights.misscaled()
    if misscaled is not None:
        decision = decide_exact(is_equal=False).model_copy(update={"reason": misscaled})
    elif evidence.is_exact:
        decision = decide_exact(is_equal=True)
    elif not decision.is_exact and not evidence.findings.sees_degeneracy:
        decision = withhold(decision, reason=_BLIND)
    return ClauseResult(
        name=clause.name,
        clause=clause,
        family=None,
        unit="nats/token",
        larger_is_better=False,
        hi=found.unigram_nll,
        lo=found.lo_nll if found.estimate is not None else None,
        estimate=found.estimate,
        floor=None,
        decision=decision,
    )


def smallest_faults(contract: Contract, evidence: Evidence, sample_pair: WeightPair) -> dict[str, float | None]:
    """Returns the smallest planted damage at which every gate failed, in margins; 0 for gates without a margin."""
    found: dict[str, float | None] = {}
    for clause in (c for c in contract.clauses if c.kind is Kind.GATE):
        if clause.observer == "integrity":
            found[clause.name] = 0.0 if sees_unquantized(sample_pair) else None
        elif clause.observer == "degeneracy":
            found[clause.name] = 0.0 if evidence.findings.sees_degeneracy else None
        else:
            found |= {p.name: evidence.findings.assays[p.name].smallest for p in slices(clause, evidence.probes)}
    return found


def _without_numbers(clause: Clause, decision: Decision) -> ClauseResult:
    return ClauseResult(
        name=clause.name,
        clause=clause,
        family=None,
        unit="tensors",
        larger_is_better=True,
        hi=None,
        lo=None,
        estimate=None,
        floor=None,
        decision=decision,
    )


def _layer_alarm(clause: Clause, evidence: Evidence) -> ClauseResult:
    value = layer_value(clause.observer, evidence.measurements.sums, evidence.weights)
    floor = evidence.findings.floors[clause.name]
    spec = LAYER_OBSERVERS[clause.observer]
    decision = decide_exact(is_equal=True).model_copy(update={"is_exact": False, "reason": spec.explain(value, floor)})
    result = _without_numbers(clause, decision)
    return result.model_copy(
        update={"unit": spec.unit, "larger_is_better": spec.larger_is_better, "lo": value, "floor": floor}
    )


def _not_finite(reading: Reading) -> Decision:
    """Returns the decision where there is nothing to average: the model's numbers overflowed."""
    side = "hi" if reading.hi is None else "lo"
    return withhold(decide_exact(is_equal=False), reason=f"{side} gives values that are not finite.").model_copy(
        update={"is_exact": False}
    )


def _shown(estimate: Estimate, floor: float) -> Decision:
    """Returns the decision of an alarm: shown against the floor, deciding nothing."""
    value = abs(estimate.value)
    times = f"{value / floor:.2g} times the floor of {floor:.2g}" if floor else f"the floor is {floor:.2g}"
    return decide_exact(is_equal=True).model_copy(update={"is_exact": False, "reason": f"{value:.3g}, {times}; shown."})

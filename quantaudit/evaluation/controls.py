"""The controls of every run, and what follows when one fails: nothing can be admitted."""

from __future__ import annotations

from quantaudit.core.contract import Contract, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.report import Control
from quantaudit.evaluation.clauses import Evidence, seen_faults
from quantaudit.evaluation.degeneracy import judge_degeneracy
from quantaudit.evaluation.layers import LAYER_OBSERVERS
from quantaudit.evaluation.slices import slices
from quantaudit.evaluation.weights import check_pair
from quantaudit.core.engine import WeightPair
from quantaudit.observers.sums import hidden_error


def run_controls(contract: Contract, evidence: Evidence, sample_pair: WeightPair) -> tuple[Control, ...]:
    """Returns identity, floor and sensitivity, in this order."""
    return (identity_control(evidence), floor_control(evidence), sensitivity_control(contract, evidence, sample_pair))


def identity_control(evidence: Evidence) -> Control:
    """hi through the complete lo path, nothing quantized, must be hi exactly."""
    table, count = evidence.measurements.identity, evidence.measurements.identity_probes
    is_zero = bool(table.parts) and table.is_zero()
    detail = (
        f"exactly zero on every observer over {count:,} probes"
        if is_zero
        else f"the lo path changes hi although nothing is quantized ({count:,} probes)"
    )
    return Control(name="identity", outcome=Outcome.PASS if is_zero else Outcome.FAIL, detail=detail)


def floor_control(evidence: Evidence) -> Control:
    """hi against itself under another batch size, padding and thread count."""
    errors = hidden_error(evidence.measurements.floor_sums.hidden)
    worst = max(errors.values(), default=0.0)
    detail = f"relative hidden error of hi against itself is at most {worst:.2g} over {len(errors)} layers"
    return Control(name="floor", outcome=Outcome.PASS if errors else Outcome.FAIL, detail=detail)


def sensitivity_control(contract: Contract, evidence: Evidence, sample_pair: WeightPair) -> Control:
    """Every gate clause must fail under some planted fault."""
    blind: list[str] = []
    seen = 0
    for clause in contract.clauses:
        if clause.kind is not Kind.GATE or clause.observer in LAYER_OBSERVERS:
            continue
        if clause.observer == "integrity":
            found = bool(check_pair(_unquantized(sample_pair)))
            blind, seen = (blind, seen + 1) if found else ([*blind, clause.name], seen)
            continue
        if clause.observer == "degeneracy":
            faults = evidence.measurements.faults.values()
            judged = [judge_degeneracy(t, evidence.probes, alpha=clause.alpha).decision.outcome for t in faults]
            blind, seen = (blind, seen + 1) if Outcome.FAIL in judged else ([*blind, clause.name], seen)
            continue
        for part in slices(clause, evidence.probes):
            found = bool(seen_faults(clause, part, evidence))
            blind, seen = (blind, seen + 1) if found else ([*blind, part.name], seen)
    detail = f"planted faults fail {seen} of {seen + len(blind)} gates"
    if blind:
        detail += "; not " + ", ".join(blind)
    return Control(
        name="sensitivity", outcome=Outcome.UNDECIDED if blind else Outcome.PASS, detail=detail, covers=tuple(blind)
    )


def _unquantized(pair: WeightPair) -> WeightPair:
    """Returns the pair as if lo had been left out of the scheme it should be held in."""
    return WeightPair(
        name=pair.name,
        layer=pair.layer,
        is_expert=pair.is_expert,
        hi=pair.hi,
        lo=pair.hi,
        wanted=pair.wanted or "a scheme",
        held=None,
    )

"""The controls of every run, and what follows when one fails: nothing can be admitted."""

from __future__ import annotations

import math
from collections.abc import Iterator

from quantaudit.core.contract import Clause, Contract, Kind
from quantaudit.core.decision import Outcome
from quantaudit.core.engine import WeightPair
from quantaudit.core.report import Control
from quantaudit.evaluation.clauses import Evidence, is_degeneracy_seen, seen_faults
from quantaudit.evaluation.slices import slices
from quantaudit.evaluation.weights import check_pair
from quantaudit.observers.sums import hidden_error


def run_controls(contract: Contract, evidence: Evidence, sample_pair: WeightPair) -> tuple[Control, ...]:
    """Returns identity, floor and sensitivity, in this order."""
    return (identity_control(evidence), floor_control(evidence), sensitivity_control(contract, evidence, sample_pair))


def identity_control(evidence: Evidence) -> Control:
    """Hi through the complete lo path, nothing quantized, must be hi exactly."""
    table, count = evidence.measurements.identity, evidence.measurements.identity_probes
    is_zero = bool(table.parts) and table.is_zero()
    detail = (
        f"exactly zero on every observer over {count:,} probes"
        if is_zero
        else f"the lo path changes hi although nothing is quantized ({count:,} probes)"
    )
    return Control(name="identity", outcome=Outcome.PASS if is_zero else Outcome.FAIL, detail=detail)


def floor_control(evidence: Evidence) -> Control:
    """Hi against itself in smaller batches and with one thread less; gates compare their margins with it themselves."""
    errors = hidden_error(evidence.measurements.floor_sums.hidden)
    worst = max(errors.values(), default=0.0)
    measured = bool(errors) and math.isfinite(worst)
    detail = f"relative hidden error of hi against itself is at most {worst:.2g} over {len(errors)} layers"
    return Control(name="floor", outcome=Outcome.PASS if measured else Outcome.FAIL, detail=detail)


def sensitivity_control(contract: Contract, evidence: Evidence, sample_pair: WeightPair) -> Control:
    """Every gate clause must fail under some planted fault."""
    gates = [clause for clause in contract.clauses if clause.kind is Kind.GATE]
    is_seen = {name: seen for clause in gates for name, seen in _assay(clause, evidence, sample_pair)}
    blind = [name for name, seen in is_seen.items() if not seen]
    detail = f"planted faults fail {len(is_seen) - len(blind)} of {len(is_seen)} gates"
    if blind:
        detail += "; not " + ", ".join(blind)
    return Control(
        name="sensitivity", outcome=Outcome.UNDECIDED if blind else Outcome.PASS, detail=detail, covers=tuple(blind)
    )


def _assay(clause: Clause, evidence: Evidence, sample_pair: WeightPair) -> Iterator[tuple[str, bool]]:
    """Yields every slice of a gate with whether a planted fault makes it fail."""
    if clause.observer == "integrity":
        yield clause.name, bool(check_pair(_unquantized(sample_pair)))
    elif clause.observer == "degeneracy":
        yield clause.name, is_degeneracy_seen(clause, evidence)
    else:
        for part in slices(clause, evidence.probes):
            yield part.name, bool(seen_faults(clause, part, evidence))


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

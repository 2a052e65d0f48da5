"""The clauses of a contract on recorded results: the readings, decisions and corrections of a run, without the model.

A clause about something that files do not hold (integrity, routing, a missing column) is not measured: as a gate it
stays undecided, so it keeps the contract from being admitted, and never fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantaudit.core.contract import Clause, Contract, Kind
from quantaudit.core.decision import Decision, Outcome
from quantaudit.core.errors import InputError
from quantaudit.core.report import ClauseResult
from quantaudit.evaluation.doses import LARGEST_DOSE, Assay, assay
from quantaudit.evaluation.reading import CONTRAST, ESS, REFUSALS, SOURCES, Reading, read
from quantaudit.evaluation.recorded.floor import ADVICE, Floor, floor_of
from quantaudit.evaluation.recorded.missing import respect_missing
from quantaudit.evaluation.recorded.pairing import OBSERVERS, Pair, name_some
from quantaudit.evaluation.slices import Slice, mixes_behaviours, slices
from quantaudit.evaluation.table import Table, select
from quantaudit.observers.metric import METRICS
from quantaudit.stats import correct_rejections, decide, decide_exact, respect_floor, withhold

MEASURABLE = frozenset({*OBSERVERS, CONTRAST})
# What only a run with the models in hand can measure, beside the metrics of probes.
OF_MODELS = frozenset({"integrity", "degeneracy", ESS, "load-drift", "hidden-error", "weight-sqnr"})
_BLIND = f"No planted damage of {LARGEST_DOSE:g} margins or less made this clause fail at this number of items."
_INSTEAD = "Record it, or use a contract that does not ask for it, such as recorded-answers."
_NO_FLOOR = f"The floor was not measured: {ADVICE}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that clauses are decided from.

    Attributes:
        table: Complete pairs.
        faults: hi against itself under planted damage.
    """

    contract: Contract
    pair: Pair
    table: Table
    floor: Floor
    faults: dict[str, Table]


def check_clauses(contract: Contract, known: frozenset[str]) -> None:
    """Checks what needs no recording: names of observers, and that every gate can be decided.

    Raises:
        InputError: If an observer is unknown, or a gate on numbers has no margin.
    """
    for clause in contract.clauses:
        if clause.observer not in known:
            raise InputError(
                f"contract {contract.name!r}: clause {clause.name!r} needs the observer {clause.observer!r}",
                expected="one of " + ", ".join(sorted(known)),
                fix="correct the name",
            )
        if clause.kind is Kind.GATE and clause.observer in MEASURABLE and clause.margin is None:
            raise InputError(
                f"contract {contract.name!r}: gate {clause.name!r} cannot be decided",
                expected="a margin",
                fix="give it a margin, or make it an alarm",
            )


def known_observers() -> frozenset[str]:
    """Returns every observer that a contract may name."""
    return frozenset(METRICS) | OF_MODELS | MEASURABLE


def decide_recorded(case: Case) -> tuple[ClauseResult, ...]:
    """Decides every clause on every slice; rejections by gates and raised alarms pay for their number (Holm)."""
    results = [result for clause in case.contract.clauses for result in _decide_clause(clause, case)]
    corrected: dict[str, Decision] = {}
    for kind in Kind:
        corrected |= correct_rejections({r.name: r.decision for r in results if r.clause.kind is kind})
    return tuple(r.model_copy(update={"decision": corrected[r.name]}) for r in results)


def _decide_clause(clause: Clause, case: Case) -> list[ClauseResult]:
    if clause.observer not in MEASURABLE:
        return [_unmeasured(clause, None, f"Not measured: recorded results do not hold {clause.observer}.")]
    parts = slices(clause, case.pair.probes)
    if not parts:
        about = " or ".join(behaviour.value for behaviour in clause.behaviours)
        return [_unmeasured(clause, None, f"Not measured: no recorded item has the behaviour {about}. {_INSTEAD}")]
    if clause.observer in REFUSALS and any(mixes_behaviours(part, case.pair.probes) for part in parts):
        raise InputError(
            f"contract {case.contract.name!r}: clause {clause.name!r} mixes restricted and benign requests",
            expected="one behaviour a clause: a refusal is right on one kind and wrong on the other",
            fix='give it behaviours = ["refuse"] or ["comply"], or each_family = true',
        )
    return [_decide_slice(clause, part, case) for part in parts]


def _decide_slice(clause: Clause, part: Slice, case: Case) -> ClauseResult:
    read_as = _read_grades(clause, part, case.table)
    reading = read(read_as, part, case.table, case.pair.probes)
    if reading is None:
        return _unmeasured(clause, part, _explain_absence(read_as, part, case.pair))
    floor = floor_of(read_as, part, case.floor, case.pair)
    is_assayed = clause.kind is Kind.GATE and clause.margin is not None
    seen = assay(read_as, part, case.faults, case.pair.probes) if is_assayed else Assay()
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
        smallest_fault=seen.smallest,
        decision=_judge(read_as, part, reading, floor, seen, case),
    )


def _judge(clause: Clause, part: Slice, reading: Reading, floor: float | None, seen: Assay, case: Case) -> Decision:
    """Decides on the numbers, then withholds what missing items, floor, size or sensitivity do not carry."""
    if reading.estimate is None:
        return _not_decided(_name_infinite(clause, part, case))
    if clause.margin is None:
        against = "the floor was not measured" if floor is None else f"the floor is {floor:.2g}"
        return _not_decided(f"{reading.estimate.value:.3g}, {against}; shown.").model_copy(
            update={"outcome": Outcome.PASS}
        )
    decision = _decide_reading(clause, reading)
    assert decision is not None
    decision = respect_missing(decision, clause, part, case.pair, lambda t: _decide_table(clause, part, t, case))
    if floor is not None:
        decision = respect_floor(decision, margin=clause.margin, floor=floor)
    size, least = reading.estimate, case.contract
    if size.num_probes < least.min_probes or size.num_clusters < least.min_clusters:
        found = f"{size.num_probes:,} items in {size.num_clusters:,} clusters"
        asked = f"at least {least.min_probes:,} in {least.min_clusters:,}"
        return withhold(decision, reason=f"{found}; the contract asks for {asked}.")
    if clause.kind is Kind.ALARM:
        return decision
    if seen.smallest is None:
        return withhold(decision, reason=_BLIND)
    # A missing floor is a missing control, and admits nothing. Damage that is seen is seen all the same.
    if floor is None and decision.outcome is Outcome.PASS:
        return withhold(decision, reason=f"{decision.reason} {_NO_FLOOR}")
    return decision


def _decide_reading(clause: Clause, reading: Reading) -> Decision | None:
    if reading.estimate is None or clause.margin is None:
        return None
    return decide(reading.estimate, direction=clause.direction, margin=clause.margin, alpha=clause.alpha)


def _decide_table(clause: Clause, part: Slice, table: Table, case: Case) -> Decision | None:
    reading = read(clause, part, table, case.pair.probes)
    return None if reading is None else _decide_reading(clause, reading)


def _read_grades(clause: Clause, part: Slice, table: Table) -> Clause:
    """Returns the clause, on graded scores where accuracy is neither 0 nor 1 in every item of the slice."""
    hits = select(table.readings("accuracy"), part.position_P)
    is_binary = bool(np.isin(hits.hi_R, (0.0, 1.0)).all() and np.isin(hits.lo_R, (0.0, 1.0)).all())
    is_graded = clause.observer == "accuracy" and not is_binary
    return clause.model_copy(update={"observer": "score"}) if is_graded else clause


def _explain_absence(clause: Clause, part: Slice, pair: Pair) -> str:
    source = _source(clause)
    sides = (("hi", pair.hi.has_P), ("lo", pair.lo.has_P))
    held = [name for name, has_P in sides if has_P[source][part.position_P].any()]
    why = ("neither file holds it", f"{''.join(held)} alone holds it", "no item has it on both sides")[len(held)]
    return f"Not measured: {source} of {part.family or 'these items'}, {why}. {_INSTEAD}"


def _name_infinite(clause: Clause, part: Slice, case: Case) -> str:
    readings = select(case.table.readings(_source(clause)), part.position_P)
    sides = [(side, ~np.isfinite(v)) for side, v in (("hi", readings.hi_R), ("lo", readings.lo_R))]
    side, bad_R = next(found for found in reversed(sides) if found[1].any())
    names = name_some(case.pair.probes.probes[i].id for i in readings.index_R[bad_R])
    return f"{side} has numbers that are not finite in {int(bad_R.sum()):,} items ({names}), so there is no mean."


def _source(clause: Clause) -> str:
    """Returns the observer whose numbers a clause is read from."""
    return SOURCES.get(clause.observer, clause.observer)


def _unmeasured(clause: Clause, part: Slice | None, reason: str) -> ClauseResult:
    metric = METRICS.get(clause.observer)
    return ClauseResult(
        name=part.name if part else clause.name,
        clause=clause,
        family=part.family if part else None,
        unit=metric.unit if metric else "",
        larger_is_better=metric.larger_is_better if metric else True,
        hi=None,
        lo=None,
        estimate=None,
        floor=None,
        decision=_not_decided(reason),
    )


def _not_decided(reason: str) -> Decision:
    undecided = withhold(decide_exact(is_equal=False), reason=reason)
    return undecided.model_copy(update={"is_exact": False})

"""Rejecting before the last probe: which gates look, what a look takes, and what is left of a pass that was stopped.

At the end of every chunk but the last, each gate that can be bet on weighs the evidence that lo is beyond its margin. A
look can only reject. So nobody is admitted who would not have been without looks, admitting keeps all of its alpha, and
a harmless lo is judged as it always is: by one test on all probes. Betting could admit too, but with a margin of .02
it takes 194 clusters without any damage, and gates that cannot be bet on would still need every probe.

Rejecting is what looks spend alpha on. Half of it is theirs, shared by all gates that look: evidence of their number
over that half refutes "lo is within this margin" at whichever look, and the chance that any of them ever errs is at
most the half. The other half is left for the rejections at the end of a pass that was not stopped (Holm, over all
gates). A gate looks once it has the probes and clusters that the contract asks for, and rejects where its margin is
three floors or more, and the identity control is exactly zero so far.

Legend: R probes of a slice that were read, G clusters.
Source: Ville 1939; `stats.betting` for the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quantaudit.core.contract import Clause, Contract, Direction, Kind
from quantaudit.core.errors import InputError
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.clauses import SPECIAL
from quantaudit.evaluation.floor import measure_floor
from quantaudit.evaluation.ladder import Step
from quantaudit.evaluation.layers import LAYER_OBSERVERS
from quantaudit.evaluation.measure import Measurements
from quantaudit.evaluation.reading import damage_by_probe
from quantaudit.evaluation.sequential_pass import Course, plan_course
from quantaudit.evaluation.slices import Slice, clusters_at, slices
from quantaudit.evaluation.table import select
from quantaudit.observers.metric import METRICS, Metric
from quantaudit.observers.registry import get_observer
from quantaudit.stats import ALPHA, FLOOR_FACTOR, Beyond, Claim, SequentialTest, gather
from quantaudit.stats.betting import Bets, log_evidence, log_two_sided

LOOKS_ALPHA = ALPHA / 2
END_ALPHA = ALPHA - LOOKS_ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class LookingGate:
    """A gate slice that can be bet on.

    Attributes:
        part: Its probes, by position in the course.
        test: Its margin and bound, before any cluster.
        first_look: Chunks after which it has the evidence that the contract asks for.
    """

    clause: Clause
    part: Slice
    test: SequentialTest
    first_look: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """What is looked at, fixed before the first forward.

    Attributes:
        course: The order of the pass.
        gates: The gates that look.
        others: Names of the gates that decide on samples and do not look.
    """

    course: Course
    gates: tuple[LookingGate, ...]
    others: tuple[str, ...]

    @property
    def evidence_needed(self) -> float:
        """Wealth, from 1, at which a gate rejects; larger for a clause whose own alpha is smaller."""
        return len(self.gates) / LOOKS_ALPHA


class Rejection(NamedTuple):
    """A gate that rejected at a look, with the clusters it had seen and the logarithm of its evidence."""

    gate: LookingGate
    test: SequentialTest
    log_evidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How far a pass came.

    Attributes:
        planned: All probes, in their own order.
        probes: The probes that were run.
        plan: What was looked at; `None` where nothing could be.
        num_looks: Chunks after which some gate looked.
        rejections: What stopped it; none where it ran to the end.
    """

    planned: ProbeSet
    probes: ProbeSet
    plan: LookPlan | None = None
    num_looks: int = 0
    rejections: tuple[Rejection, ...] = ()

    def keep(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Returns the rungs that are still worth climbing: none after a stop, for they say nothing about lo."""
        return () if self.rejections else steps


def plan_looks(contract: Contract, probes: ProbeSet) -> LookPlan:
    """Fixes the order of the pass and the gates that look.

    Raises:
        InputError: If no gate can look, or a bound does not fit its clause.
    """
    course = plan_course(probes)
    gates: list[LookingGate] = []
    others: list[str] = []
    for clause in (c for c in contract.clauses if c.kind is Kind.GATE and c.observer != "integrity"):
        bound = None if clause.observer in SPECIAL or clause.observer in LAYER_OBSERVERS else _bound(clause, contract)
        parts = slices(clause, course.probes) if clause.observer != "degeneracy" else []
        found = [None if bound is None else _prepare(clause, part, bound, contract, course) for part in parts]
        gates += [gate for gate in found if gate is not None]
        others += [part.name for part, gate in zip(parts, found, strict=True) if gate is None] or (
            [] if parts else [clause.name]
        )
    if not gates:
        raise InputError(
            f"contract {contract.name!r} has no gate that can decide before the last probe of {probes.name!r}",
            expected="a gate on a 0/1 observer, or one with a bound, that has enough probes before the last tenth",
            fix="leave out --stop-early, or give a clause a bound: the largest difference of a single probe",
        )
    return LookPlan(course=course, gates=tuple(gates), others=tuple(others))


def _bound(clause: Clause, contract: Contract) -> float | None:
    """Returns the largest difference of a probe that counts, `None` where there is none."""
    metric = _metric(clause)
    if metric.is_rate and clause.bound is not None:
        raise InputError(
            f"contract {contract.name!r}: clause {clause.name!r} has a bound, and {clause.observer!r} is 0 or 1",
            expected="no bound: it is 1",
            fix="leave the bound out",
        )
    bound = 1.0 if metric.is_rate else clause.bound
    if bound is not None and clause.margin is not None and not clause.margin < bound:
        raise InputError(
            f"contract {contract.name!r}: clause {clause.name!r} has a bound of {bound:g} for a margin of "
            f"{clause.margin:g}",
            expected="a bound beyond the margin: differences of single probes are clipped to it",
            fix="raise the bound, or leave it out: the clause then decides at the end only",
        )
    return bound


def _metric(clause: Clause) -> Metric:
    return METRICS[clause.observer] if clause.observer in METRICS else get_observer(clause.observer).metric()


def _prepare(clause: Clause, part: Slice, bound: float, contract: Contract, course: Course) -> LookingGate | None:
    """Returns the gate, or `None` if it has too little evidence before the last chunk."""
    assert clause.margin is not None, "check_contract lets no sampled gate without a margin through"
    names = clusters_at(course.probes, part.position_P)
    for number, end in enumerate(course.ends[:-1], start=1):
        count = int(np.searchsorted(part.position_P, end))
        if count >= contract.min_probes and len(set(names[:count])) >= contract.min_clusters:
            test = SequentialTest(
                direction=clause.direction,
                margin=clause.margin,
                alpha=clause.alpha,
                bound=bound,
                largest_cluster=int(gather(np.zeros(len(names)), names).sizes_G.max()),
                are_flips=_metric(clause).is_rate,
                beyond=Beyond.CLIP,
            )
            return LookingGate(clause=clause, part=part, test=test, first_look=number)
    return None


def look(plan: LookPlan, measured: Measurements) -> tuple[Rejection, ...]:
    """Returns the gates that reject on what was measured so far; none but at the end of a chunk that is not the last.

    Args:
        plan: What is looked at.
        measured: The pass so far, probes in the order of the course.
    """
    end = measured.num_probes
    if end not in plan.course.ends[:-1] or not measured.identity.is_zero():
        return ()
    number, probes = plan.course.ends.index(end) + 1, plan.course.first(end)
    found = (_weigh(gate, measured, probes) for gate in plan.gates if gate.first_look <= number)
    return tuple(r for r in found if r is not None and _rejects(r, plan, measured, probes))


def finish(planned: ProbeSet, plan: LookPlan | None, measured: Measurements) -> Ending:
    """Returns how far the pass came.

    Args:
        planned: All probes, in their own order.
        plan: What was looked at, `None` where nothing could be: the pass then ran to the end.
        measured: What was measured.
    """
    if plan is None:
        return Ending(planned=planned, probes=planned)
    first, ends = min(gate.first_look for gate in plan.gates), plan.course.ends
    last = min(ends.index(measured.num_probes) + 1, len(ends) - 1)
    return Ending(
        planned=planned,
        plan=plan,
        probes=plan.course.first(measured.num_probes),
        num_looks=last - first + 1,
        rejections=look(plan, measured),
    )


def _seen(gate: LookingGate, probes: ProbeSet) -> Slice:
    position_P = gate.part.position_P
    return gate.part._replace(position_P=position_P[position_P < len(probes.probes)])


def _weigh(gate: LookingGate, measured: Measurements, probes: ProbeSet) -> Rejection | None:
    """Returns the evidence of a gate against "within the margin"; `None` where some difference is not finite."""
    part = _seen(gate, probes)
    index_R = select(measured.lo.readings(gate.clause.observer), part.position_P).index_R
    damage_R = damage_by_probe(gate.clause, part, measured.lo, probes)[index_R]
    if not len(index_R) or not np.isfinite(damage_R).all():
        return None
    sample = gather(damage_R, clusters_at(probes, index_R))
    test = gate.test
    for cluster_R in np.split(sample.values_N, np.cumsum(sample.sizes_G)[:-1]):
        test = test.observe(cluster_R)
    return Rejection(gate, test, reject_log_evidence(test))


def reject_log_evidence(test: SequentialTest) -> float:
    """Returns the logarithm of the wealth won against "within the margin" after the last cluster."""
    bets = Bets(np.array(test.means), np.array(test.sizes) / test.largest_cluster, test.bound)
    if test.direction is Direction.BOTH:
        return float(log_two_sided(bets, test.margin)[-1])
    return float(log_evidence(bets, test.margin, Claim.ABOVE)[-1])


def _rejects(found: Rejection, plan: LookPlan, measured: Measurements, probes: ProbeSet) -> bool:
    clause = found.gate.clause
    if found.log_evidence < math.log(max(plan.evidence_needed, 1 / clause.alpha)):
        return False
    floor = measure_floor(clause, _seen(found.gate, probes), measured.floor, probes)
    return floor is not None and found.test.margin >= FLOOR_FACTOR * floor

"""The audit, top to bottom: check, compare weights, run the paired pass, decide, control, admit, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quantaudit.core.contract import Contract
from quantaudit.core.engine import WeightPair
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import ProbeSet
from quantaudit.core.recipe import Recipe
from quantaudit.core.report import AuditReport, Environment, ProbeSummary, RealizationInfo, RunBlock, StageTime
from quantaudit.evaluation.admission import admit
from quantaudit.evaluation.clauses import Evidence, check_contract, decide_clauses, smallest_faults
from quantaudit.evaluation.controls import sensitivity_control
from quantaudit.evaluation.families import summarize_families
from quantaudit.evaluation.findings import assayed_observers, find_controls
from quantaudit.evaluation.layers import profiles, routing_maps
from quantaudit.evaluation.limits import not_examined
from quantaudit.evaluation.measure import Engines, Measurements, measure
from quantaudit.evaluation.plan import plan_batches
from quantaudit.evaluation.weights import WeightEvidence, compare_weights, sqnr_maps
from quantaudit.evaluation.witnesses import find_witnesses

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is audited.

    Attributes:
        engines: hi, lo and the identity control.
        hi: Facts about hi for the report.
        lo: Facts about lo.
        weights: Every tensor of both, decoded one at a time; can be walked once.
        sample_pair: Any expert weight, for the integrity control.
        num_experts: Experts per layer.
        may_be_equal: Whether lo equal to hi is a result; False where the recipe should have changed the weights.
        same_execution: Whether lo is run as hi is, inputs not quantized.
        recipe: The recipe, if lo was made by one.
    """

    engines: Engines
    hi: RealizationInfo
    lo: RealizationInfo
    weights: Iterable[WeightPair]
    sample_pair: WeightPair
    num_experts: int
    may_be_equal: bool
    same_execution: bool
    recipe: Recipe | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the audit is run."""

    batch_size: int = 96
    max_witnesses: int = 12
    show_restricted: bool = False


@dataclass(slots=True, kw_only=True)
class _Clock:
    progress: Progress
    stages: list[StageTime] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, items: int) -> Iterator[Callable[[int], None]]:
        began, done = time.monotonic(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self.progress(name, done, items)

        self.progress(name, 0, items)
        yield advance
        self.stages.append(StageTime(name=name, seconds=time.monotonic() - began, items=items))


def run_audit(
    subject: Subject,
    contract: Contract,
    probes: ProbeSet,
    settings: Settings,
    *,
    environment: Environment,
    run: RunBlock,
    progress: Progress,
) -> AuditReport:
    """Runs the audit and returns its report.

    Args:
        subject: What is audited.
        contract: What it must meet.
        probes: The audit split; nothing else may be in it.
        settings: How it is run.
        environment: What determines the bits.
        run: Start time, host and command; durations are filled in here.
        progress: Told (stage, done, total).

    Raises:
        InputError: If the contract cannot be measured on these probes, or they are of more than one split.
        NotMeasuredError: If the recipe changed nothing, or there are no probes.
    """
    check_request(contract, probes)
    clock = _Clock(progress=progress)
    with clock.stage("weights", 1) as advance:
        weights = compare_weights(subject.weights)
        advance(1)
    is_exact = weights.num_changed == 0 and subject.same_execution
    if is_exact and not subject.may_be_equal:
        raise NotMeasuredError(
            f"the recipe changed none of {weights.num_tensors:,} tensors, so nothing was measured; "
            "is the reference already quantized by this scheme?"
        )
    with clock.stage("forward", len(probes.probes)) as advance:
        batches = plan_batches(probes, settings.batch_size)
        measured = measure(
            subject.engines,
            batches,
            num_experts=subject.num_experts,
            assayed=assayed_observers(contract),
            advance=advance,
        )
    with clock.stage("decide", 1) as advance:
        findings = find_controls(contract, probes, measured)
        evidence = Evidence(probes=probes, measurements=measured, findings=findings, weights=weights, is_exact=is_exact)
        report = _decide(subject, contract, evidence, settings, environment, run)
        advance(1)
    seconds = sum(stage.seconds for stage in clock.stages)
    timed = run.model_copy(update={"seconds": seconds, "stages": tuple(clock.stages)})
    return report.model_copy(update={"run": timed})


def check_request(contract: Contract, probes: ProbeSet) -> None:
    """Checks that the contract can be measured on these probes; costs nothing, so it comes before anything slow.

    Raises:
        InputError: If it cannot, or the probes are of more than one split.
        NotMeasuredError: If there are no probes.
    """
    _check_split(probes)
    check_contract(contract, probes)


def _check_split(probes: ProbeSet) -> None:
    """Checks that there are probes, all of one split: what was tuned on must not judge."""
    splits = {probe.split.value for probe in probes.probes}
    if not splits:
        raise NotMeasuredError(f"the probe set {probes.name!r} is empty, so nothing was measured")
    if len(splits) > 1:
        raise InputError(
            f"the probe set {probes.name!r} with probes of the splits {', '.join(sorted(splits))}",
            expected="probes of one split",
            fix="take one split, audit unless a recipe is being chosen",
        )


def _decide(
    subject: Subject,
    contract: Contract,
    evidence: Evidence,
    settings: Settings,
    environment: Environment,
    run: RunBlock,
) -> AuditReport:
    results = decide_clauses(contract, evidence)
    sensitivity = sensitivity_control(smallest_faults(contract, evidence, subject.sample_pair))
    controls = (evidence.findings.identity, evidence.findings.floor, sensitivity)
    measured, weights = evidence.measurements, evidence.weights
    witnesses = find_witnesses(
        evidence.probes,
        measured.lo,
        subject.engines.hi,
        subject.engines.lo,
        limit=settings.max_witnesses,
        show_restricted=settings.show_restricted,
    )
    return AuditReport(
        verdict=admit(results, controls, is_exact=evidence.is_exact),
        hi=subject.hi,
        lo=subject.lo,
        recipe=subject.recipe,
        contract=contract,
        probes=_summarize(evidence.probes, measured),
        clauses=results,
        controls=controls,
        layer_profiles=profiles(measured.sums, measured.floor_sums),
        expert_maps=(*sqnr_maps(weights), *routing_maps(measured.sums)),
        witnesses=witnesses,
        discrepancies=weights.discrepancies,
        not_examined=not_examined(evidence, contract, environment),
        notes=_notes(subject, weights),
        environment=environment,
        run=run,
    )


def _summarize(probes: ProbeSet, measured: Measurements) -> ProbeSummary:
    return ProbeSummary(
        name=probes.name,
        source=probes.source,
        probes_digest=probes.digest(),
        split=probes.probes[0].split.value,
        num_probes=len(probes.probes),
        num_scored_tokens=measured.num_scored_tokens,
        families=summarize_families(probes, measured.lo),
    )


def _notes(subject: Subject, weights: WeightEvidence) -> tuple[str, ...]:
    changed = f"{weights.num_changed:,} of {weights.num_tensors:,} tensors differ in value."
    return (changed, *dict.fromkeys((*subject.hi.notes, *subject.lo.notes)))

"""The audit, top to bottom: check, compare weights, run the paired pass, decide, control, admit, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from quantaudit.core.contract import Contract
from quantaudit.core.diagnostic import Ladder
from quantaudit.core.engine import WeightPair
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.probe import ProbeSet
from quantaudit.core.recipe import Recipe
from quantaudit.core.report import AuditReport, Environment, ProbeSummary, RealizationInfo, RunBlock, StageTime
from quantaudit.evaluation.admission import admit
from quantaudit.evaluation.cache import ControlKey, Measured, measure_with_kept
from quantaudit.evaluation.clauses import Evidence, check_contract, decide_clauses, smallest_faults
from quantaudit.evaluation.diagnostics import diagnose
from quantaudit.evaluation.early import Ending, LookPlan, finish, look, plan_looks
from quantaudit.evaluation.families import summarize_families
from quantaudit.evaluation.findings import assayed_observers, find_controls
from quantaudit.evaluation.forced_routing import diagnose_forced_routing
from quantaudit.evaluation.free_running import FreeRun, diagnose_free_run, plan_free_run, run_freely
from quantaudit.evaluation.ladder import Step, climb, sample_probes
from quantaudit.evaluation.layers import profiles, routing_maps
from quantaudit.evaluation.limits import not_examined
from quantaudit.evaluation.measure import Controls, Engines, Measurements, measure
from quantaudit.evaluation.plan import plan_batches
from quantaudit.evaluation.selection_bias import note_biases
from quantaudit.evaluation.sensitivity import sensitivity_control
from quantaudit.evaluation.sequential_pass import batches_of
from quantaudit.evaluation.shown import put_together
from quantaudit.evaluation.stopped import annotate, settle
from quantaudit.evaluation.weights import WeightEvidence, compare_weights, sqnr_maps
from quantaudit.evaluation.witnesses import find_witnesses
from quantaudit.observers.registry import observers_for

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
        steps: Rungs of the ladder of bit widths; none where hi's experts are quantized already.
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
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the audit is run.

    Attributes:
        batch_size: Probes that share a forward.
        max_witnesses: Most witnesses that are written out.
        show_restricted: Whether the text of restricted probes is.
        controls_folder: Where controls are kept, to take over those of a run with equal digests; all are measured
            anew, and none kept, when `None`.
        stop_early: Whether gates may reject before the last probe; controls are then measured in this run.
    """

    batch_size: int = 96
    max_witnesses: int = 12
    show_restricted: bool = False
    controls_folder: Path | None = None
    stop_early: bool = False


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

    def timed(self, run: RunBlock) -> RunBlock:
        """Returns the run block with the stages so far and their sum."""
        seconds = sum(stage.seconds for stage in self.stages)
        return run.model_copy(update={"seconds": seconds, "stages": tuple(self.stages)})

    def climb(self, ending: Ending, subject: Subject, batch_size: int) -> Ladder | None:
        """Measures the ladder on a sample of the probes that were run."""
        steps, sample = ending.keep(subject.steps), sample_probes(ending.probes)
        with self.stage("ladder", len(sample.probes) * len(steps)) as advance:
            return climb(steps, subject.engines.hi, sample, batch_size=batch_size, advance=advance)


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
        probes: The audit split; nothing else.
        settings: How it is run.
        environment: What determines the bits.
        run: Start time, host and command; durations are filled in here.
        progress: Told (stage, done, total).

    Raises:
        InputError: If the contract cannot be measured on these probes, as `check_request` tells.
        NotMeasuredError: If the recipe changed nothing, or there are no probes.
    """
    check_request(contract, probes, stop_early=settings.stop_early)
    clock = _Clock(progress=progress)
    selection_bias: dict[int, Tensor] = {}
    with clock.stage("weights", 1) as advance:
        weights = compare_weights(note_biases(subject.weights, into=selection_bias))
        advance(1)
    is_exact = _is_exact(subject, weights)
    looks = plan_looks(contract, probes) if settings.stop_early and not is_exact else None
    with clock.stage("forward", len(probes.probes)) as advance:
        measured, controls_from = _measure(
            subject, contract, probes, looks, settings, environment, run, selection_bias=selection_bias, advance=advance
        )
    ending = finish(probes, looks, measured)
    probes, plan = ending.probes, plan_free_run(ending.probes, measured.lo)
    with clock.stage("generate", plan.num_items) as advance:
        free = run_freely(subject.engines, probes, plan, advance=advance)
    ladder = clock.climb(ending, subject, settings.batch_size)
    with clock.stage("decide", 1) as advance:
        findings = find_controls(contract, probes, measured)
        evidence = Evidence(probes=probes, measurements=measured, findings=findings, weights=weights, is_exact=is_exact)
        report = _decide(subject, contract, evidence, ending, free, settings, environment, run)
        report = annotate(report.model_copy(update={"ladder": ladder}), ending)
        advance(1)
    taken = {"cached_controls": controls_from is not None, "controls_from": controls_from}
    return report.model_copy(update={"run": clock.timed(run).model_copy(update=taken)})


def _measure(
    subject: Subject,
    contract: Contract,
    probes: ProbeSet,
    looks: LookPlan | None,
    settings: Settings,
    environment: Environment,
    run: RunBlock,
    *,
    selection_bias: dict[int, Tensor],
    advance: Callable[[int], None],
) -> Measured:
    """Runs the paired pass, with the controls of an earlier run where they are kept."""
    size = settings.batch_size
    batches = plan_batches(probes, size) if looks is None else batches_of(looks.course, size)

    def run_pass(kept: Controls | None) -> Measurements:
        return measure(
            subject.engines,
            batches,
            num_experts=subject.num_experts,
            assayed=assayed_observers(contract),
            observers=observers_for(clause.observer for clause in contract.clauses),
            advance=advance,
            selection_bias=selection_bias,
            kept=kept,
            stops=None if looks is None else lambda measured: bool(look(looks, measured)),
        )

    key = ControlKey(
        weights_digest=subject.hi.weights_digest,
        probes_digest=probes.digest(),
        contract_digest=contract.digest(),
        environment=environment,
    )
    # What is kept is pinned by this package's source, which a plug-in's observer is no part of.
    has_plug_in = any("/" in clause.observer for clause in contract.clauses)
    return measure_with_kept(run_pass, None if has_plug_in else settings.controls_folder, key, run=run.started)


def _is_exact(subject: Subject, weights: WeightEvidence) -> bool:
    """Tells whether lo equals hi bit for bit under the same execution.

    Raises:
        NotMeasuredError: If it does where the recipe should have changed something.
    """
    is_exact = weights.num_changed == 0 and subject.same_execution
    if is_exact and not subject.may_be_equal:
        raise NotMeasuredError(
            f"the recipe changed none of {weights.num_tensors:,} tensors, so nothing was measured; "
            "is the reference already quantized by this scheme?"
        )
    return is_exact


def check_request(contract: Contract, probes: ProbeSet, *, stop_early: bool = False) -> None:
    """Checks that the contract can be measured on these probes; costs nothing, so it comes before anything slow.

    Raises:
        InputError: If it cannot, or the probes are of more than one split, or one is there twice, or no gate can look
            before the last probe where that is asked for.
        NotMeasuredError: If there are no probes.
    """
    _check_split(probes)
    _check_ids(probes)
    check_contract(contract, probes)
    if stop_early:
        plan_looks(contract, probes)


def _check_ids(probes: ProbeSet) -> None:
    """Checks that every probe is there once: a repeated one is no more evidence, and would be counted as such."""
    twice = [name for name, count in Counter(probe.id for probe in probes.probes).items() if count > 1]
    if twice:
        which = f"the probe {twice[0]!r}" if len(twice) == 1 else f"{len(twice):,} probes, {twice[0]!r} and others,"
        raise InputError(
            f"the probe set {probes.name!r} with {which} more than once",
            expected="every probe once",
            fix="remove the copies",
        )


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
    ending: Ending,
    free: FreeRun,
    settings: Settings,
    environment: Environment,
    run: RunBlock,
) -> AuditReport:
    results = settle(decide_clauses(contract, evidence), ending)
    sensitivity = sensitivity_control(smallest_faults(contract, evidence, subject.sample_pair))
    controls = (evidence.findings.identity, evidence.findings.floor, sensitivity)
    measured, weights = evidence.measurements, evidence.weights
    shown = put_together(
        (
            diagnose(evidence.probes, measured, weights),
            diagnose_forced_routing(measured.forced, evidence.probes, measured.floor),
            diagnose_free_run(free, evidence.probes),
        )
    )
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
        diagnostics=shown.diagnostics,
        series=shown.series,
        flips=free.list_flips(evidence.probes, show_restricted=settings.show_restricted),
        witnesses=witnesses,
        discrepancies=weights.discrepancies,
        not_examined=not_examined(evidence, free, contract, environment),
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

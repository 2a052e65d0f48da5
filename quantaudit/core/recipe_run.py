"""What `quantaudit recipe run` found: the audits of its arms in short, and what the repair is worth, pair by pair.

Arms, all against the same hi: `before` is hi rounded to nearest under the recipe, `control` is hi trained for the same
steps on the same items without fake quantization and then rounded to nearest, `after` is the repaired model with its
own codes. An obstruction is the mean damage of an arm; a reduction from one arm to another is the mean over probes of
the difference of their damages, above zero where the second is better.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from quantaudit.core.decision import Estimate, Outcome
from quantaudit.core.recipe import Recipe
from quantaudit.core.report import AuditReport
from quantaudit.core.serial import Frozen
from quantaudit.core.verdict import Admission


class Arm(StrEnum):
    """One of the deployments that a recipe run compares."""

    BEFORE = "before"
    CONTROL = "control"
    AFTER = "after"


class Obstruction(Frozen):
    """O_Q of one arm in one observer, with a 95 % interval."""

    arm: str
    observer: str
    unit: str
    estimate: Estimate


class Reduction(Frozen):
    """O_Q of `before` less O_Q of `after`, paired by probe, with a 95 % interval; above zero is an improvement."""

    before: str
    after: str
    observer: str
    unit: str
    estimate: Estimate

    @property
    def is_proved(self) -> bool:
        """Tells whether the interval lies above zero."""
        return self.estimate.interval.lower > 0


class Effect(Frozen):
    """All arms on one probe set.

    Attributes:
        probes_digest: Digest of the probes.
        num_probes: How many.
        obstructions: Observer by observer, arm by arm.
        reductions: To the last arm from each of the others.
    """

    probes_digest: str
    num_probes: int
    obstructions: tuple[Obstruction, ...]
    reductions: tuple[Reduction, ...]

    def reduction(self, before: str, observer: str) -> Reduction:
        """Returns the reduction from an arm in an observer."""
        return next(r for r in self.reductions if r.before == before and r.observer == observer)

    def obstruction(self, arm: str, observer: str) -> Obstruction:
        """Returns the obstruction of an arm in an observer."""
        return next(o for o in self.obstructions if o.arm == arm and o.observer == observer)


class ClauseLine(Frozen):
    """One clause of one arm's audit, as far as a table shows it; `None` for exact clauses."""

    name: str
    unit: str
    damage: float | None
    lower: float | None
    upper: float | None
    outcome: Outcome


class ArmSummary(Frozen):
    """The audit of one arm in short.

    Attributes:
        arm: Which one.
        verdict: What its audit came to.
        weights_digest: Digest of its weights.
        stored_bits_per_expert_weight: Codes and scales.
        expert_bytes: Codes and scales of all routed experts.
        report_digest: Digest of the whole report, which lies beside this.
        clauses: Every clause.
    """

    arm: Arm
    verdict: Admission
    weights_digest: str
    stored_bits_per_expert_weight: float | None
    expert_bytes: int
    report_digest: str
    clauses: tuple[ClauseLine, ...]


class TrainingSummary(Frozen):
    """How one arm was trained.

    Attributes:
        arm: Which one.
        steps: Optimizer steps.
        losses: Means over stretches of equal length of the steps that this run took, nats a scored token; empty where
            the arm was trained before.
        seconds: What those steps took.
    """

    arm: Arm
    steps: int
    losses: tuple[float, ...]
    seconds: float


class RecipeRun(Frozen):
    """The result of `quantaudit recipe run`.

    Attributes:
        recipe: With what calibration chose.
        seed: Seed of the items.
        hi_source: Where hi came from.
        hi_digest: Digest of its weights.
        arms: The audits in short.
        trainings: How control and repaired arm were trained.
        effect: On the audit split.
        gap: The quantization gap: the repaired model unquantized against itself quantized.
        notes: Sentences that qualify all this.
        seconds: Of the whole run, wall clock; in no digest.
        command: What makes it again.
    """

    schema_version: Literal[1] = 1
    kind: Literal["recipe-run"] = "recipe-run"
    recipe: Recipe
    seed: int
    hi_source: str
    hi_digest: str
    arms: tuple[ArmSummary, ...]
    trainings: tuple[TrainingSummary, ...]
    effect: Effect
    gap: Effect | None
    notes: tuple[str, ...] = ()
    seconds: float
    command: str

    def arm(self, arm: Arm) -> ArmSummary:
        """Returns the summary of one arm."""
        return next(a for a in self.arms if a.arm is arm)


def summarize_arm(arm: Arm, report: AuditReport, num_expert_weights: int) -> ArmSummary:
    """Returns an audit in short.

    Args:
        arm: Which deployment it audited.
        report: The audit.
        num_expert_weights: Weights of all routed experts.
    """
    bits = report.lo.stored_bits_per_expert_weight
    lines = tuple(
        ClauseLine(
            name=result.name,
            unit=result.unit,
            damage=None if result.estimate is None else result.estimate.value,
            lower=None if result.estimate is None else result.estimate.interval.lower,
            upper=None if result.estimate is None else result.estimate.interval.upper,
            outcome=result.decision.outcome,
        )
        for result in report.clauses
    )
    return ArmSummary(
        arm=arm,
        verdict=report.verdict.admission,
        weights_digest=report.lo.weights_digest,
        stored_bits_per_expert_weight=bits,
        expert_bytes=0 if bits is None else round(bits * num_expert_weights / 8),
        report_digest=report.report_digest(),
        clauses=lines,
    )

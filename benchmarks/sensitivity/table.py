"""What is reported: a row an injection, the clean steps, the delay of partial checks, and what a gap alone can see."""

from __future__ import annotations

from typing import Literal

from scipy.stats import beta

from quantaudit.core.serial import Frozen

LEVEL = 0.95


class Share(Frozen):
    """A share with its exact interval.

    Attributes:
        count: How many.
        total: Of how many.
        lower: Clopper-Pearson bound.
        upper: The other one.
    """

    count: int
    total: int
    lower: float
    upper: float

    @property
    def is_all(self) -> bool:
        """Says whether it is all of them, and there is one."""
        return self.count == self.total > 0


class InjectionRow(Frozen):
    """One mismatch over its runs.

    Attributes:
        name: The injection.
        kind: Where it lies.
        sentence: What it does.
        runs: Runs in which it was planted.
        latent: Runs in which it changed no value (an execution: no bit of a large batch).
        detected: Runs in which the check of the first step at which it changed something found something.
        named: Runs in which it was found under its name at that step.
        localised: Runs in which exactly the weights were named that differ; `None` for executions.
        early: Findings before it changed anything.
        seen_latent: Latent runs in which its cause was seen all the same.
        missed: Settings of runs in which it was not detected or not named.
    """

    name: str
    kind: str
    sentence: str
    runs: int
    latent: int
    detected: Share
    named: Share
    localised: Share | None
    early: int
    seen_latent: int
    missed: tuple[str, ...] = ()


class CleanRow(Frozen):
    """Clean runs under one scheme.

    Attributes:
        scheme: Weight scheme.
        steps: Checked steps.
        alarms: Steps with a finding.
    """

    scheme: str
    steps: int
    alarms: Share


class DelayRow(Frozen):
    """A partial check: its cost, and when it finds a mismatch that stays.

    Attributes:
        every: Steps from one check to the next.
        period: Every how manieth expert a check looks at.
        runs: Runs.
        found: Those in which it was found within the bound.
        mean_delay: Mean steps from the first change to the finding.
        max_delay: Largest.
        bound: What the schedule promises.
        cost: Share of the values that a step compares, on average.
    """

    every: int
    period: int
    runs: int
    found: Share
    mean_delay: float
    max_delay: int
    bound: int
    cost: float


class PowerRow(Frozen):
    """What the gap alone sees of one mismatch.

    Attributes:
        name: The injection; "none" for the floor itself.
        dtype: Dtype of the computation.
        effect: Mean |log-probability gap|, nats.
        floor: The same without a mismatch.
        power: Share of samples of each size in which the gap is above the limit of clean ones.
    """

    name: str
    dtype: str
    effect: float
    floor: float
    power: tuple[float, ...]


class Sensitivity(Frozen):
    """The whole table.

    Attributes:
        command: What makes it again.
        seed: Root of all draws.
        versions: Of what numbers may depend on.
        injections: A row a mismatch.
        clean: A row a scheme.
        delays: A row a schedule.
        tokens: Sizes of the samples of the power rows.
        false_alarms: Share of clean samples that the gap's limit lets through as alarms, by construction.
        power: A row a mismatch and dtype.
        seconds: Process time of making it.
    """

    schema_version: Literal[1] = 1
    command: str
    seed: int
    versions: dict[str, str]
    injections: tuple[InjectionRow, ...]
    clean: tuple[CleanRow, ...]
    delays: tuple[DelayRow, ...]
    tokens: tuple[int, ...]
    false_alarms: float
    power: tuple[PowerRow, ...]
    seconds: float

    def misses(self) -> tuple[InjectionRow, ...]:
        """Returns the mismatches that were not always detected at their step and named."""
        return tuple(r for r in self.injections if r.detected.total and not (r.detected.is_all and r.named.is_all))

    def num_clean_steps(self) -> int:
        """Returns the clean steps of all schemes."""
        return sum(row.steps for row in self.clean)

    def num_false_alarms(self) -> int:
        """Returns the clean steps with a finding."""
        return sum(row.alarms.count for row in self.clean) + sum(row.early for row in self.injections)

    def keeps_its_promise(self) -> bool:
        """Says whether every mismatch that changed something was found at its step and named, without false alarms."""
        return not self.misses() and self.num_false_alarms() == 0


def share(count: int, total: int) -> Share:
    """Returns a share with its Clopper-Pearson interval; [0, 1] of nothing."""
    tail = (1 - LEVEL) / 2
    lower = float(beta.ppf(tail, count, total - count + 1)) if count else 0.0
    upper = float(beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0
    return Share(count=count, total=total, lower=lower, upper=upper)


def summarize(table: Sensitivity) -> str:
    """Returns the result in a few sentences."""
    runs = sum(row.runs for row in table.injections)
    latent = sum(row.latent for row in table.injections)
    seen = sum(row.detected.total for row in table.injections)
    detected = share(sum(row.detected.count for row in table.injections), seen)
    named = share(sum(row.named.count for row in table.injections), seen)
    steps = table.num_clean_steps()
    alarms = share(sum(row.alarms.count for row in table.clean), steps)
    missed = ", ".join(row.name for row in table.misses())
    return (
        f"{len(table.injections)} mismatches in {runs:,} runs, {latent:,} of them latent. Of the {seen:,} others "
        f"{detected.count:,} were detected at the first step that they changed (at least {detected.lower:.1%}) "
        f"and {named.count:,} named (at least {named.lower:.1%}). {alarms.count:,} false alarms in {steps:,} clean "
        f"steps (at most {alarms.upper:.2%})." + (f" Not always: {missed}." if missed else "")
    )

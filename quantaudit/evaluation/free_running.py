"""What the models write when they run freely: planned, run and read, apart from the teacher-forced pass.

The plan says what is generated: a sample for the numbers, the answers that changed sides for the list, and requests
whose openings are scored. It is a pure function of the probe set and of which answers changed sides.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantaudit.core.diagnostic import Flip
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.flips import MAX_FLIPS, choose_flips, list_flips
from quantaudit.evaluation.generation import Generated, diagnose_generation, generate, sample_probes
from quantaudit.evaluation.measure import Advance, Engines
from quantaudit.evaluation.refusal_prefixes import (
    PrefixMargins,
    diagnose_prefix_margins,
    measure_prefix_margins,
    sample_requests,
)
from quantaudit.evaluation.refusal_wording import diagnose_wording
from quantaudit.evaluation.shown import Shown, put_together
from quantaudit.evaluation.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePlan:
    """Positions of probes.

    Attributes:
        sample: Generated for the numbers, ascending.
        flips: Answers that changed sides, generated for the list, most telling first.
        requests: Safety probes whose openings are scored, ascending.
    """

    sample: tuple[int, ...]
    flips: tuple[int, ...]
    requests: tuple[int, ...]

    @property
    def num_items(self) -> int:
        """Number of continuations and scored prompts, over all passes."""
        return 2 * len({*self.sample, *self.flips}) + len(self.sample) + 3 * len(self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRun:
    """What the plan gave."""

    plan: FreePlan
    generated: Generated
    margins: PrefixMargins

    def list_flips(self, probes: ProbeSet, *, show_restricted: bool) -> tuple[Flip, ...]:
        """Returns the changed answers with both texts."""
        return list_flips(probes, self.generated.answers, self.plan.flips, show_restricted=show_restricted)

    def describe(self) -> str:
        """Says how much was generated, as a limit of the audit."""
        flips = f"{len(self.plan.flips)} answers that changed sides" + (
            f" (no more than {MAX_FLIPS} are listed)" if len(self.plan.flips) == MAX_FLIPS else ""
        )
        return (
            f"Greedy generation was compared on {len(self.plan.sample):,} sampled probes, on {flips} and on the "
            f"witnesses, up to {self.generated.max_new} tokens each; every clause is teacher-forced."
        )


def plan_free_run(probes: ProbeSet, table: Table) -> FreePlan:
    """Returns the plan.

    Args:
        probes: The probe set.
        table: hi against lo.
    """
    return FreePlan(sample=sample_probes(probes), flips=choose_flips(probes, table), requests=sample_requests(probes))


def run_freely(engines: Engines, probes: ProbeSet, plan: FreePlan, *, advance: Advance) -> FreeRun:
    """Carries out the plan in hi, in lo, and in hi again; `advance` is told as many items as the plan has."""
    return FreeRun(
        plan=plan,
        generated=generate(engines, probes, plan.sample, plan.flips, advance=advance),
        margins=measure_prefix_margins(engines, probes, plan.requests, advance=advance),
    )


def diagnose_free_run(run: FreeRun, probes: ProbeSet) -> Shown:
    """Returns all numbers of the sample and of the requests."""
    return put_together(
        (
            diagnose_generation(run.generated, probes),
            diagnose_wording(run.generated, probes),
            diagnose_prefix_margins(run.margins, probes),
        )
    )

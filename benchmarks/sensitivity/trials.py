"""Runs what was drawn, and counts: mismatches found, clean steps, delays of partial checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.sensitivity.grid import SCHEMES, SEED, STEPS_AFTER, Trial, draw_settings, draw_trials
from benchmarks.sensitivity.loop import LoopSettings, SmallLoop, Stepped
from benchmarks.sensitivity.table import CleanRow, DelayRow, InjectionRow, share
from quantaudit.core.step_log import Finding, FindingKind
from quantaudit.training.checking.injections.points import InjectionAbout
from quantaudit.training.checking.injections.registry import get_plan, make_faults
from quantaudit.training.checking.injections.request import InjectionRequest
from quantaudit.training.checking.schedule import Schedule
from quantaudit.training.checking.settings import CheckSettings

SCHEDULES = (
    Schedule(every=1, period=1),
    Schedule(every=2, period=1),
    Schedule(every=4, period=1),
    Schedule(every=1, period=4),
    Schedule(every=1, period=8),
    Schedule(every=2, period=4),
)
_CLEAN_RUN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run.

    Attributes:
        onset: First step at which something really differed; `None` for a latent run.
        findings: At that step, or, of a latent run, of the whole run.
        changed: Weights that differed at that step.
        early: Findings before it.
    """

    onset: int | None
    findings: tuple[Finding, ...]
    changed: tuple[str, ...]
    early: int


def run_trial(trial: Trial, about: InjectionAbout) -> Result:
    """Runs one injection to the step after the one at which it is planted."""
    is_execution = about.kind is FindingKind.EXECUTION
    settings = replace(trial.settings, has_canary=True)
    loop = SmallLoop(settings, make_faults([trial.request], seed=settings.seed))
    steps = [loop.step(with_bits=is_execution) for _ in range(trial.request.step + STEPS_AFTER + 1)]
    differs = [step.bits_differ if is_execution else bool(step.changed) for step in steps]
    if not any(differs):
        return Result(onset=None, findings=tuple(_findings(steps)), changed=(), early=0)
    onset = differs.index(True)
    return Result(
        onset=onset,
        findings=tuple(_findings(steps[onset : onset + 1])),
        changed=steps[onset].changed,
        early=sum(not finding.latent for finding in _findings(steps[:onset])),
    )


def _findings(steps: Sequence[Stepped]) -> Iterator[Finding]:
    for step in steps:
        yield from () if step.outcome is None else step.outcome.findings


def count_injection(name: str, runs: int) -> InjectionRow:
    """Plants one mismatch many times."""
    about = get_plan(name).about
    trials = list(draw_trials(name, runs))
    results = [run_trial(trial, about) for trial in trials]
    seen = [(t, r) for t, r in zip(trials, results, strict=True) if r.onset is not None]
    latent = [result for result in results if result.onset is None]
    named = [is_named(result, about) for _, result in seen]
    found = [bool(_loud(result)) for _, result in seen]
    places = [is_localised(result) for _, result in seen]
    missed = [t for (t, _), is_right in zip(seen, named, strict=True) if not is_right]
    return InjectionRow(
        name=name,
        kind=about.kind.value,
        sentence=about.sentence,
        runs=runs,
        latent=len(latent),
        detected=share(sum(found), len(seen)),
        named=share(sum(named), len(seen)),
        localised=None if about.kind is FindingKind.EXECUTION else share(sum(places), len(seen)),
        early=sum(result.early for result in results),
        seen_latent=sum(bool(result.findings) for result in latent),
        missed=tuple(f"{t.request.in_words()} in {t.settings.weight}, seed {t.settings.seed}" for t in missed),
    )


def _loud(result: Result) -> list[Finding]:
    return [finding for finding in result.findings if not finding.latent]


def is_named(result: Result, about: InjectionAbout) -> bool:
    """Says whether every finding of the step has one of the mismatch's names."""
    loud = _loud(result)
    return bool(loud) and all(finding.name in about.found_as for finding in loud)


def is_localised(result: Result) -> bool:
    """Says whether the findings name weights that differ, and as many as do."""
    loud = _loud(result)
    return all(f.tensor in result.changed for f in loud) and sum(f.num_tensors for f in loud) == len(result.changed)


def count_clean(steps: int) -> Iterator[CleanRow]:
    """Takes clean steps in random recipes of every scheme."""
    each = -(-steps // len(SCHEMES))
    for scheme in SCHEMES:
        random = Random(f"{SEED}/clean/{scheme}")
        taken = alarms = 0
        while taken < each:
            loop = SmallLoop(replace(draw_settings(random), weight=scheme), make_faults([]))
            for _ in range(min(_CLEAN_RUN, each - taken)):
                outcome = loop.step(with_truth=False).outcome
                assert outcome is not None
                alarms += bool(outcome.findings)
                taken += 1
        yield CleanRow(scheme=scheme, steps=taken, alarms=share(alarms, taken))


def count_delays(runs: int) -> Iterator[DelayRow]:
    """Plants a mismatch in one expert of a layer, and waits for a partial check to see it."""
    for schedule in SCHEDULES:
        random = Random(f"{SEED}/delay/{schedule.every}/{schedule.period}")
        delays = [delay for _ in range(runs) if (delay := _delay(schedule, random)) is not None]
        within = sum(delay <= schedule.longest_delay for delay in delays)
        yield DelayRow(
            every=schedule.every,
            period=schedule.period,
            runs=runs,
            found=share(within, len(delays)),
            mean_delay=sum(delays) / max(1, len(delays)),
            max_delay=max(delays, default=0),
            bound=schedule.longest_delay,
            cost=1 / (schedule.every * schedule.period),
        )


def _delay(schedule: Schedule, random: Random) -> int | None:
    """Returns the steps from the first change to the finding; `None` where nothing changed."""
    first = random.randrange(1, 9)
    settings = LoopSettings(seed=random.randrange(1 << 30), has_canary=False, check=CheckSettings(schedule=schedule))
    request = InjectionRequest(name="exponent-from-ratio", step=first, options={"experts": "1"})
    loop = SmallLoop(settings, make_faults([request], seed=settings.seed))
    onset: int | None = None
    for step in range(first + schedule.longest_delay + 2):
        taken = loop.step(with_truth=onset is None and step >= first)
        if onset is None and taken.changed:
            onset = step
        if onset is not None and taken.outcome is not None and taken.outcome.findings:
            return step - onset
    return None if onset is None else schedule.longest_delay + 2

"""The story of a run under audit, read from its log: what was checked, the first bad step, and what it did.

Every view is made from this. What happened before the first bad step is compared with what happened from it on, as
means over the steps: that is a description of this run and no test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from quantaudit.core.errors import NotMeasuredError
from quantaudit.core.rl_run import HeldOut, RlResult
from quantaudit.core.step_log import Event, Finding, RunEnded, RunStarted, RunVerdict, Side, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number before the first bad step and from it on; `None` where it was not measured.

    Attributes:
        name: What it is.
        unit: Its unit.
        before: Mean over the steps before.
        after: Mean over the steps from there on.
    """

    name: str
    unit: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A run.

    Attributes:
        started: Head of the log.
        steps: Finished steps.
        findings: What was found, latent causes included, in order.
        ended: Its end; `None` for a run that goes on or was killed.
        verdict: What it comes to so far.
        first_bad: First mismatch that changed something.
        sides: Sides that were compared.
        num_checked: Checked steps.
        changes: Effects of the first mismatch; without one, the means of the whole run stand under "before".
        check_share: Share of the time that the checks took; `None` if it is not known.
    """

    started: RunStarted | None
    steps: tuple[StepRecord, ...]
    findings: tuple[Finding, ...]
    ended: RunEnded | None
    verdict: RunVerdict
    first_bad: Finding | None
    sides: tuple[Side, ...]
    num_checked: int
    changes: tuple[Change, ...]
    check_share: float | None


def tell_story(events: Iterable[Event]) -> Story:
    """Returns the story of a log.

    Raises:
        NotMeasuredError: If no step was finished.
    """
    told = tuple(events)
    steps = tuple(e for e in told if isinstance(e, StepRecord))
    if not steps:
        raise NotMeasuredError("the log holds no finished step, so there is nothing to report")
    findings = tuple(sorted((e for e in told if isinstance(e, Finding)), key=lambda finding: finding.step))
    ended = next((e for e in told if isinstance(e, RunEnded)), None)
    first_bad = next((f for f in findings if not f.latent), None)
    seconds = sum(step.seconds for step in steps)
    return Story(
        started=next((e for e in told if isinstance(e, RunStarted)), None),
        steps=steps,
        findings=findings,
        ended=ended,
        verdict=_judge(steps, first_bad) if ended is None else ended.verdict,
        first_bad=first_bad,
        sides=tuple(dict.fromkeys(check.side for step in steps for check in step.checks)),
        num_checked=sum(bool(step.checks) for step in steps),
        changes=_changes(steps, first_bad),
        check_share=sum(step.check_seconds for step in steps) / seconds if seconds else None,
    )


def is_bad(step: StepRecord) -> bool:
    """Says whether something differed at a step, found anew or not."""
    differs = any(check.differing for check in step.checks)
    return differs or (step.canary is not None and step.canary.num_differing > 0)


def _judge(steps: Sequence[StepRecord], first_bad: Finding | None) -> RunVerdict:
    if first_bad is not None:
        return RunVerdict.MISMATCH
    return RunVerdict.CLEAN if all(step.checks for step in steps) else RunVerdict.UNCHECKED


_NUMBERS: tuple[tuple[str, str, Callable[[StepRecord], float | None]], ...] = (
    ("reward", "mean of rollouts", lambda step: step.reward),
    ("KL of the policy", "nats", lambda step: step.kl),
    ("gap, mean", "nats per token", lambda step: step.gap.mean if step.gap else None),
    ("gap, KL estimate k3", "nats per token", lambda step: step.gap.k3 if step.gap else None),
    ("effective sample size", "share", lambda step: step.gap.ess if step.gap else None),
    ("same-step floor, mean", "nats per token", lambda step: step.floor.mean if step.floor else None),
)


def _changes(steps: Sequence[StepRecord], first_bad: Finding | None) -> tuple[Change, ...]:
    border = math.inf if first_bad is None else first_bad.step
    before, after = [s for s in steps if s.step < border], [s for s in steps if s.step >= border]
    changes = (
        Change(name=name, unit=unit, before=_mean(map(read, before)), after=_mean(map(read, after)))
        for name, unit, read in _NUMBERS
    )
    return tuple(change for change in changes if change.before is not None or change.after is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite else None


def headline(story: Story) -> str:
    """Returns the result in one sentence."""
    first = story.first_bad
    span = f"{len(story.steps):,} step{'s' if len(story.steps) != 1 else ''}"
    if first is not None:
        place = f" in {first.tensor}" if first.tensor else ""
        more = f" and {first.num_tensors - 1} more" if first.num_tensors > 1 else ""
        return f"Train and serve part at step {first.step}: {first.name}{place}{more}."
    if story.verdict is RunVerdict.CLEAN:
        return f"Train and serve are bit-identical at every one of {span}."
    missing = len(story.steps) - story.num_checked
    why = story.ended.reason if story.ended is not None and story.ended.reason else ""
    return f"Nothing was found, but not everything was checked ({missing:,} of {span} were not). {why}".strip()


def describe_rewards(result: RlResult | None) -> tuple[str, ...]:
    """Returns a sentence for every greedy reward that was measured before and after."""
    if result is None:
        return ()
    measured = ((result.held_out, "held-out"), (result.confirmed, "other"))
    return tuple(_describe_reward(reward, kind) for reward, kind in measured if reward is not None)


def _describe_reward(reward: HeldOut, kind: str) -> str:
    interval = reward.rise.interval
    verdict = "risen" if reward.has_risen else "not shown to have risen"
    return (
        f"greedy reward on {reward.rise.num_probes} {kind} {reward.family} prompts: {reward.before:.3f} -> "
        f"{reward.after:.3f}, {reward.rise.value:+.3f} [{interval.lower:+.3f}, {interval.upper:+.3f}]: {verdict}"
    )


def explain(finding: Finding) -> str:
    """Returns what is known of a finding in a few sentences."""
    between = f" Between {finding.between[0].value} and {finding.between[1].value}." if finding.between else ""
    rule = f" {finding.field}: {finding.train} in the trainer, {finding.serve} in the engine." if finding.field else ""
    share = f" Explains {finding.explains:.0%} of what differs." if finding.explains is not None else ""
    values = f" {finding.num_differing:,} values differ." if finding.num_differing else ""
    latent = " It changes no value yet." if finding.latent else ""
    return f"{finding.sentence}{between}{rule}{values}{share}{latent}"


def place_of(finding: Finding) -> str:
    """Returns where a finding's first difference lies: tensor, expert, row and column."""
    if not finding.tensor:
        return "no weight: the computation"
    expert = "" if finding.expert is None else f", expert {finding.expert}"
    place = f", at {list(finding.coordinate)}" if finding.coordinate else ""
    more = f" (and {finding.num_tensors - 1} more)" if finding.num_tensors > 1 else ""
    return f"{finding.tensor}{expert}{place}{more}"

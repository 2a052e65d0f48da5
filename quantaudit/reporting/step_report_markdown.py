"""The report of a run under audit as markdown, with its charts as pictures beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantaudit.core.rl_run import RlResult
from quantaudit.core.step_log import Event
from quantaudit.reporting.markdown_text import code, prose, table
from quantaudit.reporting.step_report import Story, describe_rewards, explain, headline, place_of, tell_story
from quantaudit.reporting.step_report_console import write_mean

_MOST_FINDINGS = 50


# Said of the rewards in every view.
REWARDS_NOTE = (
    "Greedy answers of the first and of the last weights to the same prompts, none of them trained, and the paired "
    "rise with its 95 % interval over clusters. The held-out prompts are those that settings are chosen by; the other "
    "ones were asked once, when the run was over."
)


def render_run_markdown(
    events: Iterable[Event], *, pictures: Iterable[tuple[str, str]] = (), result: RlResult | None = None
) -> str:
    """Returns the report.

    Args:
        events: The log.
        pictures: Title and file name of every chart.
        result: What training was good for, where it was measured.

    Raises:
        NotMeasuredError: If no step was finished.
    """
    return "\n\n".join(_parts(tell_story(events), tuple(pictures), result)) + "\n"


def _parts(story: Story, pictures: tuple[tuple[str, str], ...], result: RlResult | None) -> Iterator[str]:
    yield f"# {story.verdict.value.upper()}: {prose(headline(story))}"
    first = story.first_bad
    if first is not None:
        facts = {
            "step": str(first.step),
            "mismatch": f"{first.name} ({first.kind.value}{', ' + first.code if first.code else ''})",
            "where": place_of(first),
            "rule": f"{first.field}: {first.train} / {first.serve}" if first.field else "-",
        }
        yield table(("the first bad step", ""), [(key, prose(value)) for key, value in facts.items()])
        yield prose(explain(first))
    if story.changes:
        yield "## What it did" if first is not None else "## Means of the run"
        head = ("", "before", "from there on", "unit") if first is not None else ("", "mean", "", "unit")
        rows = [(c.name, write_mean(c.before), write_mean(c.after) if first else "", c.unit) for c in story.changes]
        yield table(head, rows)
    rewards = describe_rewards(result)
    if rewards:
        yield "## Reward"
        yield "\n".join(f"- {prose(sentence)}" for sentence in rewards)
        yield REWARDS_NOTE
    if pictures:
        yield "## Timeline"
        yield "\n\n".join(f"![{prose(title)}]({file})" for title, file in pictures)
    if story.findings:
        yield "## Findings"
        yield table(("step", "mismatch", "kind", "where", "what"), [*_finding_rows(story)])
    yield "## What was checked"
    yield "\n".join(f"- {line}" for line in _checked(story))


def _finding_rows(story: Story) -> Iterator[tuple[str, ...]]:
    for finding in story.findings[:_MOST_FINDINGS]:
        latent = " (latent)" if finding.latent else ""
        yield (
            str(finding.step),
            f"{code(finding.name, in_table=True)}{latent}",
            finding.kind.value,
            prose(place_of(finding)),
            prose(explain(finding)),
        )


def _checked(story: Story) -> Iterator[str]:
    sides = ", ".join(side.value for side in story.sides) or "none"
    yield f"{story.num_checked:,} of {len(story.steps):,} steps; sides: {sides}."
    last = next((step for step in reversed(story.steps) if step.checks), None)
    if last is not None:
        for check in last.checks:
            seen = f"{check.num_checked:,} of {check.num_matrices:,} expert matrices"
            yield f"Fingerprint of {check.side.value} at step {last.step}: {code(check.values)} ({seen})."
    canaries = [step.canary for step in story.steps if step.canary is not None]
    if canaries:
        last_canary = canaries[-1]
        words = prose(last_canary.declared)
        yield f"Canary at {len(canaries):,} steps, {last_canary.num_values:,} numbers each: {words}."
    transports = [step.transport for step in story.steps if step.transport is not None]
    if transports:
        count = transports[-1].num_randomised
        yield f"Transport checked {len(transports):,} times, {count:,} tensors overwritten each."
    if story.check_share is not None:
        yield f"The checks took {story.check_share:.1%} of the time."
    if story.started is not None:
        yield from _origin(story)


def _origin(story: Story) -> Iterator[str]:
    started = story.started
    assert started is not None
    if started.inject:
        yield f"Planted: {', '.join(code(text) for text in started.inject)}."
    if started.command:
        yield f"Made by {code(started.command)}."
    for name, digest in started.arithmetic.items():
        yield f"Arithmetic of {prose(name)}: {code(digest)}."
    if story.ended is None:
        yield "The log has no end: the run goes on, or was killed."

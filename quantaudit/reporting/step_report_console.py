"""The terminal summary of a run under audit: the verdict first, at most 25 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.text import Text

from quantaudit.core.rl_run import RlResult
from quantaudit.core.step_log import Event, RunVerdict
from quantaudit.reporting.plaintext import clip, show_hidden
from quantaudit.reporting.step_report import (
    Change,
    Story,
    describe_rewards,
    explain,
    headline,
    is_bad,
    place_of,
    tell_story,
)
from quantaudit.reporting.terminal import MIN_WIDTH, render_lines, to_ascii, write_lines

_MOST_FINDINGS = 2
_STYLES = {RunVerdict.CLEAN: "bold green", RunVerdict.MISMATCH: "bold red", RunVerdict.UNCHECKED: "bold yellow"}


def render_run_console(
    events: Iterable[Event],
    *,
    width: int,
    color: bool,
    location: str | None = None,
    result: RlResult | None = None,
) -> str:
    """Returns the summary, ending in a newline, at most 25 lines.

    Args:
        events: The log.
        width: Columns; fewer than 60 are taken as 60.
        color: Whether to write ANSI colours.
        location: Where the report was written, if it was.
        result: What training was good for, where it was measured.

    Raises:
        NotMeasuredError: If no step was finished.
    """
    columns = max(width, MIN_WIDTH)
    return render_lines(_lines(tell_story(events), columns, location, result), width=columns, color=color)


def print_run_summary(
    events: Iterable[Event], *, stream: TextIO, location: str | None = None, result: RlResult | None = None
) -> None:
    """Writes the summary to a stream: coloured on a terminal only, and never where NO_COLOR is set."""
    told = tuple(events)

    def render(width: int, color: bool) -> str:
        return render_run_console(told, width=width, color=color, location=location, result=result)

    write_lines(render, stream)


def _lines(story: Story, width: int, location: str | None, result: RlResult | None) -> Iterator[Text]:
    word = story.verdict.value.upper()
    rewards = describe_rewards(result)
    started = story.started
    recipe = f" under {started.recipe}" if started is not None and started.recipe else ""
    run = f"{started.run.value} run" if started is not None else "run"
    yield Text(word, style=_STYLES[story.verdict]).append(
        clip(to_ascii(f"  {run} of {len(story.steps):,} steps{recipe}"), width - len(word)), style="not bold default"
    )
    yield from _wrapped(headline(story), width, 2)
    yield Text()
    yield Text(clip(f"checks: {_checks(story)}", width))
    yield Text(clip(f"steps:  {_strip(story, width - 8)}", width))
    yield from _findings(story, width, most=1 if rewards and len(story.findings) > 1 else 2)
    if story.changes:
        yield Text()
        yield from (Text(clip(line, width)) for line in _effects(story))
    if story.ended is not None and story.ended.reason:
        yield from _wrapped(story.ended.reason, width, 2, style="yellow")
    if location is not None:
        yield Text(f"report: {show_hidden(location)}")
    for sentence in rewards:
        yield from _wrapped(sentence, width, 2)


def _checks(story: Story) -> str:
    sides = ", ".join(side.value for side in story.sides) or "no side"
    canaries = sum(step.canary is not None for step in story.steps)
    cost = "" if story.check_share is None else f"; {story.check_share:.1%} of the time"
    return f"{story.num_checked:,} of {len(story.steps):,} steps ({sides}), {canaries:,} canaries{cost}"


def _strip(story: Story, width: int) -> str:
    """Returns the timeline in one line: . clean, X differs, ? not checked; a character may stand for several steps."""
    count = min(len(story.steps), max(1, width))
    marks = []
    for place in range(count):
        part = story.steps[place * len(story.steps) // count : (place + 1) * len(story.steps) // count]
        marks.append("X" if any(map(is_bad, part)) else "?" if not all(step.checks for step in part) else ".")
    return "".join(marks)


def _findings(story: Story, width: int, *, most: int) -> Iterator[Text]:
    """Yields the first findings, each explained in so many lines at most: all of it is to fit on a screen."""
    for finding in story.findings[:_MOST_FINDINGS]:
        latent = " (latent)" if finding.latent else ""
        code = f" {finding.code}" if finding.code else ""
        line = f"step {finding.step}: {finding.name}{code}{latent}, {place_of(finding)}"
        yield Text(clip(to_ascii(line), width), style="yellow" if finding.latent else "red")
        yield from _wrapped(explain(finding), width - 2, most, indent="  ")
    if len(story.findings) > _MOST_FINDINGS:
        yield Text(f"and {len(story.findings) - _MOST_FINDINGS} more findings in the log")


def _effects(story: Story) -> Iterator[str]:
    has_both = story.first_bad is not None
    yield f"{'':24}{'before':>12}{'from there on' if has_both else '':>16}"
    for change in story.changes:
        after = f"{write_mean(change.after):>16}" if has_both else ""
        yield f"{change.name:24}{write_mean(change.before):>12}{after}  {change.unit}"


def write_mean(value: Change | float | None) -> str:
    """Returns a mean with three significant digits; a dash where there is none."""
    return f"{value:.3g}" if isinstance(value, float | int) else "-"


def _wrapped(text: str, width: int, most: int, *, style: str = "", indent: str = "") -> list[Text]:
    lines = textwrap.wrap(to_ascii(text), width - len(indent)) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], clip(" ".join(lines[most - 1 :]), width - len(indent))]
    return [Text(f"{indent}{line}", style=style) for line in lines]

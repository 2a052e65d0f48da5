"""The charts of a run under audit: the timeline of checks, and reward, KL and gap with the first bad step marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from quantaudit.core.diagnostic import Series, Topic
from quantaudit.core.step_log import Side, StepRecord
from quantaudit.reporting.chart import Chart
from quantaudit.reporting.marks import Anchor, Grid, Line, Mark, Point, Shape, Swatch, Tip, Words
from quantaudit.reporting.palette import Palette
from quantaudit.reporting.series_chart import build_series
from quantaudit.reporting.step_report import Story

_ROW, _TOP, _LEFT, _MOST_COLUMNS, _MOST_LABELS = 22, 30, 96, 120, 8
_INSET = 0.03  # what `series_chart` leaves free at both ends of a line
_CANARY, _TRANSPORT = "canary", "transport"
_LEGEND = ("same", "differs")


def build_timeline(story: Story, palette: Palette) -> Chart:
    """Returns the timeline: a row a side, a cell a step, or a few steps where there are many."""
    rows = [*(side.value for side in story.sides if side is not Side.TRAINER), _CANARY]
    if any(step.transport is not None for step in story.steps):
        rows.append(_TRANSPORT)
    columns = _columns(story.steps)
    states = [[_state(row, part) for part in columns] for row in rows]
    cells: dict[bool | None, list[tuple[int, int]]] = {True: [], False: [], None: []}
    for i, row in enumerate(states):
        for j, state in enumerate(row):
            cells[state].append((i, j))
    height = _ROW * len(rows)
    grid = Grid(
        y=_TOP,
        height=height,
        num_rows=len(rows),
        num_columns=len(columns),
        fills=((palette.passing, tuple(cells[True])), (palette.failing, tuple(cells[False]))),
        hollow=tuple(cells[None]),
        hollow_color=palette.floor,
        gap_color=palette.card,
    )
    marks: list[Mark] = [*_legend(palette), grid, *_labels(rows, columns, height, palette)]
    marks += _first_bad(story, columns, height, palette)
    per = "a step" if len(columns) == len(story.steps) else "a few steps"
    return Chart(
        name="timeline",
        title="Checks of every step",
        caption=f"One row a side, one cell {per}. Hollow: not checked. The diamond is the first bad step.",
        height=_TOP + height + 40,
        left=_LEFT,
        right=18,
        marks=tuple(marks),
        palette=palette,
    )


def build_run_charts(story: Story, palette: Palette) -> tuple[Chart, ...]:
    """Returns the timeline and a chart for every number that was measured at two steps or more."""
    charts = [build_timeline(story, palette)]
    for series in run_series(story):
        chart = build_series(series, palette)
        if chart is not None:
            charts.append(_with_border(chart, series, story, palette))
    return tuple(charts)


def run_series(story: Story) -> Iterator[Series]:
    """Yields the numbers of a run along its steps."""
    steps = story.steps
    floor = tuple(step.floor.mean if step.floor else None for step in steps)
    numbers: tuple[tuple[str, str, str, bool | None, Callable[[StepRecord], float | None]], ...] = (
        ("reward", "Reward of the rollouts", "mean", True, lambda s: s.reward),
        ("loss", "Loss", "", None, lambda s: s.loss),
        ("kl", "KL of the policy", "nats", None, lambda s: s.kl),
        ("gap", "Log-probability gap, rollout against trainer", "nats", False, lambda s: s.gap.mean if s.gap else None),
        ("gap-p99", "The same, 99th percentile", "nats", False, lambda s: s.gap.p99 if s.gap else None),
        ("ess", "Effective sample size", "share", True, lambda s: s.gap.ess if s.gap else None),
    )
    for name, title, unit, larger_is_better, read in numbers:
        values = tuple(map(read, steps))
        if sum(value is not None for value in values) > 1:
            yield Series(
                name=name,
                topic=Topic.TOKENS,
                title=title,
                axis="step",
                unit=unit,
                larger_is_better=larger_is_better,
                labels=tuple(str(step.step) for step in steps),
                values=values,
                floor=floor if name == "gap" and any(f is not None for f in floor) else (),
            )


def _columns(steps: Sequence[StepRecord]) -> list[Sequence[StepRecord]]:
    count = min(len(steps), _MOST_COLUMNS)
    return [steps[i * len(steps) // count : (i + 1) * len(steps) // count] for i in range(count)]


def _state(row: str, part: Sequence[StepRecord]) -> bool | None:
    """Says whether a side was the same at all steps of a cell; `None` where it was not looked at at any."""
    seen: list[bool] = []
    for step in part:
        if row == _CANARY:
            seen += [] if step.canary is None else [step.canary.num_differing == 0]
        elif row == _TRANSPORT:
            seen += [] if step.transport is None else [not step.transport.not_restored]
        else:
            seen += [not check.differing for check in step.checks if check.side.value == row]
    return all(seen) if seen else None


def _legend(palette: Palette) -> Iterator[Mark]:
    colors = (palette.passing, palette.failing)
    for i, (word, color) in enumerate(zip(_LEGEND, colors, strict=True)):
        yield Swatch(dx=i * 84, y=4, width=12, height=12, color=color)
        yield Words(x=0, y=14, dx=i * 84 + 18, text=word, color=palette.muted)


def _labels(
    rows: Sequence[str], columns: Sequence[Sequence[StepRecord]], height: float, palette: Palette
) -> Iterator[Mark]:
    for i, row in enumerate(rows):
        y = _TOP + _ROW * (i + 0.5) + 4
        yield Words(x=0, y=y, dx=-8, text=row, color=palette.ink, anchor=Anchor.END)
        for j, part in enumerate(columns):
            words = {True: "same", False: "differs", None: "not checked"}[_state(row, part)]
            text = f"step {part[0].step}\n{row}: {words}"
            yield Tip(start=j / len(columns), end=(j + 1) / len(columns), y=_TOP + _ROW * i, height=_ROW, text=text)
    every = max(1, -(-len(columns) // _MOST_LABELS))
    for j in range(0, len(columns), every):
        place = (j + 0.5) / len(columns)
        text = str(columns[j][0].step)
        yield Words(x=place, y=_TOP + height + 16, text=text, color=palette.muted, anchor=Anchor.MIDDLE)
    yield Words(x=0.5, y=_TOP + height + 34, text="step", color=palette.muted, anchor=Anchor.MIDDLE)


def _first_bad(
    story: Story, columns: Sequence[Sequence[StepRecord]], height: float, palette: Palette
) -> Iterator[Mark]:
    if story.first_bad is None:
        return
    for j, part in enumerate(columns):
        if any(step.step == story.first_bad.step for step in part):
            place = (j + 0.5) / len(columns)
            yield Point(x=place, y=_TOP - 6, shape=Shape.DIAMOND, color=palette.failing, radius=5)
            yield Line(x0=place, y0=_TOP, x1=place, y1=_TOP + height, color=palette.ink, is_dashed=True)


def _with_border(chart: Chart, series: Series, story: Story, palette: Palette) -> Chart:
    """Returns a chart with an upright line at the first bad step."""
    if story.first_bad is None:
        return chart
    numbers = [int(label) for label in series.labels]
    span = numbers[-1] - numbers[0]
    place = _INSET + (1 - 2 * _INSET) * (story.first_bad.step - numbers[0]) / span
    line = Line(x0=place, y0=26, x1=place, y1=chart.height - 44, color=palette.failing, width=1.5, is_dashed=True)
    words = Words(x=place, y=22, text="first bad step", color=palette.failing, anchor=Anchor.MIDDLE)
    return replace(chart, marks=(*chart.marks, line, words))

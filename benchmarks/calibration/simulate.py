"""Turns a rule in a situation into a row: once with the truth on the margin, once without damage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.calibration.laws import BoundedLaw, FlipLaw, draw_bounded, draw_flips
from benchmarks.calibration.layouts import Draw, Layout, draw_clustered
from benchmarks.calibration.rules import (
    NUM_CHECKED,
    Answers,
    MeanRule,
    ask_contrasts,
    ask_flips,
    ask_means,
    ask_sequentially,
    bound_means,
    bound_with_companion,
    check_flips,
    check_means,
    is_admitted,
    is_rejected,
)
from benchmarks.calibration.table import Cell, RuleName, rate
from quantaudit.core.contract import Direction
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.sample import gather

MEAN_MARGIN = 0.5  # in standard deviations of a probe's difference
CONTRAST_MARGIN = 0.7
CHUNK = 4_000_000  # values drawn at once


def summarize_cell(
    rule: RuleName, law: str, layout: Layout, direction: Direction, margin: float, on: Answers, inside: Answers
) -> Cell:
    """Returns the row of two sets of answers: on the margin, and without damage."""
    num = len(on.admit_R)
    admitted, rejected = float(np.mean(is_admitted(inside))), float(np.mean(is_rejected(inside)))
    return Cell(
        rule=rule,
        law=law,
        num_probes=layout.num_probes,
        num_clusters=layout.num_clusters,
        sizes=layout.sizes,
        icc=layout.icc,
        direction=direction,
        margin=margin,
        replicates=num,
        false_admit=rate(float(np.mean(is_admitted(on))), num),
        false_reject=rate(float(np.mean(is_rejected(on))), num),
        false_reject_inside=rate(rejected, num),
        coverage=rate(float(np.mean(on.covers_R)), num),
        power=rate(admitted, num),
        inconclusive=rate(max(0.0, 1 - admitted - rejected), num),
        refused=rate(float(np.mean(on.refused_R)), num),
    )


def join(parts: list[Answers]) -> Answers:
    """Puts the answers of several chunks into one."""
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def chunks(num: int, num_probes: int) -> list[int]:
    """Splits replicates so that no draw is larger than CHUNK values."""
    most = max(1, CHUNK // num_probes)
    return [most] * (num // most) + ([num % most] if num % most else [])


def simulate_means(
    rng: np.random.Generator, layout: Layout, num: int, name: str, law: Draw, *, rule: MeanRule = bound_means
) -> Iterator[Cell]:
    """Simulates cluster means, both directions on the same draws.

    Args:
        rng: Generator of this cell.
        layout: How probes lie.
        num: Replicates.
        name: Name of the law.
        law: Draws standardised differences.
        rule: What bounds a mean; a planted one is not compared with the public path.
    """
    margin = MEAN_MARGIN
    parts: dict[tuple[Direction, float], list[Answers]] = {}
    for size in chunks(num, layout.num_probes):
        values_RN = draw_clustered(rng, layout, size, law)
        found = rule(values_RN, layout.sizes_G())
        for direction in Direction:
            for truth in (margin, 0.0):
                answers = ask_means(found, layout, truth=truth, margin=margin, direction=direction)
                parts.setdefault((direction, truth), []).append(answers)
                if rule is bound_means and truth and len(parts[direction, truth]) == 1:
                    first = values_RN[:NUM_CHECKED] + truth
                    check_means(first, layout, answers, margin=margin, direction=direction)
    for direction in Direction:
        on, inside = (join(parts[direction, truth]) for truth in (margin, 0.0))
        yield summarize_cell(RuleName.MEAN, name, layout, direction, margin, on, inside)


def flip_margin(layout: Layout, law: FlipLaw) -> float:
    """Returns a margin that so many probes can decide: 2 or 10 points if flips are rare, else 10 or 20."""
    return (0.1 if layout.num_probes >= 300 else 0.2) if law.is_two_way else (0.02 if layout.num_probes >= 300 else 0.1)


def simulate_flips(rng: np.random.Generator, layout: Layout, num: int, name: str, law: FlipLaw) -> Iterator[Cell]:
    """Simulates flips with the design effect of their companion, both directions on the same draws."""
    margin = flip_margin(layout, law)
    parts: dict[tuple[Direction, float], list[Answers]] = {}
    for size in chunks(num, layout.num_probes):
        for truth in (margin, 0.0):
            values_RN, companion_RN = draw_flips(rng, layout, size, law, truth)
            found = bound_with_companion(values_RN, companion_RN, layout)
            for direction in Direction:
                answers = ask_flips(found, layout, truth=truth, margin=margin, direction=direction)
                parts.setdefault((direction, truth), []).append(answers)
                if truth and len(parts[direction, truth]) == 1:
                    check_flips(values_RN, companion_RN, layout, answers, margin=margin, direction=direction)
    for direction in Direction:
        on, inside = (join(parts[direction, truth]) for truth in (margin, 0.0))
        yield summarize_cell(RuleName.FLIPS, name, layout, direction, margin, on, inside)


def simulate_contrasts(
    rng: np.random.Generator, layout: Layout, num: int, name: str, law: Draw, *, are_shared: bool
) -> Iterator[Cell]:
    """Simulates the difference of two groups in the same or in other clusters; the first has twice the spread."""
    names = layout.names()
    others = names if are_shared else [f"other {cluster}" for cluster in names]
    shared_RN = draw_clustered(rng, layout, num, law)
    first_RN = 2 * draw_clustered(rng, layout, num, law)
    second_RN = draw_clustered(rng, layout, num, law)
    if are_shared:
        first_RN, second_RN = first_RN + shared_RN, second_RN + shared_RN
    pairs = zip(first_RN, second_RN, strict=True)
    estimates = [estimate_contrast(gather(one_N, names), gather(two_N, others)) for one_N, two_N in pairs]
    where = "shared" if are_shared else "disjoint"
    for direction in Direction:
        on, inside = (
            ask_contrasts(estimates, truth=truth, margin=CONTRAST_MARGIN, direction=direction)
            for truth in (CONTRAST_MARGIN, 0.0)
        )
        label = f"{name}, {where} clusters"
        yield summarize_cell(RuleName.CONTRAST, label, layout, direction, CONTRAST_MARGIN, on, inside)


def simulate_sequential(
    rng: np.random.Generator, layout: Layout, num: int, name: str, law: BoundedLaw, *, rule: RuleName
) -> Iterator[Cell]:
    """Simulates tests that are read after every cluster and stopped at the first decision."""
    margin = 0.2 if rule is RuleName.SEQUENTIAL_MEAN else 0.1
    draws = {truth: draw_bounded(rng, layout, num, law, truth) for truth in (margin, 0.0)}
    for direction in Direction:
        on, inside = (
            ask_sequentially(values_RN, layout, truth=truth, margin=margin, direction=direction, bound=1.0)
            for truth, values_RN in draws.items()
        )
        yield summarize_cell(rule, name, layout, direction, margin, on, inside)

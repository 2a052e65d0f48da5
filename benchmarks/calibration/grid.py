"""The grid: every rule in every situation, each with a generator of its own.

The seed of a cell is the root seed and a hash of its name, so cells can be added, left out or run alone without moving
another one's numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from benchmarks.calibration.contracts import AtMargin, Situation, simulate_contract
from benchmarks.calibration.laws import BOUNDED_FLIPS, BOUNDED_LAWS, FLIP_LAWS, LAWS
from benchmarks.calibration.layouts import Layout, Sizes, layouts
from benchmarks.calibration.simulate import (
    simulate_contrasts,
    simulate_flips,
    simulate_means,
    simulate_sequential,
)
from benchmarks.calibration.table import Cell, RuleName

SEED = 20261130
Simulate = Callable[[np.random.Generator, Layout, int], Iterator[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One simulation, which yields a row a direction.

    Attributes:
        name: Unique; the seed follows from it.
        rule: What is simulated.
        layout: How probes lie.
        simulate: Does it.
        is_slow: Whether the rule is called once a replicate, and gets half the replicates.
    """

    name: str
    rule: RuleName
    layout: Layout
    simulate: Simulate
    is_slow: bool


def carry_out(task: Task, replicates: int) -> list[Cell]:
    """Runs a task with the generator that its name stands for."""
    digest = hashlib.sha256(task.name.encode()).digest()
    rng = np.random.default_rng([SEED, int.from_bytes(digest[:8], "big")])
    return list(task.simulate(rng, task.layout, max(1, replicates // 2) if task.is_slow else replicates))


def tasks() -> list[Task]:
    """Lists the whole grid."""
    return [*_mean_tasks(), *_flip_tasks(), *_contrast_tasks(), *_contract_tasks(), *_sequential_tasks()]


def _task(rule: RuleName, layout: Layout, law: str, simulate: Simulate, *, is_slow: bool = False) -> Task:
    where = f"{layout.num_probes}/{layout.num_clusters}/{layout.sizes.value}/{layout.icc}"
    return Task(name=f"{rule.value}/{law}/{where}", rule=rule, layout=layout, simulate=simulate, is_slow=is_slow)


def _mean_tasks() -> list[Task]:
    return [
        _task(RuleName.MEAN, layout, name, partial(simulate_means, name=name, law=law))
        for layout, (name, law) in product(layouts(), LAWS.items())
    ]


def _flip_tasks() -> list[Task]:
    return [
        _task(RuleName.FLIPS, layout, name, partial(simulate_flips, name=name, law=law))
        for layout, (name, law) in product(layouts(), FLIP_LAWS.items())
    ]


def _contrast_tasks() -> list[Task]:
    chosen = [
        layout
        for layout in layouts()
        if layout.num_probes == 300 and layout.num_clusters in (5, 10, 36) and layout.icc in (0.0, 0.5)
    ]
    names = ("normal", "skewed to improvement", "heavy and skewed")
    return [
        _task(
            RuleName.CONTRAST,
            layout,
            f"{name}/{are_shared}",
            partial(simulate_contrasts, name=name, law=LAWS[name], are_shared=are_shared),
            is_slow=True,
        )
        for layout, name, are_shared in product(chosen, names, (True, False))
    ]


def _contract_tasks() -> list[Task]:
    places = [
        Layout(num_probes=num_probes, num_clusters=num_clusters, sizes=sizes, icc=icc)
        for (num_probes, num_clusters), (sizes, icc) in product(
            ((100, 10), (300, 36), (600, 36)), ((Sizes.EQUAL, 0.1), (Sizes.UNEQUAL, 0.5))
        )
    ]
    situations = [
        Situation(num_clauses=num, at_margin=at_margin, share_probes=share)
        for num, at_margin, share in product((5, 12), AtMargin, (True, False))
    ]
    names = ("normal", "skewed to damage", "skewed to improvement")
    return [
        _task(
            RuleName.CONTRACT,
            layout,
            situation.describe(name),
            partial(simulate_contract, situation=situation, name=name, law=LAWS[name]),
            is_slow=True,
        )
        for layout, situation, name in product(places, situations, names)
    ]


def _sequential_tasks() -> list[Task]:
    chosen = [
        layout
        for layout in layouts()
        if layout.num_probes >= 300 and layout.num_clusters >= 10 and layout.icc in (0.0, 0.5)
    ]
    return [
        _task(rule, layout, name, partial(simulate_sequential, name=name, law=law, rule=rule), is_slow=True)
        for rule, laws in ((RuleName.SEQUENTIAL_MEAN, BOUNDED_LAWS), (RuleName.SEQUENTIAL_FLIPS, BOUNDED_FLIPS))
        for layout, (name, law) in product(chosen, laws.items())
    ]

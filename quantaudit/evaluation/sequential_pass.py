"""The pass in chunks, each a small copy of the whole, so that what was seen at the end of one may stop it.

Clusters stay whole, since a bet is placed on a cluster. They are dealt within kinds (clusters of the same families):
in the order of a hash of their names, which nobody chose and which knows nothing of lo, and into chunks of equal
number. So every chunk has the families in about the proportions of the whole, and the expected damage of its clusters
is about that of the whole. The expected growth of a wealth over such a chunk is then at most what it would be if every
cluster had the mean damage (the product of numbers of a given sum is largest where they are equal). So looks at the
ends of chunks hold where some family is beyond the margin and the whole is not. Inside a chunk the order is free, and
batches are sorted by length as always.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.plan import Batch, plan_batches
from quantaudit.evaluation.slices import clusters_at
from quantaudit.stats import order_by_name

NUM_CHUNKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Probes in the order of their chunks, and in their old order within a chunk.

    Attributes:
        probes: All of them.
        ends: Number of probes up to the end of each chunk, ascending.
    """

    probes: ProbeSet
    ends: tuple[int, ...]

    def first(self, end: int) -> ProbeSet:
        """Returns the first probes."""
        return self.probes.model_copy(update={"probes": self.probes.probes[:end]})


def plan_course(probes: ProbeSet) -> Course:
    """Deals the clusters of a probe set into chunks; chunks that get none are left out."""
    by_cluster: defaultdict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(clusters_at(probes, np.arange(len(probes.probes)))):
        by_cluster[name].append(position)
    by_kind: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, positions in by_cluster.items():
        by_kind[tuple(sorted({probes.probes[i].family for i in positions}))].append(name)
    chunks: list[list[int]] = [[] for _ in range(NUM_CHUNKS)]
    for names in by_kind.values():
        for rank, name in enumerate(order_by_name(names)):
            chunks[rank * NUM_CHUNKS // len(names)] += by_cluster[name]
    ordered = [position for chunk in chunks for position in sorted(chunk)]
    return Course(
        probes=probes.model_copy(update={"probes": tuple(probes.probes[i] for i in ordered)}),
        ends=tuple(accumulate(len(chunk) for chunk in chunks if chunk)),
    )


def batches_of(course: Course, batch_size: int) -> list[Batch]:
    """Returns the batches of every chunk in turn; none reaches over the end of a chunk."""
    batches: list[Batch] = []
    for start, end in pairwise((0, *course.ends)):
        chunk = course.probes.model_copy(update={"probes": course.probes.probes[start:end]})
        for batch in plan_batches(chunk, batch_size):
            batches.append(replace(batch, index_P=tuple(start + i for i in batch.index_P)))
    return batches

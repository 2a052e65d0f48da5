"""What the log-probability gap alone can see, for engines that nobody can look into.

A run without a mismatch gives the floor: the distance between two right computations in different orders. The detector
takes the mean |gap| of a step's tokens and raises an alarm where it is above what clean samples of as many tokens reach
once in a hundred. Samples are drawn anew from the sequences of long runs, whole sequences at a time, for tokens of one
sequence belong together; clean sequences that set the limit are not those that it is tried on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.sensitivity.grid import SEED
from benchmarks.sensitivity.loop import LoopSettings, SmallLoop
from benchmarks.sensitivity.table import PowerRow
from quantaudit.core.recipe import ComputeDtype
from quantaudit.training.checking.injections.registry import make_faults
from quantaudit.training.checking.injections.request import InjectionRequest

TOKENS = (20, 80, 320, 1280)
FALSE_ALARMS = 0.01
MISMATCHES = (
    "another-rule",
    "stale",
    "tensor-not-synced",
    "previous-step",
    "scales-not-refreshed",
    "fp32-masters",
    "placement-change",
    "swapped-gate-up",
    "activation-format",
    "router-precision",
    "state-precision",
    "latent-precision",
    "cache-not-flushed",
)
_PER_SEQUENCE = 5
_RESAMPLES = 2000
_RUNS, _CLEAN_RUNS = 4, 16
_CLEAN_TIMES = 6  # as many sequences: rare jumps decide where the limit lies

Values = NDArray[np.float64]


def measure_power(sequences: int) -> Iterator[PowerRow]:
    """Yields a row for every mismatch and dtype.

    Args:
        sequences: Sequences that are written for each.
    """
    for dtype in ComputeDtype:
        limit_on, tried_on = (read_clean(dtype, sequences, first=first) for first in (0, _CLEAN_RUNS))
        rng = np.random.default_rng(SEED)
        limits = [float(np.quantile(draw_means(limit_on, n, rng), 1 - FALSE_ALARMS)) for n in TOKENS]
        floor = float(limit_on.mean())
        for name in ("", *MISMATCHES):
            gaps = read_gaps(name, dtype, sequences, range(_RUNS)) if name else tried_on
            above = [float((draw_means(gaps, n, rng) > m).mean()) for n, m in zip(TOKENS, limits, strict=True)]
            yield PowerRow(
                name=name or "none", dtype=dtype.value, effect=float(gaps.mean()), floor=floor, power=tuple(above)
            )


def read_clean(dtype: ComputeDtype, sequences: int, *, first: int) -> Values:
    """Returns |gap| of clean sequences, from models of their own."""
    return read_gaps("", dtype, _CLEAN_TIMES * sequences, range(first, first + _CLEAN_RUNS))


def read_gaps(name: str, dtype: ComputeDtype, sequences: int, seeds: Sequence[int]) -> Values:
    """Returns |gap| of every token of many sequences, [sequences, tokens].

    Args:
        name: The mismatch; none if empty.
        dtype: Dtype of the computation.
        sequences: How many.
        seeds: Of the models that they are spread over.
    """
    found = []
    for seed in seeds:
        settings = LoopSettings(seed=seed, dtype=dtype, has_canary=False)
        requests = [InjectionRequest(name=name, step=1)] if name else []
        loop = SmallLoop(settings, make_faults(requests, seed=seed))
        loop.sync_only()
        if name == "cache-not-flushed":
            loop.read_gap(sequences // len(seeds))
        loop.sync_only()
        found += loop.read_gap(sequences // len(seeds)).by_sequence()
    return np.array([gaps for gaps in found if len(gaps) == _PER_SEQUENCE])


def draw_means(gaps: Values, num_tokens: int, rng: np.random.Generator) -> Values:
    """Returns the mean of many samples of sequences, drawn with replacement."""
    per_sequence = gaps.mean(axis=1)
    chosen = rng.integers(len(gaps), size=(_RESAMPLES, max(1, num_tokens // _PER_SEQUENCE)))
    means: Values = per_sequence[chosen].mean(axis=1)
    return means

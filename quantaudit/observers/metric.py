"""What a per-probe number is called, its unit and which way it points, and the numbers themselves; without torch.

Observers measure these on models. Recorded results of another harness hold some of them already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number per probe.

    Attributes:
        name: Registered name of the observer that measures it.
        unit: Its unit.
        larger_is_better: Which way it points; damage is the change the other way.
        is_rate: Whether it is 0 or 1 on every probe.
    """

    name: str
    unit: str
    larger_is_better: bool
    is_rate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One metric's numbers for the probes it applies to.

    Attributes:
        index_R: Which probes of the batch (ascending).
        hi_R: The metric of hi.
        lo_R: The metric of lo.
    """

    index_R: NDArray[np.int64]
    hi_R: NDArray[np.float64]
    lo_R: NDArray[np.float64]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(name="nll", unit="nats/token", larger_is_better=False),
        Metric(name="accuracy", unit="share", larger_is_better=True, is_rate=True),
        Metric(name="score", unit="score", larger_is_better=True),  # graded results, 0 to 1; recorded ones only
        Metric(name="answer-margin", unit="nats", larger_is_better=True),
        Metric(name="refusal-rate", unit="share", larger_is_better=True, is_rate=True),
        Metric(name="refusal-margin", unit="nats", larger_is_better=True),
        Metric(name="kl-forward", unit="nats/token", larger_is_better=False),
        Metric(name="kl-reverse", unit="nats/token", larger_is_better=False),
        Metric(name="js", unit="nats/token", larger_is_better=False),
        Metric(name="top-1", unit="share of tokens", larger_is_better=True),
        Metric(name="top-5-overlap", unit="share of tokens", larger_is_better=True),
        Metric(name="delta-p", unit="probability", larger_is_better=True),
        Metric(name="k3", unit="nats/token", larger_is_better=False),
        Metric(name="extreme-tokens", unit="probability", larger_is_better=False),
        Metric(name="importance-second-moment", unit="E[r^2]", larger_is_better=False),
        Metric(name="expert-set-agreement", unit="share of experts", larger_is_better=True),
    )
}

"""An observer maps a pair of forwards to two numbers per probe, one of hi and one of lo."""

from __future__ import annotations

import numpy as np

from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch, all_probes


def measure_surprise(batch: PairedBatch) -> Readings:
    """Returns the negative log-likelihood per answer token, in bits."""
    return all_probes(batch, batch.hi_scores.nll_B / np.log(2), batch.lo_scores.nll_B / np.log(2))


SURPRISE = Observer(name="surprise", unit="bits/token", larger_is_better=False, measure=measure_surprise)

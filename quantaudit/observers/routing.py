"""Routing agreement per probe: how many of hi's experts lo chose too, over the tokens and layers of a probe.

Legend: N tokens, K experts per token, E experts, P probes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quantaudit.core.site import Point
from quantaudit.observers.metric import Readings
from quantaudit.observers.paired import Observer, PairedBatch, all_probes
from quantaudit.observers.scores import reduce_sequences


def measure_agreement(batch: PairedBatch) -> Readings:
    """Returns the mean share of common experts."""
    layers = [
        _shared(hi_NK, batch.lo.sites[site]) for site, hi_NK in batch.hi.sites.items() if site.point is Point.TOP_K_IDS
    ]
    mean_N = torch.stack(layers).mean(0)
    share_B = reduce_sequences(mean_N, batch.hi.lengths_B, np.add) / np.array(batch.hi.lengths_B)
    return all_probes(batch, np.ones_like(share_B), share_B)


def _shared(hi_NK: Tensor, lo_NK: Tensor) -> Tensor:
    return (hi_NK.unsqueeze(-1) == lo_NK.unsqueeze(-2)).any(-1).double().mean(-1)


EXPERT_SET_AGREEMENT = Observer(
    name="expert-set-agreement",
    unit="share of experts",
    larger_is_better=True,
    points=frozenset({Point.TOP_K_IDS}),
    measure=measure_agreement,
)

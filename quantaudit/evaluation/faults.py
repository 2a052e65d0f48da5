"""Planted faults: damage of a known kind, done to hi's own outputs, that every gate clause must be able to see.

They cost no forward. `shifted-vocabulary` hands the probability of every token to its neighbour: likelihood,
answers, margins and refusals break. `swapped-responses` exchanges what hi does on the right and on the opposite
response: everything benign is refused, everything restricted is done. `flattened-distribution` halves every logit:
answers stay, and probability leaks to the rest of the vocabulary. `rerouted-tokens` sends every token to experts that
hi did not choose, for clauses about routing. How many probes suffer is decided in `doses`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.site import Point
from quantaudit.observers.paired import PairedBatch
from quantaudit.observers.scores import SequenceScores, score_sequences


def shift_vocabulary(pair: PairedBatch) -> PairedBatch:
    """Returns the pair with lo's logits moved by one token id."""
    lo = replace(pair.lo, logits_MV=pair.hi.logits_MV.roll(1, dims=-1))
    return replace(pair, lo=lo, lo_scores=score_sequences(lo))


def flatten_distribution(pair: PairedBatch) -> PairedBatch:
    """Returns the pair with lo's logits halved."""
    lo = replace(pair.lo, logits_MV=pair.hi.logits_MV / 2)
    return replace(pair, lo=lo, lo_scores=score_sequences(lo))


def reroute_tokens(pair: PairedBatch) -> PairedBatch:
    """Returns the pair with none of hi's choices of experts left in lo."""
    sites = {site: -1 - ids if site.point is Point.TOP_K_IDS else ids for site, ids in pair.hi.sites.items()}
    return replace(pair, lo=replace(pair.lo, sites=sites))


def swap_responses(pair: PairedBatch) -> PairedBatch:
    """Returns the pair with lo's scores of right and opposite responses exchanged."""
    order = np.arange(len(pair.hi_scores.nll_B))
    for probe, row in enumerate(pair.opposite_P):
        if row >= 0:
            order[probe], order[row] = row, probe
    return replace(pair, lo_scores=_reorder(pair.hi_scores, order))


FAULTS: dict[str, Callable[[PairedBatch], PairedBatch]] = {
    "shifted-vocabulary": shift_vocabulary,
    "swapped-responses": swap_responses,
    "flattened-distribution": flatten_distribution,
    "rerouted-tokens": reroute_tokens,
}


def plant(name: str, pair: PairedBatch) -> PairedBatch:
    """Returns the pair of hi with itself, damaged by the named fault."""
    return FAULTS[name](pair)


def _reorder(scores: SequenceScores, order: NDArray[np.int64]) -> SequenceScores:
    return SequenceScores(
        logprob_B=scores.logprob_B[order],
        nll_B=scores.nll_B[order],
        margin_B=scores.margin_B[order],
        hit_B=scores.hit_B[order],
    )

"""Who computes: which tokens change experts, where in depth first, and at what margin.

A token's routing margin in a layer is how far its weakest chosen expert is above its strongest unchosen one, in the
score that selects (sigmoid plus correction bias) of hi. Flips at a tiny margin say that hi itself had no preference;
flips at a wide one, that the router or its input moved. The drift of gate weights is the L1 distance over the union of
the chosen experts, each side's weights scaled to sum to 1: 0 for equal weights, 2 for disjoint sets.

Legend: N tokens, K experts per token, E experts, L MoE layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantaudit.core.engine import Trace
from quantaudit.core.site import Point, Site

# Scores are sigmoids, so margins lie between 0 and 1. An edge belongs to the bin above it.
MARGIN_EDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(slots=True, kw_only=True)
class FlipSums:
    """Of one MoE layer.

    Attributes:
        flips: Tokens whose set of experts changed.
        first_flips: Tokens that changed here and in no earlier layer.
        drift: L1 distance of the gate weights, summed over tokens.
        tokens_in_bin: Tokens by bin of hi's routing margin.
        flips_in_bin: Those of them whose set changed.
    """

    flips: int = 0
    first_flips: int = 0
    drift: float = 0.0
    tokens_in_bin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(MARGIN_EDGES) + 1, dtype=np.int64))
    flips_in_bin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(MARGIN_EDGES) + 1, dtype=np.int64))


@dataclass(slots=True, kw_only=True)
class RoutingLog:
    """All MoE layers of one comparison, added up batch by batch.

    Attributes:
        bias_by_layer: Correction bias of hi's router, `[E]`; a layer without one selects by score alone.
        tokens: Tokens seen, in one layer.
        flipped: Tokens whose experts changed in some layer.
        layers: Sums by layer.
    """

    bias_by_layer: Mapping[int, Tensor] = field(default_factory=dict)
    tokens: int = 0
    flipped: int = 0
    layers: dict[int, FlipSums] = field(default_factory=dict)

    def add(self, hi: Trace, lo: Trace) -> None:
        """Adds one paired forward."""
        layers = sorted(site.layer for site in hi.sites if site.point is Point.TOP_K_IDS)
        if not layers:
            return
        before_N = torch.zeros(len(hi.sites[Site(layers[0], Point.TOP_K_IDS)]), dtype=torch.bool)
        for layer in layers:
            changed_N = self._add_layer(layer, hi, lo)
            self.layers[layer].first_flips += int((changed_N & ~before_N).sum())
            before_N |= changed_N
        self.tokens += len(before_N)
        self.flipped += int(before_N.sum())

    def _add_layer(self, layer: int, hi: Trace, lo: Trace) -> Tensor:
        """Adds one layer and returns which tokens changed experts in it, on the host."""
        sums = self.layers.setdefault(layer, FlipSums())
        hi_NK, lo_NK = (trace.sites[Site(layer, Point.TOP_K_IDS)] for trace in (hi, lo))
        changed_N = (hi_NK != lo_NK).any(-1).cpu()  # ids are ascending, so equal sets are equal rows
        hi_weight_NK, lo_weight_NK = (trace.sites[Site(layer, Point.GATE_WEIGHTS)] for trace in (hi, lo))
        sums.flips += int(changed_N.sum())
        sums.drift += float(gate_drift(hi_NK, hi_weight_NK, lo_NK, lo_weight_NK).sum())
        margin_N = routing_margin(hi.sites[Site(layer, Point.ROUTER_LOGITS)], hi_NK, self.bias_by_layer.get(layer))
        bin_N = torch.bucketize(margin_N.cpu(), torch.tensor(MARGIN_EDGES, dtype=margin_N.dtype), right=True)
        sums.tokens_in_bin += _count(bin_N)
        sums.flips_in_bin += _count(bin_N[changed_N])
        return changed_N


def routing_margin(logits_NE: Tensor, ids_NK: Tensor, bias_E: Tensor | None) -> Tensor:
    """Returns, `[N]`, the score of the weakest chosen expert minus that of the strongest other one; 1 without others.

    Args:
        logits_NE: Router logits, before the sigmoid.
        ids_NK: Chosen experts.
        bias_E: What is added to the scores for the selection; `None` for nothing.
    """
    score_NE = torch.sigmoid(logits_NE)
    if bias_E is not None:
        score_NE = score_NE + bias_E.to(score_NE)
    strongest_N = score_NE.scatter(-1, ids_NK, -torch.inf).amax(-1)
    return (score_NE.gather(-1, ids_NK).amin(-1) - strongest_N).clamp(max=1.0)


def gate_drift(hi_NK: Tensor, hi_weight_NK: Tensor, lo_NK: Tensor, lo_weight_NK: Tensor) -> Tensor:
    """Returns, `[N]` fp64, the L1 distance of the renormalised gate weights over the union of both sets of experts."""
    hi_share_NK, lo_share_NK = (_renormalize(w) for w in (hi_weight_NK, lo_weight_NK))
    same_NKK = hi_NK.unsqueeze(-1) == lo_NK.unsqueeze(-2)
    in_lo_NK = (same_NKK * lo_share_NK.unsqueeze(-2)).sum(-1)
    new_in_lo_NK = torch.where(same_NKK.any(-2), 0.0, lo_share_NK)
    return (hi_share_NK - in_lo_NK).abs().sum(-1) + new_in_lo_NK.sum(-1)


class ByMargin(NamedTuple):
    """By bin of hi's routing margin: share of token-layers whose experts changed, and how many there are."""

    shares: tuple[float | None, ...]
    counts: tuple[int, ...]


def flips_by_margin(log: RoutingLog) -> ByMargin:
    """Returns how often experts change by hi's routing margin, over all layers."""
    tokens = np.sum([s.tokens_in_bin for s in log.layers.values()], axis=0)
    flips = np.sum([s.flips_in_bin for s in log.layers.values()], axis=0)
    shares = tuple(float(f / n) if n else None for f, n in zip(flips, tokens, strict=True))
    return ByMargin(shares, tuple(int(n) for n in tokens))


def exact_set_rate(log: RoutingLog) -> float:
    """Returns the share of token-layers whose set of experts is the same."""
    return 1.0 - sum(s.flips for s in log.layers.values()) / (log.tokens * len(log.layers))


def mean_drift(log: RoutingLog) -> dict[int, float]:
    """Returns, by layer, the mean L1 distance of the gate weights."""
    return {layer: s.drift / log.tokens for layer, s in sorted(log.layers.items())}


def _renormalize(weight_NK: Tensor) -> Tensor:
    weight_NK = weight_NK.double()
    return weight_NK / weight_NK.sum(-1, keepdim=True)


def _count(bin_N: Tensor) -> NDArray[np.int64]:
    return np.asarray(torch.bincount(bin_N, minlength=len(MARGIN_EDGES) + 1).numpy(), dtype=np.int64)

"""What is added up over batches, a row a layer: routing agreement, expert loads, hidden error.

Legend: N tokens, K experts per token, E experts, L layers, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantaudit.core.engine import Trace
from quantaudit.core.site import Point

POINTS = frozenset({Point.TOP_K_IDS, Point.HIDDEN, Point.GATE_WEIGHTS, Point.ROUTER_LOGITS})


@dataclass(slots=True, kw_only=True)
class RoutingSums:
    """Of one MoE layer.

    Attributes:
        shared: Experts chosen by both, summed over tokens.
        chosen: Experts chosen by hi, summed over tokens.
        same_set: Tokens whose whole set agrees.
        tokens: Tokens.
        hi_load_E: Tokens hi sent to each expert.
        lo_load_E: Tokens lo sent to each expert.
        kept_E: Tokens both sent to each expert.
    """

    shared: int = 0
    chosen: int = 0
    same_set: int = 0
    tokens: int = 0
    hi_load_E: NDArray[np.int64]
    lo_load_E: NDArray[np.int64]
    kept_E: NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class HiddenSums:
    """Of one layer: squared norms of hi's residual and of the difference."""

    signal: float = 0.0
    error: float = 0.0


@dataclass(slots=True, kw_only=True)
class LayerSums:
    """All layers, added up batch by batch."""

    num_experts: int
    routing: dict[int, RoutingSums] = field(default_factory=dict)
    hidden: dict[int, HiddenSums] = field(default_factory=dict)

    def add(self, hi: Trace, lo: Trace) -> None:
        """Adds one paired forward."""
        for site, hi_value in hi.sites.items():
            lo_value = lo.sites[site]
            if site.point is Point.TOP_K_IDS:
                self._add_routing(site.layer, hi_value, lo_value)
            elif site.point is Point.HIDDEN:
                sums = self.hidden.setdefault(site.layer, HiddenSums())
                sums.signal += float(hi_value.double().square().sum())
                sums.error += float((lo_value.double() - hi_value.double()).square().sum())

    def _add_routing(self, layer: int, hi_NK: Tensor, lo_NK: Tensor) -> None:
        sums = self.routing.setdefault(layer, self._empty())
        hi_NE, lo_NE = (_membership(ids, self.num_experts) for ids in (hi_NK, lo_NK))
        both_NE = hi_NE & lo_NE
        sums.shared += int(both_NE.sum())
        sums.chosen += hi_NK.numel()
        sums.same_set += int((hi_NE == lo_NE).all(-1).sum())
        sums.tokens += len(hi_NK)
        sums.hi_load_E += _count(hi_NE)
        sums.lo_load_E += _count(lo_NE)
        sums.kept_E += _count(both_NE)

    def _empty(self) -> RoutingSums:
        zeros = np.zeros(self.num_experts, dtype=np.int64)
        return RoutingSums(hi_load_E=zeros.copy(), lo_load_E=zeros.copy(), kept_E=zeros.copy())


def set_agreement(sums: Mapping[int, RoutingSums]) -> dict[int, float]:
    """Returns, by layer, the mean share of hi's experts that lo chose too (larger is better)."""
    return {layer: s.shared / s.chosen for layer, s in sorted(sums.items())}


def load_drift(sums: Mapping[int, RoutingSums]) -> dict[int, float]:
    """Returns, by layer, the total variation distance of the two expert-usage distributions (smaller is better)."""
    return {
        layer: float(np.abs(s.hi_load_E / s.hi_load_E.sum() - s.lo_load_E / s.lo_load_E.sum()).sum() / 2)
        for layer, s in sorted(sums.items())
    }


def hidden_error(sums: Mapping[int, HiddenSums]) -> dict[int, float]:
    """Returns, by layer, the relative L2 error of lo's residual (smaller is better)."""
    return {layer: float(np.sqrt(s.error / s.signal)) if s.signal else 0.0 for layer, s in sorted(sums.items())}


def load_variation(load_E: NDArray[np.int64]) -> float:
    """Returns the coefficient of variation of one layer's expert loads: 0 where every expert has its share."""
    mean = float(load_E.mean())
    return float(load_E.std()) / mean if mean else 0.0


def slope(depths: Sequence[float], values: Sequence[float]) -> float | None:
    """Returns the least-squares slope of the finite values over depth; `None` with fewer than two of them."""
    x, y = np.array(depths, dtype=np.float64), np.array(values, dtype=np.float64)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) < 2:
        return None
    return float(((x - x.mean()) * (y - y.mean())).sum() / np.square(x - x.mean()).sum())


def _membership(ids_NK: Tensor, num_experts: int) -> Tensor:
    chosen_NE = torch.zeros(len(ids_NK), num_experts, dtype=torch.bool, device=ids_NK.device)
    return chosen_NE.scatter_(1, ids_NK, True)


def _count(chosen_NE: Tensor) -> NDArray[np.int64]:
    return np.asarray(chosen_NE.sum(0).cpu().numpy(), dtype=np.int64)

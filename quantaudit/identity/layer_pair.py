"""The two sides of a layer as they are read: masters and served values, before any scheme is assumed.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.identity.mismatches.weights import quantize_weight
from quantaudit.identity.search_space import can_group
from quantaudit.numerics.reference import QuantizedTensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """One weight on both sides.

    Attributes:
        master: [E, R, C] or [R, C], fp32 or bf16.
        served: What the server computes with, decoded; the same shape, or another where it was transposed.
        earlier: Masters before the last update, newest first, as many as are known.
        stored: The codes and scales that are served, where they are known.
        slack: Relative difference of served values that how they are stored accounts for.
    """

    master: Tensor
    served: Tensor
    earlier: tuple[Tensor, ...] = ()
    stored: QuantizedTensor | None = None
    slack: float = 0.0


Pairs = Mapping[Projection, Pair]


def train_layer(pairs: Pairs, scheme: Scheme) -> Layer:
    """Returns the layer as a trainer that quantizes its masters by a scheme holds it."""
    return {
        name: quantize_weight(pair.master, scheme, dtype=pair.served.dtype, earlier=pair.earlier)
        for name, pair in pairs.items()
    }


def serve_layer(pairs: Pairs) -> Layer:
    """Returns the layer as it is served: values, and codes where they are known."""
    return {name: Weight(values=pair.served, quantized=pair.stored, slack=pair.slack) for name, pair in pairs.items()}


def fits(pairs: Pairs, scheme: Scheme) -> bool:
    """Says whether the groups of a scheme divide every weight."""
    return all(can_group((pair.master.shape[-2], pair.master.shape[-1]), scheme.granularity) for pair in pairs.values())


def count_values(pairs: Pairs) -> int:
    """Returns the served values of all weights."""
    return sum(pair.served.numel() for pair in pairs.values())

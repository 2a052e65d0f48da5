"""The sides of a check: one model's quantized weights as trainer, transport and engine hold them at one step.

Every side is keyed by module name (`layers.3.experts.w1`) and lies in the trainer's coordinates, [E, O, I] with logical
experts: whoever reads an engine undoes the placement and the fusing that the engine declares. If it does not do what it
declares, the values come out wrong, which is what the check is for.

Legend: E experts, O out, I in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.core.step_log import Side
from quantaudit.engines.stored import StoredTensor

# Packed codes, or plain values where a weight is not quantized.
Shipped: TypeAlias = "StoredTensor | Tensor"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedWeight:
    """One weight in the trainer.

    Attributes:
        values: [E, O, I] fp32: what the trainer computes with; dense weights may be narrower.
        scheme: What it is fake-quantized by; `None` for a weight that is left as it is.
        source: What was quantized: the master in the dtype of exports.
        master: The master as the trainer holds it.
        is_stack: Whether it is a stack of experts; dense weights have any shape, and no kernel layout of their own.
    """

    values: Tensor
    scheme: Scheme | None
    source: Tensor
    master: Tensor
    is_stack: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """All sides at one step, for the weights of one version.

    Attributes:
        trainer: What the trainer computes with.
        sent: What left the trainer; `None` where the engine quantizes on arrival, or nobody looked.
        loaded: What the engine says it was given; `None` where it does not say.
        derived: What is in the engine's own layout; `None` where there is no engine.
        trainer_version: Updates that made the trainer's weights.
        served_version: The version that the engine says it serves.
    """

    trainer: Mapping[str, TrainedWeight]
    sent: Mapping[str, Shipped] | None = None
    loaded: Mapping[str, Shipped] | None = None
    derived: Mapping[str, Shipped] | None = None
    trainer_version: int | None = None
    served_version: int | None = None

    def served(self) -> dict[Side, Mapping[str, Shipped]]:
        """Returns the sides that are there, in the order in which weights pass them."""
        held = {Side.SENT: self.sent, Side.LOADED: self.loaded, Side.DERIVED: self.derived}
        return {side: weights for side, weights in held.items() if weights is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """What is kept of an earlier step: enough to recognise what was left behind.

    Attributes:
        step: Which step.
        sources: What the trainer quantized.
        shipped: What was sent, or, where nothing was, what was loaded.
    """

    step: int
    sources: Mapping[str, Tensor]
    shipped: Mapping[str, Shipped] = field(default_factory=dict)


def decode_shipped(shipped: Shipped) -> Tensor:
    """Returns values in fp32: packed codes through the reference, plain values widened."""
    return shipped.decode(torch.float32) if isinstance(shipped, StoredTensor) else shipped.float()


def take_matrices(shipped: Shipped, piece: slice) -> Shipped:
    """Returns some experts, sharing their memory."""
    if not piece.start and piece.stop is None and piece.step in (None, 1):
        return shipped
    return shipped.matrices(piece) if isinstance(shipped, StoredTensor) else shipped[piece]


def is_same_storage(a: Shipped, b: Shipped) -> bool:
    """Says whether two weights are stored in the same bytes and read by the same arithmetic."""
    if a is b:
        return True
    if isinstance(a, StoredTensor) and isinstance(b, StoredTensor):
        pairs = ((a.packed, b.packed), (a.scales, b.scales), (a.second_scales, b.second_scales), (a.offset, b.offset))
        return _is_same_encoding(a.scheme, b.scheme) and all(_same(x, y) for x, y in pairs)
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)


def _is_same_encoding(a: Scheme, b: Scheme) -> bool:
    """Says whether codes are read alike; digests, which take longer than bytes, only of schemes that differ."""
    return a is b or a == b or a.encoding_digest == b.encoding_digest


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))

"""Weights of a layer, made and changed: what a fault does is done to codes, scales or values, and decoded again.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.numerics.reference import QuantizedTensor, dequantize, quantize


def quantize_weight(
    master: Tensor, scheme: Scheme, *, dtype: torch.dtype | None = None, earlier: tuple[Tensor, ...] = ()
) -> Weight:
    """Returns a weight as a side that quantizes `master` by `scheme` holds it.

    Args:
        master: [E, R, C] or [R, C], fp32 or bf16.
        scheme: What it is quantized by.
        dtype: Of the decoded values; that of the master if not given.
        earlier: Masters before the last update, newest first.

    Raises:
        InputError: If the dtype or the shape cannot be quantized.
    """
    codes = quantize(master, scheme)
    values = dequantize(codes, dtype)
    return Weight(values=values, quantized=codes, scheme=scheme, master=master, earlier=earlier)


def plain_weight(values: Tensor, *, scheme: Scheme | None = None, earlier: tuple[Tensor, ...] = ()) -> Weight:
    """Returns a weight that is not quantized; `scheme` is what it would get if a rule matched it."""
    return Weight(values=values, scheme=scheme, master=values, earlier=earlier)


def is_plain(weight: Weight) -> bool:
    """Says whether a weight is held unquantized."""
    if weight.quantized is not None:
        return False
    return weight.master is None or torch.equal(weight.values, weight.master.to(weight.values.dtype))


def with_quantized(weight: Weight, quantized: QuantizedTensor) -> Weight:
    """Returns the weight that other codes or scales decode to, in the dtype of its values."""
    return replace(weight, quantized=quantized, values=dequantize(quantized, weight.values.dtype))


def with_values(weight: Weight, values: Tensor) -> Weight:
    """Returns the weight with other values, which no codes of its scheme need to give."""
    return replace(weight, quantized=None, values=values.to(weight.values.dtype))


def requantized(weight: Weight, source: Tensor) -> Weight | None:
    """Returns the weight quantized from another source by its own scheme; `None` if it has none."""
    if weight.scheme is None:
        return None
    return with_quantized(weight, quantize(source, weight.scheme))


def map_weights(layer: Layer, change: Callable[[Weight], Weight | None]) -> Layer | None:
    """Changes every weight that can be changed; `None` if there is none.

    Args:
        layer: The layer.
        change: Returns the changed weight, `None` where the fault cannot happen to it.
    """
    changed = {projection: change(weight) for projection, weight in layer.items()}
    if all(weight is None for weight in changed.values()):
        return None
    return {projection: weight or layer[projection] for projection, weight in changed.items()}


def gate_and_up(layer: Layer) -> Tensor | None:
    """Returns the rows of gate, then those of up: [..., 2R, C]; `None` where the layer has no such pair."""
    if Projection.GATE_UP in layer:
        values = layer[Projection.GATE_UP].values
        return values if values.shape[-2] % 2 == 0 else None
    if Projection.GATE not in layer or Projection.UP not in layer:
        return None
    gate, up = layer[Projection.GATE].values, layer[Projection.UP].values
    return torch.cat((gate, up), -2) if gate.shape == up.shape else None


def with_gate_and_up(layer: Layer, rows: Tensor) -> Layer:
    """Returns the layer with these rows of gate and up (the inverse of `gate_and_up`)."""
    if Projection.GATE_UP in layer:
        return {**layer, Projection.GATE_UP: with_values(layer[Projection.GATE_UP], rows)}
    pair = (Projection.GATE, Projection.UP)
    halves = rows.chunk(2, -2)
    return {**layer, **{name: with_values(layer[name], half) for name, half in zip(pair, halves, strict=True)}}

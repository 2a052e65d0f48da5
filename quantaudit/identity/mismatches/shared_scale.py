"""Gate and up are given one scale, where the trainer gives each its own.

The scale that is shared is the outermost one: that of the matrix where a scheme has one, else that of every group. It
is measured over both, or the codes of one are decoded with the scale of the other, or both with the larger.

Shape suffixes: S stack, G groups, N members of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.scheme import LinearScale, PerGroup, Scheme, TwoLevel
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Projection, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import with_quantized, with_values
from quantaudit.numerics.grouping import Plan, from_groups, plan, to_groups
from quantaudit.numerics.reference import QuantizedTensor, dequantize, quantize

ABOUT = About(
    name="shared-scale",
    kind=Kind.SHARED_SCALE,
    field="scale.sharing",
    sentence="Gate and up are given one scale.",
)
_OWN = "gate and up each have their own"


def apply(layer: Layer) -> Layer | None:
    """Quantizes the masters of gate and up with a scale that is measured over both."""
    pair = _pair(layer)
    if pair is None:
        return None
    gate, up = pair
    if gate.master is None or up.master is None or gate.master.shape != up.master.shape:
        return None
    assert gate.scheme is not None
    shared = _over_both(gate.master, up.master, gate.scheme)
    halves = zip(pair, shared, strict=True)
    return _with_pair(layer, *(with_values(weight, values) for weight, values in halves))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds gate and up quantized with one scale, or decoded with the scale of one of them, or with the larger."""
    return best(ABOUT, train, serve, _variants())


def _variants() -> Iterator[Variant]:
    yield Variant(_OWN, "one, measured over both", apply, is_by_rows=True)
    choices: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "that of gate": lambda gate, up: gate,
        "that of up": lambda gate, up: up,
        "the larger of both": torch.maximum,
    }
    for name, choose in choices.items():
        yield Variant(_OWN, f"{name}, for the codes of both", partial(_decoded_with, choose=choose), is_by_rows=True)


def _decoded_with(layer: Layer, *, choose: Callable[[Tensor, Tensor], Tensor]) -> Layer | None:
    """Decodes the codes of both with one scale, chosen from those of gate and of up."""
    pair = _pair(layer)
    if pair is None:
        return None
    gate, up = (_outer_scale(weight) for weight in pair)
    if gate.shape != up.shape:
        return None
    return _with_pair(layer, *(_rescaled(weight, choose(gate, up)) for weight in pair))


def _pair(layer: Layer) -> tuple[Weight, Weight] | None:
    """Returns gate and up where both are quantized, by one scheme."""
    if Projection.GATE not in layer or Projection.UP not in layer:
        return None
    gate, up = layer[Projection.GATE], layer[Projection.UP]
    if gate.quantized is None or up.quantized is None or gate.scheme is None or gate.scheme != up.scheme:
        return None
    return gate, up


def _with_pair(layer: Layer, gate: Weight, up: Weight) -> Layer:
    return {**layer, Projection.GATE: gate, Projection.UP: up}


def _outer_scale(weight: Weight) -> Tensor:
    """Returns the scale of the matrix, else the scales of the groups; larger codes are larger scales in either."""
    stored = weight.quantized
    assert stored is not None
    return stored.scales if stored.second_scales is None else stored.second_scales


def _rescaled(weight: Weight, scale: Tensor) -> Weight:
    stored = weight.quantized
    assert stored is not None
    is_outer = stored.second_scales is not None
    changed: QuantizedTensor = replace(stored, second_scales=scale) if is_outer else replace(stored, scales=scale)
    return with_quantized(weight, changed)


def _over_both(gate: Tensor, up: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Returns both, quantized with shared scales and decoded to fp32."""
    rule = scheme.scale
    if isinstance(rule, LinearScale) and isinstance(rule.second_level, TwoLevel):
        stacked = quantize(torch.cat((gate, up), -2), scheme)
        upper, lower = dequantize(stacked, torch.float32).chunk(2, -2)
        return upper, lower
    cut = plan(tuple(gate.shape), scheme.granularity)
    joint_SGN = torch.cat((to_groups(gate, cut), to_groups(up, cut)), -1)
    # A group that holds those of both is what measures one scale over both, whatever the statistic.
    joint_scheme = scheme.model_copy(update={"granularity": PerGroup(size=joint_SGN.shape[-1])})
    decoded_SGN = dequantize(quantize(joint_SGN, joint_scheme), torch.float32)
    halves = decoded_SGN.chunk(2, -1)
    return _joined(halves[0], cut, gate), _joined(halves[1], cut, up)


def _joined(values_SGN: Tensor, cut: Plan, like: Tensor) -> Tensor:
    return from_groups(values_SGN, cut, tuple(like.shape))

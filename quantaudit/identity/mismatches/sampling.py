"""The first rows of a large layer, on which a prediction row by row is tried before it is made in full.

A sample is taken only where the rows of a weight are quantized independently of each other, or in tiles of whole
samples; elsewhere the first rows alone would get other scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from quantaudit.core.scheme import ExponentScale, PerBlock, PerChannel, PerGroup, PerToken, Scheme
from quantaudit.identity.mismatches.protocol import Layer, Projection, Weight
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import QuantizedTensor

SAMPLE_ROWS = 128
_WORTH_SAMPLING = 1 << 20  # values of a layer


class Sample(NamedTuple):
    """The first rows of both sides."""

    train: Layer
    serve: Layer


def quantizes_by_rows(scheme: Scheme) -> bool:
    """Says whether the first `SAMPLE_ROWS` rows of a matrix are quantized as they are inside the whole of it."""
    rule, grain = scheme.scale, scheme.granularity
    if not isinstance(rule, ExponentScale) and rule.second_level is not None:
        return False
    if isinstance(grain, PerBlock):
        return SAMPLE_ROWS % grain.rows == 0
    return isinstance(grain, PerGroup | PerChannel | PerToken)


def sample_rows(train: Layer, serve: Layer) -> Sample | None:
    """Returns the first rows of both sides; `None` where that would be wrong, or saves little."""
    shared = [(weight, serve[name]) for name, weight in train.items() if name in serve]
    if sum(weight.values.numel() for weight, _ in shared) < _WORTH_SAMPLING:
        return None
    for weight, served in shared:
        schemes = [side.quantized.scheme for side in (weight, served) if side.quantized is not None]
        schemes += [weight.scheme] if weight.scheme is not None else []
        if weight.values.shape != served.values.shape or not all(map(quantizes_by_rows, schemes)):
            return None
    return Sample(_first_rows(train), _first_rows(serve))


def _first_rows(layer: Mapping[Projection, Weight]) -> Layer:
    return {name: _cropped(weight) for name, weight in layer.items()}


def _cropped(weight: Weight) -> Weight:
    return replace(
        weight,
        values=weight.values[..., :SAMPLE_ROWS, :],
        quantized=None if weight.quantized is None else _first_codes(weight.quantized),
        master=None if weight.master is None else weight.master[..., :SAMPLE_ROWS, :],
        earlier=tuple(master[..., :SAMPLE_ROWS, :] for master in weight.earlier),
    )


def _first_codes(stored: QuantizedTensor) -> QuantizedTensor:
    codes = stored.codes[..., :SAMPLE_ROWS, :]
    shape = tuple(codes.shape)
    num_groups = plan(shape, stored.scheme.granularity).grid[-2]
    return replace(stored, codes=codes, scales=stored.scales[..., :num_groups, :], shape=shape)

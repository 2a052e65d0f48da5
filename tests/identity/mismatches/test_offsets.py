"""Scale bytes that are all off by one constant are named with the constant, whatever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantaudit.identity.mismatches import exponent_offset
from quantaudit.identity.mismatches.protocol import Layer, Projection
from quantaudit.identity.mismatches.registry import search_mismatches
from quantaudit.identity.mismatches.weights import with_quantized
from quantaudit.numerics import get_scheme
from tests.identity.mismatches.planted import trained


def with_bytes(layer: Layer, scales: dict[Projection, Tensor]) -> Layer:
    changed = {}
    for name, weight in layer.items():
        assert weight.quantized is not None
        changed[name] = with_quantized(weight, replace(weight.quantized, scales=scales[name]))
    return changed


def offset_by(layer: Layer, offset: int) -> Layer:
    scales: dict[Projection, Tensor] = {}
    for name, weight in layer.items():
        assert weight.quantized is not None
        scales[name] = (weight.quantized.scales.int() + offset).clamp(0, 254).to(torch.uint8)
    return with_bytes(layer, scales)


@pytest.mark.parametrize(
    ("offset", "serve"),
    [
        (1, "every byte 1 too large"),
        (-1, "every byte 1 too small"),
        (2, "every byte 2 too large"),
        (-2, "every byte 2 too small"),
        (-8, "every byte 8 too small"),
        (-127, "127 taken off twice, clipped at 0"),
    ],
)
def test_a_constant_offset_is_named(offset: int, serve: str) -> None:
    layer = trained(get_scheme("mxfp4-even"))
    found = search_mismatches(layer, offset_by(layer, offset))[0]
    assert (found.about.name, found.about.kind.value, found.serve) == ("exponent-offset", "K8", serve)
    assert (found.explains, found.num_left) == (1.0, 0)


def test_scales_of_no_constant_offset_are_not_explained() -> None:
    layer = trained(get_scheme("mxfp4-even"))
    generator = torch.Generator().manual_seed(7)
    scales: dict[Projection, Tensor] = {}
    for name, weight in layer.items():
        assert weight.quantized is not None
        others = torch.randint(-4, 5, weight.quantized.scales.shape, generator=generator)
        scales[name] = (weight.quantized.scales.int() + others).clamp(0, 254).to(torch.uint8)
    found = exponent_offset.recognise(layer, with_bytes(layer, scales))
    assert found is None or not found.is_convincing

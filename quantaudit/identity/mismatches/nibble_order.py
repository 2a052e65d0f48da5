"""Two 4-bit codes lie in one byte, and one side takes the high one first where the other takes the low one."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantaudit.core.scheme import Layout
from quantaudit.identity.layouts.stored import Part, StoredMatrix
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized

ABOUT = About(
    name="nibble-order",
    kind=Kind.LAYOUT,
    field="layout.nibbles",
    sentence="The two codes of every byte are read in the other order.",
)
_FIRST = {Layout.HIGH_NIBBLE_FIRST: ("high nibble first", "low nibble first")}
_PAIRED = (Layout.LOW_NIBBLE_FIRST, Layout.HIGH_NIBBLE_FIRST)  # two codes that follow each other share a byte
_OTHERWISE = ("low nibble first", "high nibble first")


def apply(layer: Layer) -> Layer | None:
    """Swaps the codes of every byte."""
    return map_weights(layer, _swap)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds codes that are the trainer's in swapped pairs."""
    schemes = [weight.quantized.scheme for weight in train.values() if weight.quantized is not None]
    first = _FIRST.get(schemes[0].layout, _OTHERWISE) if schemes else _OTHERWISE
    return best(ABOUT, train, serve, [Variant(*first, apply, is_by_rows=True, rewrite=_swap_in_bytes)])


def _swap(weight: Weight) -> Weight | None:
    stored = weight.quantized
    if stored is None or stored.scheme.element.bits != 4 or stored.codes.shape[-1] % 2:
        return None
    pairs = stored.codes.reshape(*stored.codes.shape[:-1], -1, 2)
    return with_quantized(weight, replace(stored, codes=pairs.flip(-1).reshape(stored.codes.shape)))


def _swap_in_bytes(matrix: StoredMatrix) -> StoredMatrix | None:
    packing = matrix.packing
    if packing is None or packing.layout not in _PAIRED or packing.element.bits != 4 or matrix.shape[1] % 2:
        return None
    codes = matrix.parts[Part.CODES]
    bytes_RB = codes.view(torch.uint8)
    return replace(matrix, parts={**matrix.parts, Part.CODES: (bytes_RB << 4 | bytes_RB >> 4).view(codes.dtype)})

"""The scales of a matrix are read as those of its transpose, the codes are not: a view of them still succeeds."""

from __future__ import annotations

from dataclasses import replace

from quantaudit.core.scheme import FlatBlocks
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.transposed_weights import viewed_transposed
from quantaudit.identity.mismatches.weights import map_weights, with_quantized

ABOUT = About(
    name="transposed-scales",
    kind=Kind.LAYOUT,
    field="scale.axes",
    sentence="The grid of scales is read transposed, the codes are not.",
)


def apply(layer: Layer) -> Layer | None:
    """Gives every grid of scales the memory of its transpose, under the old shape."""
    return map_weights(layer, _transpose)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's codes under transposed scales."""
    return best(ABOUT, train, serve, variants())


def variants() -> list[Variant]:
    """Returns the one way in which scales are transposed."""
    names = "one row of scales a row of groups", "the memory of the transposed grid"
    return [Variant(*names, apply, rewrite=_transpose_stored)]


def _transpose(weight: Weight) -> Weight | None:
    stored = weight.quantized
    if stored is None or isinstance(stored.scheme.granularity, FlatBlocks) or min(stored.scales.shape[-2:]) < 2:
        return None
    return with_quantized(weight, replace(stored, scales=viewed_transposed(stored.scales)))


def _transpose_stored(matrix: StoredMatrix) -> StoredMatrix | None:
    packing = matrix.packing
    if packing is None or packing.scale is ScaleKind.E4M3 or min(matrix.parts[Part.SCALES].shape) < 2:
        return None
    return replace(matrix, parts={**matrix.parts, Part.SCALES: viewed_transposed(matrix.parts[Part.SCALES])})

"""Weights that are quantized already are quantized again: by the same scheme, or one after another.

A scheme under which decoded values stay what they are (ties to even under the MX rules, absmax over the largest code)
hides the first kind: it is latent there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quantaudit.core.errors import InputError
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.sampling import quantizes_by_rows
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, requantized, with_quantized
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.reference import fake_quantize, quantize

ABOUT = About(
    name="quantized-twice",
    kind=Kind.REPEATED,
    field="passes",
    sentence="Weights that were quantized already are quantized again.",
)
_MOST_PASSES = 3
# What weights are shipped in before somebody quantizes them again, and what engines turn loaded weights into.
_OTHERS = (
    "fp8-block128",
    "fp8-block128-ue8m0",
    "fp8-channel",
    "int8-channel",
    "mxfp8-e4m3-rceil",
    "nvfp4",
    "mxfp4-even",
    "mxfp4-rceil",
    "int4-g32-div7",
    "nf4-b64",
)


def apply(layer: Layer) -> Layer | None:
    """Quantizes decoded weights once more by their own scheme."""
    return _repeated(layer, passes=2)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds weights quantized two or three times by their scheme, or by another one before or after it."""
    return best(ABOUT, train, serve, _variants())


def _variants() -> Iterator[Variant]:
    for passes in range(2, _MOST_PASSES + 1):
        yield Variant("once", f"{passes} times", partial(_repeated, passes=passes), is_by_rows=True)
    for name in _OTHERS:
        by_rows = quantizes_by_rows(get_scheme(name))
        source = f"from the master quantized by {name}"
        yield Variant("from the master", source, partial(_after, name=name), is_by_rows=by_rows)
        yield Variant("as trained", f"then quantized by {name}", partial(_before, name=name), is_by_rows=by_rows)


def _repeated(layer: Layer, *, passes: int) -> Layer | None:
    changed: Layer | None = layer
    for _ in range(passes - 1):
        if changed is not None:
            changed = map_weights(changed, lambda w: requantized(w, w.values) if w.quantized else None)
    return changed


def _after(layer: Layer, *, name: str) -> Layer | None:
    """Quantizes the masters by another scheme first."""

    def change(weight: Weight) -> Weight | None:
        if weight.quantized is None or weight.master is None or weight.quantized.scheme.name == name:
            return None
        try:
            return requantized(weight, fake_quantize(weight.master, get_scheme(name)))
        except InputError:  # its groups do not divide the shape
            return None

    return map_weights(layer, change)


def _before(layer: Layer, *, name: str) -> Layer | None:
    """Quantizes decoded weights by another scheme afterwards."""

    def change(weight: Weight) -> Weight | None:
        if weight.quantized is None or weight.quantized.scheme.name == name:
            return None
        try:
            return with_quantized(weight, quantize(weight.values, get_scheme(name)))
        except InputError:  # its groups do not divide the shape
            return None

    return map_weights(layer, change)

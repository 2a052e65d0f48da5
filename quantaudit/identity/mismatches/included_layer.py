"""A layer that the trainer leaves alone is served quantized: an ignore list or a pattern misses a spelling."""

from __future__ import annotations

from functools import partial

from quantaudit.core.errors import InputError
from quantaudit.core.scheme import Scheme
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.sampling import quantizes_by_rows
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import is_plain, map_weights, with_quantized
from quantaudit.numerics.reference import quantize

ABOUT = About(
    name="included-layer",
    kind=Kind.LAYER_SET,
    field="rules.layers",
    sentence="A layer that is trained unquantized is served quantized.",
)


def apply(layer: Layer) -> Layer | None:
    """Quantizes what is not quantized, by the scheme that is known for it or for another weight of the layer."""
    schemes = _schemes(layer)
    return _quantized(layer, scheme=schemes[0]) if schemes else None


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds unquantized weights quantized by a scheme that either side knows."""
    schemes = {scheme.arithmetic_digest: scheme for scheme in (*_schemes(serve), *_schemes(train))}.values()
    return best(ABOUT, train, serve, [_variant(scheme) for scheme in schemes])


def _variant(scheme: Scheme) -> Variant:
    by_rows = quantizes_by_rows(scheme)
    return Variant("unquantized", scheme.name, partial(_quantized, scheme=scheme), is_by_rows=by_rows)


def _schemes(layer: Layer) -> list[Scheme]:
    return [weight.scheme for weight in layer.values() if weight.scheme is not None]


def _quantized(layer: Layer, *, scheme: Scheme) -> Layer | None:
    def change(weight: Weight) -> Weight | None:
        if not is_plain(weight):
            return None
        try:
            return with_quantized(weight, quantize(weight.values, scheme))
        except InputError:  # its groups do not divide the shape
            return None

    return map_weights(layer, change)

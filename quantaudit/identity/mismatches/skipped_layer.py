"""A layer that the trainer quantizes is served unquantized: an ignore list or a pattern matches more than was meant."""

from __future__ import annotations

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import is_plain, map_weights, with_values

ABOUT = About(
    name="skipped-layer",
    kind=Kind.LAYER_SET,
    field="rules.layers",
    sentence="A layer that is trained quantized is served unquantized.",
)


def apply(layer: Layer) -> Layer | None:
    """Serves the masters."""
    return map_weights(layer, _unquantized)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the masters in place of what they are quantized to."""
    names = [weight.scheme.name for weight in train.values() if weight.scheme is not None]
    return best(ABOUT, train, serve, [Variant(names[0] if names else "quantized", "unquantized", apply)])


def _unquantized(weight: Weight) -> Weight | None:
    return None if weight.master is None or is_plain(weight) else with_values(weight, weight.master)

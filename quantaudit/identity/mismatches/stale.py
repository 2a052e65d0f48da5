"""The server still holds the weights of earlier updates: a sync was missed, or an expert left out of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, requantized, with_values

ABOUT = About(
    name="stale",
    kind=Kind.STALE,
    field="source.update",
    sentence="The weights are those of an earlier update.",
)


def apply(layer: Layer) -> Layer | None:
    """Serves the weights of the update before the last."""
    return map_weights(layer, partial(_served, age=1))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the masters before the last update, before the one before, and so on, as far back as they are known."""
    return best(ABOUT, train, serve, _variants(train))


def _variants(train: Layer) -> Iterator[Variant]:
    for age in range(1, 1 + max((len(weight.earlier) for weight in train.values()), default=0)):
        served = "1 update earlier" if age == 1 else f"{age} updates earlier"
        predict = partial(map_weights, change=partial(_served, age=age))
        yield Variant("the last update", served, predict, is_by_rows=True)


def _served(weight: Weight, *, age: int) -> Weight | None:
    if len(weight.earlier) < age:
        return None
    earlier = weight.earlier[age - 1]
    return with_values(weight, earlier) if weight.quantized is None else requantized(weight, earlier)

"""The zero of an integer code is taken one too high or one too low: eight stored as seven and read back plus one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quantaudit.core.format import IntegerFormat
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_values
from quantaudit.numerics.grouping import from_groups, plan, to_groups
from quantaudit.numerics.reference import decode_scales

ABOUT = About(
    name="zero-point",
    kind=Kind.LAYOUT,
    field="zero_point",
    sentence="Every integer code is read one step off.",
)


def apply(layer: Layer) -> Layer | None:
    """Reads every code one too low, as a zero point of 8 that is stored as 7 and incremented twice does."""
    return map_weights(layer, partial(_shifted, step=-1))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds values that are one step of their group above or below the trainer's."""
    return best(ABOUT, train, serve, _variants())


def _variants() -> Iterator[Variant]:
    for step, name in ((-1, "one too high: codes read one too low"), (1, "one too low: codes read one too high")):
        shifted = partial(_shifted, step=step)
        yield Variant("as stored", name, partial(map_weights, change=shifted), is_by_rows=True)


def _shifted(weight: Weight, *, step: int) -> Weight | None:
    stored = weight.quantized
    if stored is None or not isinstance(stored.scheme.element, IntegerFormat):
        return None
    cut = plan(stored.shape, stored.scheme.granularity)
    codes = to_groups(stored.codes.float() + step, cut)
    return with_values(weight, from_groups(codes * decode_scales(stored).unsqueeze(-1), cut, stored.shape))

"""The bias of 127 of a power-of-two scale is applied twice, when it is written or when it is read.

Written twice, a byte c becomes c + 127, modulo 256 or capped at 254. Read twice, the scale is 2^(c - 254) in place of
2^(c - 127), a number that no byte stands for, or what the byte c - 127 modulo 256 stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentScale
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized, with_values

ABOUT = About(
    name="exponent-offset",
    kind=Kind.LAYOUT,
    field="scale.bias",
    sentence="The exponent bias of the scales is applied twice.",
)
_BIAS = 127
_NAN = 255
_ONCE = "bias 127 applied once"


def apply(layer: Layer) -> Layer | None:
    """Adds 127 to every scale byte that has it already, modulo 256."""
    return map_weights(layer, partial(_rewritten, change=_wrapped_up))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's codes under scales that are 2^127 too large, too small, or wrapped around."""
    return best(ABOUT, train, serve, _variants())


def _variants() -> Iterator[Variant]:
    capped = partial(_rewritten, change=lambda c: (c + _BIAS).clamp(max=_NAN - 1))
    wrapped = partial(_rewritten, change=lambda c: (c - _BIAS) % 256)
    yield Variant(_ONCE, "written twice, modulo 256", apply, is_by_rows=True)
    yield Variant(_ONCE, "written twice, capped at 254", partial(map_weights, change=capped), is_by_rows=True)
    yield Variant(_ONCE, "read twice", partial(map_weights, change=_read_twice), is_by_rows=True)
    yield Variant(_ONCE, "read twice, modulo 256", partial(map_weights, change=wrapped), is_by_rows=True)


def _wrapped_up(byte: Tensor) -> Tensor:
    return (byte + _BIAS) % 256


def _rewritten(weight: Weight, change: Callable[[Tensor], Tensor]) -> Weight | None:
    stored = weight.quantized
    if stored is None or not isinstance(stored.scheme.scale, ExponentScale):
        return None
    scales = change(stored.scales.to(torch.int32)).to(torch.uint8)
    return with_quantized(weight, replace(stored, scales=scales))


def _read_twice(weight: Weight) -> Weight | None:
    if weight.quantized is None or not isinstance(weight.quantized.scheme.scale, ExponentScale):
        return None
    return with_values(weight, weight.values.float() * 2.0**-_BIAS)

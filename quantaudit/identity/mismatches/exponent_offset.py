"""The bias of 127 of a power-of-two scale is applied twice, when it is written or read, or exponents are off by a few.

Written twice, a byte c becomes c + 127, modulo 256 or capped at 254. Read twice, the scale is 2^(c - 254) in place of
2^(c - 127), a number that no byte stands for, or what the byte c - 127 modulo 256 stands for, or 0 for less. Any other
constant is read off the values: where a byte is c + k, values are 2^k times the trainer's, and the k that most of the
values that differ show is the only one that is tried.

Shape suffixes: K values that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentScale
from quantaudit.identity.layouts.stored import Part, ScaleKind, StoredMatrix
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized, with_values

ABOUT = About(
    name="exponent-offset",
    kind=Kind.LAYOUT,
    field="scale.bias",
    sentence="The exponents of the scales are off by a constant, such as a bias that is applied twice.",
)
_BIAS = 127
_NAN = 255
_ONCE = "bias 127 applied once"
_LOOKED_AT = 1 << 12  # values of a weight that differ
_COMMON = 0.25  # of these; what no more than chance agrees in is no constant


def apply(layer: Layer) -> Layer | None:
    """Adds 127 to every scale byte that has it already, modulo 256."""
    return map_weights(layer, partial(_rewritten, change=_wrapped_up))


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the trainer's codes under scales that are too large or too small by one power of two, or wrapped around."""
    return best(ABOUT, train, serve, _variants(train, serve))


def _variants(train: Layer, serve: Layer) -> Iterator[Variant]:
    yield _variant("written twice, modulo 256", _wrapped_up)
    yield _variant("written twice, capped at 254", lambda byte: (byte + _BIAS).clamp(max=_NAN - 1))
    yield Variant(_ONCE, "read twice", partial(map_weights, change=_read_twice), is_by_rows=True)
    yield _variant("read twice, modulo 256", lambda byte: (byte - _BIAS) % 256)
    yield _variant("127 taken off twice, clipped at 0", lambda byte: (byte - _BIAS).clamp(min=0))
    offset = _common_offset(train, serve)
    if offset:
        words = f"every byte {abs(offset)} too {'large' if offset > 0 else 'small'}"
        yield _variant(words, lambda byte: (byte + offset).clamp(0, _NAN - 1))


def _variant(serve: str, change: Callable[[Tensor], Tensor]) -> Variant:
    predict = partial(map_weights, change=partial(_rewritten, change=change))
    return Variant(_ONCE, serve, predict, is_by_rows=True, rewrite=partial(_in_bytes, change=change))


def _common_offset(train: Layer, serve: Layer) -> int | None:
    """Returns the exponent of the power of two that most differing values are off by; `None` if few agree in any."""
    seen: Counter[int] = Counter()
    num_seen = 0
    for name in train.keys() & serve.keys():
        if train[name].quantized is not None and train[name].values.shape == serve[name].values.shape:
            exponents_K, is_power_K = _ratios(train[name].values, serve[name].values)
            seen.update(exponents_K[is_power_K].tolist())
            num_seen += len(exponents_K)
    if not seen:
        return None
    offset, count = seen.most_common(1)[0]
    return offset if count >= _COMMON * num_seen else None


def _ratios(train: Tensor, serve: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log2 of serve / train, rounded down, of some values that differ, [K], and whether it is exact."""
    train, serve = train.flatten(), serve.flatten()
    places_K = ((train != serve) & (train != 0) & (serve != 0)).nonzero().flatten()
    places_K = places_K[:: max(1, len(places_K) // _LOOKED_AT)]
    fractions_K, exponents_K = torch.frexp(serve[places_K].double() / train[places_K].double())
    return exponents_K - 1, fractions_K == 0.5


def _wrapped_up(byte: Tensor) -> Tensor:
    return (byte + _BIAS) % 256


def _rewritten(weight: Weight, change: Callable[[Tensor], Tensor]) -> Weight | None:
    stored = weight.quantized
    if stored is None or not isinstance(stored.scheme.scale, ExponentScale):
        return None
    scales = change(stored.scales.to(torch.int32)).to(torch.uint8)
    return with_quantized(weight, replace(stored, scales=scales))


def _in_bytes(matrix: StoredMatrix, change: Callable[[Tensor], Tensor]) -> StoredMatrix | None:
    if matrix.packing is None or matrix.packing.scale is not ScaleKind.E8M0:
        return None
    scales = matrix.parts[Part.SCALES]
    changed = change(scales.view(torch.uint8).to(torch.int32)).to(torch.uint8)
    return replace(matrix, parts={**matrix.parts, Part.SCALES: changed.view(scales.dtype)})


def _read_twice(weight: Weight) -> Weight | None:
    if weight.quantized is None or not isinstance(weight.quantized.scheme.scale, ExponentScale):
        return None
    return with_values(weight, weight.values.float() * 2.0**-_BIAS)

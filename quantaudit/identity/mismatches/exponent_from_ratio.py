"""A power-of-two scale takes the exponent of absmax / d, d the largest element, not that of absmax less that of d.

With a = 2^e s and d = 2^k c (1 <= s, c < 2), floor(log2(a / d)) = e - k - [s < c]: one too small for every block whose
maximum has a smaller significand than d, which then saturates. In the words of a scheme it is the rule `even` with its
threshold at c and a divisor of 2^(k + 1), as e - k - [s < c] = e + [s >= c] - (k + 1). For MXFP4, d = 6 and c = 1.5.
"""

from __future__ import annotations

import math

from quantaudit.core.scheme import ExponentRounding, ExponentScale, Scheme
from quantaudit.identity.mismatches.protocol import About, Finding, Kind, Layer, Weight
from quantaudit.identity.mismatches.scoring import Variant, best
from quantaudit.identity.mismatches.weights import map_weights, with_quantized
from quantaudit.numerics.reference import quantize

ABOUT = About(
    name="exponent-from-ratio",
    kind=Kind.SCALE_RULE,
    field="scale.rounding",
    sentence="The scale is the exponent of absmax over the largest element, so block maxima saturate.",
)


def apply(layer: Layer) -> Layer | None:
    """Quantizes the masters again with the exponent of the ratio."""
    return map_weights(layer, _quantized)


def recognise(train: Layer, serve: Layer) -> Finding | None:
    """Finds the masters quantized with the exponent of the ratio."""
    rules = [w.scheme.scale for w in train.values() if w.scheme and isinstance(w.scheme.scale, ExponentScale)]
    if not rules:
        return None
    served = f"exponent of absmax / {rules[0].divisor:g}"
    return best(ABOUT, train, serve, [Variant(rules[0].rounding, served, apply, is_by_rows=True)])


def with_exponent_of_ratio(scheme: Scheme) -> Scheme | None:
    """Returns the scheme with this fault; `None` if its scales are no powers of two, or its divisor one itself."""
    rule = scheme.scale
    if not isinstance(rule, ExponentScale):
        return None
    fraction, exponent = math.frexp(rule.divisor)  # divisor = 2 fraction * 2^(exponent - 1)
    kept = -math.log2(2.0 - 2.0 * fraction) - 1.0
    if not kept.is_integer() or kept < 0:
        return None
    update = {"rounding": ExponentRounding.EVEN, "divisor": 2.0**exponent, "kept_mantissa_bits": int(kept)}
    return scheme.model_copy(update={"scale": rule.model_copy(update=update)})


def _quantized(weight: Weight) -> Weight | None:
    if weight.scheme is None or weight.quantized is None or weight.master is None:
        return None
    scheme = with_exponent_of_ratio(weight.scheme)
    return None if scheme is None else with_quantized(weight, quantize(weight.master, scheme))

"""Schemes that say exactly what torchao's integer and FP8 quantizers compute, and so what sets them apart."""

from __future__ import annotations

from quantaudit.backends import torchao_departures as d
from quantaudit.backends.protocol import Offer
from quantaudit.backends.torchao_offers import GRANULARITIES
from quantaudit.core.format import E4M3
from quantaudit.core.scheme import Arithmetic, CodeRange, Division, LinearScale, Scheme
from quantaudit.numerics import get_scheme

_FLOORS = {d.SMALLEST_NORMAL: 2.0**-126, d.SINGLE_EPSILON: 2.0**-23}


def twin(offer: Offer) -> Scheme:
    """Returns the catalogue scheme of an offer, changed by what the sentences of its departures say, and nothing else.

    What they say of infinities, zeros and NaN is no part of a scheme.
    """
    scheme = get_scheme(offer.catalogue)
    assert isinstance(scheme.scale, LinearScale)
    update: dict[str, object] = {}
    rule: dict[str, object] = {}
    if {d.INPUT_DTYPE, d.INPUT_SCALE, d.ROUNDED_SCALE} & set(offer.departs):
        rule["arithmetic"] = Arithmetic.INPUT
    if d.INPUT_DTYPE in offer.departs:
        update["arithmetic"] = Arithmetic.INPUT
    if d.RECIPROCAL in offer.departs:
        update["division"] = Division.RECIPROCAL
    if d.FULL_RANGE in offer.departs:
        rule["divisor"], update["code_range"] = 127.5, CodeRange(low=-128, high=127)
    if d.SINGLE_LEVEL in offer.departs:
        rule |= {"second_level": None, "scale_floor": 2.0**-6, "format": E4M3}
    if d.GROUPS_OF_32 in offer.departs:
        update["granularity"] = GRANULARITIES[offer.name]
    for sentence in _FLOORS.keys() & set(offer.departs):
        rule["scale_floor"] = _FLOORS[sentence]
    return scheme.model_copy(update={**update, "scale": scheme.scale.model_copy(update=rule)})

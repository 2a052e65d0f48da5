"""A restated rule: an offer, and the arithmetic that it stands for, run by this package.

Most rules are a scheme of their own, the catalogue's with some fields replaced; the others are written out. What a
result carries is the catalogue scheme, as with every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.backends.protocol import Offer
from quantaudit.core.scheme import Scheme
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.reference import INPUT_DTYPES, QuantizedTensor, quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """One restated rule.

    Attributes:
        offer: What it is called, and where it departs from the catalogue.
        quantize: Quantizes a contiguous weight; the result carries the catalogue scheme.
    """

    offer: Offer
    quantize: Callable[[Tensor], QuantizedTensor]


def convention(
    name: str,
    catalogue: str,
    rule: Callable[[Tensor], QuantizedTensor],
    *,
    source: str,
    departs: tuple[str, ...] = (),
    dtypes: tuple[torch.dtype, ...] = INPUT_DTYPES,
) -> Convention:
    """Returns the convention of a rule.

    Args:
        name: Name within the backend.
        catalogue: The nearest scheme of the catalogue, which results carry.
        rule: The arithmetic.
        source: Whose rule it is.
        departs: Where it departs from the catalogue scheme.
        dtypes: Input dtypes.
    """
    offer = Offer(name=name, catalogue=catalogue, dtypes=dtypes, departs=departs, source=source)
    return Convention(offer=offer, quantize=lambda x: replace(rule(x), scheme=get_scheme(catalogue)))


def by_scheme(scheme: Scheme) -> Callable[[Tensor], QuantizedTensor]:
    """Returns the rule of a scheme."""
    return lambda x: quantize(x, scheme)

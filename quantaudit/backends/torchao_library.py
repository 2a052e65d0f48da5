"""The code behind torchao's offers, by name. Importing this file imports torchao, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from quantaudit.backends.library import Code
from quantaudit.backends.protocol import Offer
from quantaudit.backends.torchao_float8 import dequantize_float8, quantize_float8
from quantaudit.backends.torchao_intx import dequantize_integers, quantize_int8, quantize_intx, quantize_no_clipping
from quantaudit.backends.torchao_mx import dequantize_mx, quantize_mx
from quantaudit.backends.torchao_nvfp4 import dequantize_nvfp4, quantize_single_level, quantize_two_level
from quantaudit.backends.torchao_offers import OFFERS
from quantaudit.core.format import E2M1, FormatKind
from quantaudit.core.scheme import ExponentScale
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.reference import QuantizedTensor


def dequantize(q: QuantizedTensor) -> Tensor:
    """Decodes by the code of the family that the scheme belongs to."""
    rule = q.scheme.scale
    if isinstance(rule, ExponentScale):
        return dequantize_mx(q)
    if q.scheme.element == E2M1:
        return dequantize_nvfp4(q)
    return dequantize_integers(q) if q.scheme.element.kind is FormatKind.INTEGER else dequantize_float8(q)


def power_of_two_names(offers: Mapping[str, Offer]) -> list[str]:
    """Lists the offers whose catalogue scheme has power-of-two scales."""
    return [name for name, offer in offers.items() if isinstance(get_scheme(offer.catalogue).scale, ExponentScale)]


CODE = Code(
    quantizers={
        **dict.fromkeys(power_of_two_names(OFFERS), quantize_mx),
        **dict.fromkeys(("int4-g32", "int4-g128", "intx-int8-channel", "intx-int8-g32"), quantize_intx),
        **dict.fromkeys(("int4-g32-no-clipping", "int4-g128-no-clipping"), quantize_no_clipping),
        **dict.fromkeys(("int8-channel", "int8-g32"), quantize_int8),
        **dict.fromkeys(("fp8-tensor", "fp8-channel", "fp8-block128"), quantize_float8),
        "nvfp4": quantize_two_level,
        "nvfp4-single-level": quantize_single_level,
    },
    dequantize=dequantize,
)

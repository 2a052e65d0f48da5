"""The arithmetic of quantizers: an exact scalar reference, its tensor twin, packing, and the catalogue of schemes.

Names load when first used: the catalogue is data and does not need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantaudit.numerics.catalogue import get_scheme, scheme_names
    from quantaudit.numerics.fused import fused_fake_quantize, fused_status
    from quantaudit.numerics.packing import pack, unpack
    from quantaudit.numerics.reference import QuantizedTensor, dequantize, fake_quantize, quantize

__all__ = [
    "QuantizedTensor",
    "dequantize",
    "fake_quantize",
    "fused_fake_quantize",
    "fused_status",
    "get_scheme",
    "pack",
    "quantize",
    "scheme_names",
    "unpack",
]

_HOMES = {
    "QuantizedTensor": "reference",
    "dequantize": "reference",
    "fake_quantize": "reference",
    "fused_fake_quantize": "fused",
    "fused_status": "fused",
    "get_scheme": "catalogue",
    "pack": "packing",
    "quantize": "reference",
    "scheme_names": "catalogue",
    "unpack": "packing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

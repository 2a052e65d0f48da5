"""The arithmetic of quantizers: an exact scalar reference, its tensor twin, packing, and the catalogue of schemes."""

from quantaudit.numerics.catalogue import get_scheme, scheme_names
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor, dequantize, fake_quantize, quantize

__all__ = [
    "QuantizedTensor",
    "dequantize",
    "fake_quantize",
    "get_scheme",
    "pack",
    "quantize",
    "scheme_names",
    "unpack",
]

"""What torchao offers, and where each quantizer departs from the catalogue: data, read without importing torchao.

Two tables: the quantizers of stored weights, and the fake quantizers of training. Equal names are the two sides of one
training: what it prepared, and what it converts to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from quantaudit.backends import torchao_departures as d
from quantaudit.backends.protocol import Offer

_BOTH = (torch.float32, torch.bfloat16)
_MX_STEMS = ("mxfp4", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp8-e4m3", "mxfp8-e5m2")
_MX_DEPARTURES = {
    "floor": (d.HALVED, d.MX_INFINITY, d.NAN_CODES),
    "even": (d.HALVED, d.MX_INFINITY, d.NAN_CODES),
    "rceil": (d.UNSCALED, d.LOGARITHM, d.MX_INFINITY, d.NAN_CODES),
    "ceil": (d.HALVED, d.MX_INFINITY, d.NAN_CODES),
}
_INTX_DEPARTURES = (d.INFINITE_SCALE,)
_TWO_SIDED_DEPARTURES = (d.TWO_SIDED, d.RECIPROCAL, d.INPUT_DTYPE, d.SMALLEST_NORMAL, d.INFINITE_SCALE)
_FLOAT8_DEPARTURES = (d.DIVIDES_BY_ZERO, d.FP8_INFINITY, d.NAN_CODES)
_NVFP4_DEPARTURES = (d.ZERO_MATRIX, d.OVERFLOWING_RECIPROCAL, d.NVFP4_INFINITY, d.NAN_CODES)


def _offer(name: str, catalogue: str, departs: tuple[str, ...], source: str) -> Offer:
    return Offer(name=name, catalogue=catalogue, dtypes=_BOTH, departs=departs, source=source)


def _mx(source: str) -> Iterator[Offer]:
    for stem in _MX_STEMS:
        for mode, departs in _MX_DEPARTURES.items():
            yield _offer(f"{stem}-{mode}", f"{stem}-{mode}", departs, source)


def _integers() -> Iterator[Offer]:
    intx = "torchao.quantization.IntxUnpackedToInt8Tensor.from_hp, mapping "
    for size in (32, 128):
        group = f"int4-g{size}"
        yield _offer(group, f"{group}-div7.5-recip-native", _INTX_DEPARTURES, intx + "SYMMETRIC")
        no_clipping = intx + "SYMMETRIC_NO_CLIPPING_ERR"
        yield _offer(f"{group}-no-clipping", f"{group}-div7", _TWO_SIDED_DEPARTURES, no_clipping)
    for name in ("int8-channel", "int8-g32"):
        scheme = f"{name}-div127.5-recip-native"
        yield _offer(name, f"{scheme}-scale-eps", _INTX_DEPARTURES, "torchao.quantization.Int8Tensor.from_hp")
        yield _offer(f"intx-{name}", scheme, _INTX_DEPARTURES, intx + "SYMMETRIC")


def _float8(source: str, grains: Iterable[str]) -> Iterator[Offer]:
    own = {"tensor": (d.SHARED_BY_EXPERTS,), "channel": (), "block128": (d.WHOLE_BLOCKS,)}
    for grain in grains:
        yield _offer(f"fp8-{grain}", f"fp8-{grain}-native-scale", (*_FLOAT8_DEPARTURES, *own[grain]), source)


def _nvfp4(source: str) -> Iterator[Offer]:
    yield _offer("nvfp4", "nvfp4", _NVFP4_DEPARTURES, source)
    yield _offer("nvfp4-single-level", "nvfp4-single-level", (d.SINGLE_INFINITY, d.NAN_CODES), source)


def _fake_integers() -> Iterator[Offer]:
    intx = "torchao.quantization.qat.IntxFakeQuantizer, scale_precision "
    fp32 = intx + "float32, the default of IntxFakeQuantizeConfig"
    for size in (32, 128):
        group = f"int4-g{size}"
        scheme = f"{group}-div7.5-recip-native"
        yield _offer(group, scheme, _INTX_DEPARTURES, intx + "None, as QATConfig prepares it")
        yield _offer(f"{group}-fp32-scale", f"{scheme}-scale", _INTX_DEPARTURES, fp32)
    for name in ("int8-channel", "int8-g32"):
        scheme = f"{name}-div127.5-recip-native"
        yield _offer(name, f"{scheme}-scale", _INTX_DEPARTURES, fp32)
        yield _offer(f"intx-{name}", scheme, _INTX_DEPARTURES, intx + "None")


def _by_name(*groups: Iterable[Offer]) -> Mapping[str, Offer]:
    return {offer.name: offer for group in groups for offer in group}


OFFERS = _by_name(
    _mx("torchao.prototype.mx_formats.mx_tensor.to_mx"),
    _integers(),
    _float8("torchao.quantization.Float8Tensor.from_hp", ("tensor", "channel", "block128")),
    _nvfp4("torchao.prototype.mx_formats.nvfp4_tensor.NVFP4Tensor.to_nvfp4"),
)
QAT_OFFERS = _by_name(
    _mx("torchao.prototype.qat.MXFakeQuantizedLinear"),
    _fake_integers(),
    _float8("torchao.quantization.qat.Float8FakeQuantizer", ("tensor", "channel")),
    _nvfp4("torchao.prototype.qat.NVFP4FakeQuantizedLinear"),
)

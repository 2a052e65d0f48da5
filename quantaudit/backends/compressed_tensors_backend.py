"""compressed-tensors: its presets for weights, by the steps that write a checkpoint and those that read it.

`calculate_qparams` chooses the scales of the extremes of every group, the compressor of the format quantizes and packs,
and decompresses. Experts of a stack are compressed one by one, since the FP4 compressors take matrices only.
Integers and FP8 divide and decode in the dtype of the weight; FP4, NVFP4 and MX formats always decode to bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from quantaudit.backends.library import Code, LibraryBackend, stacked
from quantaudit.backends.protocol import Offer
from quantaudit.core.format import E4M3, Format, IntegerFormat
from quantaudit.core.scheme import Granularity, Layout, Scheme
from quantaudit.numerics.catalogue import get_scheme
from quantaudit.numerics.grouping import plan, to_groups
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

if TYPE_CHECKING:
    from compressed_tensors.quantization import QuantizationScheme

_BOTH = (torch.float32, torch.bfloat16)
_NVFP4, _FP8_TENSOR = "nvfp4", "fp8-tensor"
_TOP = "weight_global_scale"


class _Format(NamedTuple):
    """A preset, the compressor that writes it, and the size of a group where the preset has another."""

    preset: str
    compressor: str
    group_size: int | None = None


_FORMATS = {
    "int4-g32": _Format("W4A16", "pack-quantized", 32),
    "int4-g128": _Format("W4A16", "pack-quantized"),
    "mxfp4": _Format("MXFP4A16", "mxfp4-pack-quantized"),
    "mxfp8": _Format("MXFP8A16", "mxfp8-quantized"),
    "nvfp4": _Format("NVFP4A16", "nvfp4-pack-quantized"),
    "fp8-tensor": _Format("FP8", "float-quantized"),
    "fp8-channel": _Format("FP8_DYNAMIC", "float-quantized"),
    "fp8-block128": _Format("FP8_BLOCK", "float-quantized"),
}


ZERO_SCALE = "A scale of zero is stored as 2^-23, for bf16 as 2^-7."
INFINITE_SCALE = "A group with an infinity has an infinite scale, not NaN; its values are NaN as in the catalogue."
SPECIAL_CODES = (
    "The codes of a group with an infinity or a NaN are not all zero; its values are NaN as in the catalogue."
)
NEGATIVE_ZERO = "A ratio of -0, of the value -0 or of one that vanishes against its scale, gets the code of +0."
BF16_VALUES = "Values decode to bf16, those of fp32 weights too."
LAST_BINADE = "A group maximum of at least 1.75 * 2^127 gets the scale 1 and decodes to zeros."
FINITE = "A group with an infinity or a NaN is not NaN: it gets the scale 1 or 2^-127, and finite values."
FINITE_FP8 = (
    "A group with an infinity or a NaN is not NaN: it gets the scale 1 or 2^-127, and finite values but for the "
    "infinities and NaNs themselves, which become NaN."
)
RECIPROCAL_TOP = (
    "The upper scale is stored as 2688 / absmax, and block scales are that times absmax / 6: on a rounding border the "
    "neighbouring one, and values an ulp off."
)
BF16_SCALES = "bf16: 2688 / absmax of the matrix and absmax / 6 of a block are rounded to bf16."
NO_FLOOR = "A block scale is not at least 2^-6: smaller ones are kept down to 2^-9, and zero becomes 1/8."
TOP_OF_ONE = (
    "A matrix whose absmax is below 2688 / 2^128, a zero one too, has an upper scale of 1 and decodes to zeros."
)
NAN_BLOCK = "A NaN makes its own block NaN, not the matrix, whose upper scale becomes 1."
INFINITE_TOP = "A matrix with an infinity has block scales that are not NaN; its values are NaN as in the catalogue."


def _offer(name: str, catalogue: str, *departs: str) -> Offer:
    form = _FORMATS[name]
    source = f"compressed_tensors preset {form.preset}, compressor {form.compressor}"
    return Offer(name=name, catalogue=catalogue, dtypes=_BOTH, departs=departs, source=source)


_INTEGER = (ZERO_SCALE, INFINITE_SCALE)
_FP8 = (ZERO_SCALE, NEGATIVE_ZERO, INFINITE_SCALE, SPECIAL_CODES)
_NVFP4_DEPARTS = (
    *(RECIPROCAL_TOP, BF16_SCALES, NO_FLOOR, TOP_OF_ONE),
    *(NEGATIVE_ZERO, NAN_BLOCK, INFINITE_TOP, BF16_VALUES),
)
OFFERS = {
    offer.name: offer
    for offer in (
        _offer("int4-g32", "int4-g32-div7.5-native", *_INTEGER),
        _offer("int4-g128", "int4-g128-div7.5-native", *_INTEGER),
        _offer("mxfp4", "mxfp4-even", NEGATIVE_ZERO, LAST_BINADE, FINITE, BF16_VALUES),
        _offer("mxfp8", "mxfp8-e4m3-even-e2m1", NEGATIVE_ZERO, LAST_BINADE, FINITE_FP8, BF16_VALUES),
        _offer("nvfp4", "nvfp4", *_NVFP4_DEPARTS),
        _offer("fp8-tensor", "fp8-tensor-native", *_FP8),
        _offer("fp8-channel", "fp8-channel-native", *_FP8),
        _offer("fp8-block128", "fp8-block128-native", *_FP8),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compressed(QuantizedTensor):
    """An NVFP4 tensor with the number that its file holds, of which `second_scales` is the rounded reciprocal.

    Attributes:
        global_scale: fp32, leading axes + [1]: 2688 / absmax.
    """

    global_scale: Tensor


def _quantize(name: str, x: Tensor, scheme: Scheme) -> QuantizedTensor:
    preset = _preset(name)
    states = [_compress(matrix, name, preset, scheme) for matrix in x.reshape(-1, *x.shape[-2:])]
    packed = stacked([state["weight_packed" if "weight_packed" in state else "weight"] for state in states])
    scales = stacked([state["weight_scale"] for state in states]).reshape(plan(x.shape, scheme.granularity).grid)
    quantized = QuantizedTensor(
        codes=_unpacked(packed, scheme).reshape(x.shape),
        scales=scales.view(torch.uint8) if scales.element_size() == 1 else scales.float(),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )
    if _TOP not in states[0]:
        return quantized
    return _with_top(quantized, stacked([state[_TOP] for state in states]).reshape(*x.shape[:-2], 1))


def _with_top(q: QuantizedTensor, top: Tensor) -> Compressed:
    return Compressed(
        codes=q.codes,
        scales=q.scales,
        second_scales=1.0 / top,
        offset=None,
        shape=q.shape,
        dtype=q.dtype,
        scheme=q.scheme,
        global_scale=top,
    )


def _compress(x_RC: Tensor, name: str, preset: QuantizationScheme, scheme: Scheme) -> dict[str, Tensor]:
    """Returns what a checkpoint holds of one matrix, by the names there."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    cut = plan(tuple(x_RC.shape), scheme.granularity)
    groups_GN = to_groups(x_RC, cut)[0]
    low_G, high_G = groups_GN.amin(-1), groups_GN.amax(-1)
    state = {"weight": x_RC}
    if name == _NVFP4:
        state[_TOP] = generate_gparam(low_G.min(), high_G.max())
    scale, zero_point = calculate_qparams(
        low_G.reshape(cut.grid), high_G.reshape(cut.grid), preset.weights, state.get(_TOP)
    )
    if name == _FP8_TENSOR:
        scale, zero_point = scale.reshape(1), zero_point.reshape(1)
    state |= {"weight_scale": scale, "weight_zero_point": zero_point}
    compressed: dict[str, Tensor] = BaseCompressor.get_value_from_registry(_FORMATS[name].compressor).compress(
        state, preset
    )
    return compressed


def _dequantize(q: QuantizedTensor) -> Tensor:
    """Decodes matrix by matrix; the elements and groups of the tensor tell which format it was."""
    name = _names()[q.scheme.element, q.scheme.granularity]
    preset = _preset(name)
    stack = math.prod(q.shape[:-2])
    codes_SRC, scales = q.codes.reshape(stack, *q.shape[-2:]), q.scales.reshape(stack, *_scale_shape(q, name))
    tops = [None] * stack if q.second_scales is None else list(_global_scale(q).reshape(stack, 1))
    matrices = [
        _decompress(q, name, preset, codes_RC, scale, top)
        for codes_RC, scale, top in zip(codes_SRC, scales, tops, strict=True)
    ]
    return stacked(matrices).reshape(q.shape)


@cache
def _names() -> dict[tuple[Format, Granularity], str]:
    schemes = {name: get_scheme(offer.catalogue) for name, offer in OFFERS.items()}
    return {(scheme.element, scheme.granularity): name for name, scheme in schemes.items()}


def _decompress(
    q: QuantizedTensor, name: str, preset: QuantizationScheme, codes_RC: Tensor, scale: Tensor, top: Tensor | None
) -> Tensor:
    from compressed_tensors.compressors import BaseCompressor

    is_packed = q.scheme.layout is not Layout.BYTES
    stored = pack(codes_RC, q.scheme.layout) if is_packed else codes_RC.view(torch.float8_e4m3fn)
    state = {"weight_packed" if is_packed else "weight": stored, "weight_scale": _stored_scale(scale, name, q.dtype)}
    if isinstance(q.scheme.element, IntegerFormat):
        state["weight_shape"] = torch.tensor(codes_RC.shape)
    if top is not None:
        state[_TOP] = top
    values: Tensor = BaseCompressor.get_value_from_registry(_FORMATS[name].compressor).decompress(state, preset)[
        "weight"
    ]
    return values


def _stored_scale(scale: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """Returns scales in the dtype of the file: E4M3 under a global scale, E8M0 bytes, else that of the weight."""
    if name == _NVFP4:
        return scale.view(torch.float8_e4m3fn)
    return scale if scale.dtype == torch.uint8 else scale.to(dtype)


def _scale_shape(q: QuantizedTensor, name: str) -> tuple[int, ...]:
    return (1,) if name == _FP8_TENSOR else tuple(q.scales.shape[-2:])


def _global_scale(q: QuantizedTensor) -> Tensor:
    """Returns the number in the file, or the reciprocal of the second level where the tensor came from elsewhere."""
    assert q.second_scales is not None
    if isinstance(q, Compressed) and torch.equal(1.0 / q.global_scale, q.second_scales):
        return q.global_scale
    return 1.0 / q.second_scales


def _unpacked(packed: Tensor, scheme: Scheme) -> Tensor:
    if scheme.element == E4M3:
        return packed.view(torch.uint8)
    is_integer = isinstance(scheme.element, IntegerFormat)
    return unpack(packed, scheme.layout, dtype=torch.int8 if is_integer else torch.uint8)


def _preset(name: str) -> QuantizationScheme:
    from compressed_tensors.quantization import preset_name_to_scheme

    form = _FORMATS[name]
    preset = preset_name_to_scheme(form.preset, ["Linear"])
    if form.group_size is not None:
        preset.weights.group_size = form.group_size
    return preset


def _open() -> Code:
    return Code(quantizers={name: partial(_quantize, name) for name in OFFERS}, dequantize=_dequantize)


BACKEND = LibraryBackend(
    name="compressed-tensors",
    distribution="compressed-tensors",
    extra="hf",
    tested="0.20.",
    offers=OFFERS,
    open_code=_open,
)

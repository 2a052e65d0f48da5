"""Codes and scales of expert matrices from and to the tensors of the packed formats, bit for bit.

A scale is stored in a dtype that holds it: BF16 where the scheme computes it in the dtype of bf16 weights, else F32.
Whoever loads F32 scales into bf16 rounds them and computes something else than was exported.

The upper scale of NVFP4 is a multiplier t, v = value(c) * (s * t) in fp32. compressed-tensors stores a divisor d, and
s / d = s * t holds for all block scales s of a matrix only if d is found that does it (one in six, on random weights).
Where a file has a d without a t, both scales are folded into one of fp32, which holds s / d.

Legend: R rows, C columns, G groups; one matrix throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.checkpoint.bit_words import pack_words, unpack_words
from quantaudit.checkpoint.names import Part
from quantaudit.checkpoint.packed import (
    INTEGERS,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP8,
    NVFP4,
    Grain,
    PackedFormat,
    Packing,
    grid_of,
)
from quantaudit.core.errors import InputError
from quantaudit.core.format import E2M1, E4M3, E8M0, FP32, IntegerFormat
from quantaudit.core.scheme import (
    Arithmetic,
    ExponentScale,
    Layout,
    LinearScale,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    PerToken,
    Scheme,
    TwoLevel,
)
from quantaudit.numerics import QuantizedTensor, get_scheme, pack, unpack
from quantaudit.numerics.bits import decode_e8m0
from quantaudit.numerics.rounding import decode

_NIBBLES = Layout.LOW_NIBBLE_FIRST
_NEIGHBOURS = 4  # fp32 numbers on either side of the reciprocal that are tried
# Codes and scales decode alike under every scale rule; which rule chose them is not written in the file.
_ASSUMED = {2: "int2-g32", 3: "int3-g32", 4: "int4-g32-div7.5", 8: "int8-channel"}


class Codes(NamedTuple):
    """One matrix, unpacked.

    Attributes:
        codes: [R, C] int8 for integers, else uint8.
        scales: uint8 codes of 8-bit formats, else fp32; [grid].
        above: [1] fp32: the upper scale, a multiplier; `None` without one.
    """

    codes: Tensor
    scales: Tensor
    above: Tensor | None


def packing_of(scheme: Scheme) -> Packing | None:
    """Returns how tensors in a scheme are packed; `None` if no format holds its codes or scales.

    NVFP4 comes in the convention that holds every upper scale; `can_divide` tells where the other one does too.
    """
    rule, grain, element = scheme.scale, scheme.granularity, scheme.element
    is_power = isinstance(rule, ExponentScale) and rule.format == E8M0
    is_plain = isinstance(rule, LinearScale) and rule.second_level is None and rule.format.bits > 8
    if is_power and element in (E2M1, E4M3) and grain == MXFP4.granularity:
        return MXFP4 if element == E2M1 else MXFP8
    if element == E2M1 and grain == NVFP4.granularity and _is_two_level(rule):
        return MODELOPT_NVFP4
    if isinstance(grain, PerToken):
        grain = PerChannel()
    if is_plain and isinstance(element, IntegerFormat) and isinstance(grain, PerGroup | PerChannel):
        is_known = INTEGERS.get(element.bits) == element
        return Packing(format=PackedFormat.INTEGERS, element=element, granularity=grain) if is_known else None
    if (is_plain or is_power) and element == E4M3 and isinstance(grain, PerTensor | PerChannel | PerGroup | PerBlock):
        return Packing(format=PackedFormat.FP8, element=E4M3, granularity=grain)
    return None


def _is_two_level(rule: ExponentScale | LinearScale) -> bool:
    return isinstance(rule, LinearScale) and rule.format == E4M3 and isinstance(rule.second_level, TwoLevel)


def scheme_of(packing: Packing, *, is_folded: bool) -> Scheme:
    """Returns a scheme that decodes a packing; how it would choose scales is an assumption.

    Args:
        packing: How a matrix is packed.
        is_folded: For NVFP4, whether both scales have become one.
    """
    match packing.format:
        case PackedFormat.MXFP4:
            return get_scheme("mxfp4-even")
        case PackedFormat.MXFP8:
            return get_scheme("mxfp8-e4m3-even")
        case PackedFormat.NVFP4 | PackedFormat.MODELOPT_NVFP4:
            return _folded() if is_folded else get_scheme("nvfp4")
        case PackedFormat.FP8:
            return _with_grain(get_scheme("fp8-block128"), packing.granularity)
    return _with_grain(get_scheme(_ASSUMED[packing.element.bits]), packing.granularity)


def _folded() -> Scheme:
    nvfp4 = get_scheme("nvfp4")
    rule = nvfp4.scale.model_copy(update={"second_level": None, "scale_floor": 0.0, "format": FP32})
    return nvfp4.model_copy(update={"name": "nvfp4-folded", "scale": rule})


def _with_grain(scheme: Scheme, grain: Grain) -> Scheme:
    """Returns the scheme with other groups, under the name that the catalogue has for it, if it has one."""
    if scheme.granularity == grain:
        return scheme
    stem = scheme.name.split("-")[0]
    size = f"-{grain.size}" if isinstance(grain, PerGroup) else ""
    return scheme.model_copy(update={"name": f"{stem}-{grain.kind}{size}", "granularity": grain})


def encode_parts(q: QuantizedTensor, packing: Packing) -> dict[Part, Tensor]:
    """Returns the tensors of one matrix.

    Args:
        q: [R, C].
        packing: One that holds it: `packing_of` its scheme, or NVFP4 where `can_divide`.
    """
    rows, cols = q.codes.shape
    match packing.format:
        case PackedFormat.MXFP4:
            return {Part.PACKED: pack(q.codes, _NIBBLES), Part.SCALE: q.scales}
        case PackedFormat.MXFP8:
            return {Part.WEIGHT: q.codes.view(torch.float8_e4m3fn), Part.SCALE: q.scales}
        case PackedFormat.INTEGERS:
            words = pack_words(q.codes, packing.element.bits)
            scales = q.scales.to(stored_scale_dtype(q))
            return {Part.PACKED: words, Part.SCALE: scales, Part.SHAPE: torch.tensor([rows, cols])}
        case PackedFormat.FP8:
            is_power = isinstance(q.scheme.scale, ExponentScale)
            scales = decode_e8m0(q.scales) if is_power else q.scales.to(stored_scale_dtype(q))
            shape = (1,) if isinstance(packing.granularity, PerTensor) else tuple(scales.shape)
            codes = q.codes.view(torch.float8_e4m3fn)
            return {Part.WEIGHT: codes, Part.SCALE: scales.reshape(shape)}
    assert q.second_scales is not None
    codes, scales = pack(q.codes, _NIBBLES), q.scales.view(torch.float8_e4m3fn)
    if packing.format is PackedFormat.MODELOPT_NVFP4:
        return {Part.WEIGHT: codes, Part.SCALE: scales, Part.ABOVE: q.second_scales.reshape(())}
    divisor = find_divisor(q.second_scales, q.scales)
    if divisor is None:
        raise InputError(
            f"an upper scale of {float(q.second_scales)!r}",
            expected="one whose products with the block scales are quotients by an fp32 number",
            fix=f"write it as {PackedFormat.MODELOPT_NVFP4}",
        )
    return {Part.PACKED: codes, Part.SCALE: scales, Part.GLOBAL: divisor.reshape(1)}


def stored_scale_dtype(q: QuantizedTensor) -> torch.dtype:
    """Returns the dtype in which scales that are no 8-bit codes are stored.

    It is bf16 if the scheme computes them in the dtype of the weight and that was bf16.
    """
    is_native = isinstance(q.scheme.scale, LinearScale) and q.scheme.scale.arithmetic is Arithmetic.INPUT
    is_exact = is_native and torch.equal(q.scales.to(torch.bfloat16).float(), q.scales)
    return torch.bfloat16 if is_exact else torch.float32


def decode_parts(parts: dict[Part, Tensor], packing: Packing, shape: tuple[int, int], *, is_folded: bool) -> Codes:
    """Returns the codes and scales of one matrix, of which the tensors are as `packed.parts_of` describes them.

    Args:
        parts: As stored, `weight_scale_inv` under `weight_scale`.
        packing: How it is packed.
        shape: R and C.
        is_folded: For NVFP4, whether both scales become one.
    """
    grid = grid_of(packing.granularity, *shape)
    assert grid is not None
    stored = parts[Part.SCALE].reshape(grid)
    scales = stored.float() if stored.dtype in (torch.bfloat16, torch.float32) else stored.view(torch.uint8)
    match packing.format:
        case PackedFormat.MXFP4:
            return Codes(unpack(parts[Part.PACKED], _NIBBLES), scales, None)
        case PackedFormat.INTEGERS:
            return Codes(unpack_words(parts[Part.PACKED], packing.element.bits, shape[1]), scales, None)
        case PackedFormat.NVFP4:
            return _decode_divided(parts, scales, is_folded=is_folded)
        case PackedFormat.MODELOPT_NVFP4:
            return Codes(unpack(parts[Part.WEIGHT], _NIBBLES), scales, parts[Part.ABOVE].reshape(1))
    return Codes(parts[Part.WEIGHT].view(torch.uint8), scales, None)


def _decode_divided(parts: dict[Part, Tensor], scales: Tensor, *, is_folded: bool) -> Codes:
    codes, divisor = unpack(parts[Part.PACKED], _NIBBLES), parts[Part.GLOBAL].reshape(1)
    if is_folded:
        return Codes(codes, decode(scales, E4M3) / divisor, None)
    return Codes(codes, scales, find_multiplier(divisor, scales))


def find_divisor(multiplier: Tensor, scales: Tensor) -> Tensor | None:
    """Returns an fp32 number d, [1], with s / d = s * multiplier for all scales; `None` if there is none.

    Args:
        multiplier: [1] fp32.
        scales: uint8 codes of E4M3.
    """
    used = decode(scales.unique(), E4M3)
    tried = _neighbours(1.0 / multiplier)
    fits = (used / tried.unsqueeze(-1) == used * multiplier).all(-1)
    return _first(tried, fits)


def find_multiplier(divisor: Tensor, scales: Tensor) -> Tensor | None:
    """Returns an fp32 number t, [1], with s * t = s / divisor for all scales; `None` if there is none."""
    used = decode(scales.unique(), E4M3)
    tried = _neighbours(1.0 / divisor)
    fits = (used * tried.unsqueeze(-1) == used / divisor).all(-1)
    return _first(tried, fits)


def can_divide(q: QuantizedTensor) -> bool:
    """Tells whether every matrix of a stack in NVFP4 has a divisor in the place of its upper scale."""
    assert q.second_scales is not None
    pairs = zip(q.second_scales.reshape(-1, 1), q.scales.reshape(-1, *q.scales.shape[-2:]), strict=True)
    return all(find_divisor(above, scales) is not None for above, scales in pairs)


def _neighbours(value: Tensor) -> Tensor:
    """Returns a positive fp32 number and those next to it, the nearest first."""
    offsets = sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs)
    return (value.reshape(1).view(torch.int32) + torch.tensor(offsets, dtype=torch.int32)).view(torch.float32)


def _first(tried: Tensor, fits: Tensor) -> Tensor | None:
    good = tried[fits & tried.isfinite() & (tried > 0)]
    return good[:1].clone() if len(good) else None

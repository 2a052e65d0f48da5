"""Schemes that say what one library computes: the plain ones of the catalogue with some fields replaced.

A library rarely departs from a plain scheme in one group only: it multiplies by a reciprocal, or divides bf16 weights
in bf16. With a scheme of its own it departs in special groups alone, and a certificate can say so. What the endings of
the names mean:

    * `-recip`: values are multiplied by the rounded reciprocal of the scale.
    * `-native`: scale and ratio are computed in the dtype of the tensor; `-native-scale`: the scale alone.
    * `-eps`: a scale is at least 2^-23, the machine epsilon of fp32.

For fp32 tensors `-native` and `-native-scale` change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from quantaudit.core.format import E4M3, FP16
from quantaudit.core.scheme import (
    Arithmetic,
    CodeRange,
    Division,
    EncodeScale,
    ExponentRounding,
    ExponentScale,
    FlatBlocks,
    LinearScale,
    Overflow,
    PerGroup,
    Scheme,
    Tie,
)
from quantaudit.numerics.codebooks import DYNAMIC8

_SMALLEST_NORMAL = 2.0**-126
_EPSILON = 2.0**-23
_E4M3_SMALLEST_NORMAL, _E4M3_SMALLEST = 2.0**-6, 2.0**-9

_Find = Callable[[str], Scheme]
_NATIVE = {"arithmetic": Arithmetic.INPUT}
_RECIPROCAL = {"division": Division.RECIPROCAL}


def library_schemes(find: _Find) -> Iterator[Scheme]:
    """Yields the schemes of libraries.

    Args:
        find: Returns a plain scheme of the catalogue by name.
    """
    yield from _int4(find)
    yield from _int8(find)
    yield from _fp8(find)
    yield _mxfp8(find("mxfp8-e4m3-even"))
    yield from _nvfp4(find("nvfp4"))
    yield _gguf_q8_0(find("int8-channel"))
    yield _dynamic8()


def _int4(find: _Find) -> Iterator[Scheme]:
    for size in (32, 128):
        plain = find(f"int4-g{size}-div7.5")
        yield _changed(plain, "-native", "compressed-tensors pack-quantized, and SkyRL", _NATIVE, _NATIVE)
        narrow = find(f"int4-g{size}-div7-narrow")
        yield _changed(narrow, "-native", "SkyRL, the convention (7, -7)", _NATIVE, _NATIVE)
        yield from _torchao_integers(plain)


def _int8(find: _Find) -> Iterator[Scheme]:
    for name, granularity in (("channel", find("int8-channel").granularity), ("g32", PerGroup(size=32))):
        plain = _changed(
            find("int8-channel"),
            "-div127.5",
            "",
            {"divisor": 127.5},
            {"granularity": granularity, "code_range": CodeRange(low=-128, high=127)},
        ).model_copy(update={"name": f"int8-{name}-div127.5"})
        yield from _torchao_integers(plain)
        floored = {**_NATIVE, "scale_floor": _EPSILON}
        yield _changed(plain, "-recip-native-scale-eps", "torchao Int8Tensor", floored, _RECIPROCAL)


def _torchao_integers(plain: Scheme) -> Iterator[Scheme]:
    """Yields what torchao makes of a symmetric integer scheme, with scales in the weight's dtype and in fp32."""
    scale = {**_NATIVE, "scale_floor": _SMALLEST_NORMAL}
    source = "torchao IntxUnpackedToInt8Tensor, mapping SYMMETRIC"
    yield _changed(plain, "-recip-native", source, scale, {**_RECIPROCAL, **_NATIVE})
    source = "torchao IntxFakeQuantizer with scale_precision float32"
    yield _changed(plain, "-recip-native-scale", source, scale, _RECIPROCAL)


def _fp8(find: _Find) -> Iterator[Scheme]:
    for grain in ("tensor", "channel", "block128"):
        plain = find(f"fp8-{grain}")
        yield _changed(plain, "-native", "compressed-tensors float-quantized; modelopt FP8QTensor", _NATIVE, _NATIVE)
        yield _changed(plain, "-native-scale", "torchao Float8Tensor", _NATIVE, {})


def _mxfp8(even: Scheme) -> Scheme:
    """Returns MXFP8 whose scales are rounded up from 1.75, the threshold of FP4."""
    rule = ExponentScale(rounding=ExponentRounding.EVEN, divisor=E4M3.max, kept_mantissa_bits=1)
    return even.model_copy(
        update={"name": f"{even.name}-e2m1", "scale": rule, "source": "compressed-tensors mxfp8-quantized"}
    )


def _nvfp4(plain: Scheme) -> Iterator[Scheme]:
    source = "torchao NVFP4Tensor without a scale above those of the blocks"
    yield _changed(
        plain, "-single-level", source, {"second_level": None, "scale_floor": _E4M3_SMALLEST_NORMAL, "format": E4M3}, {}
    )
    source = "TensorRT Model Optimizer NVFP4QTensor: values are divided by block scale times upper scale"
    yield _changed(plain, "-divide", source, {"scale_floor": _E4M3_SMALLEST}, {"division": Division.DIVIDE})


def _gguf_q8_0(plain: Scheme) -> Scheme:
    scale = {"format": FP16, "overflow": Overflow.SPECIAL, "encode_with": EncodeScale.COMPUTED}
    fields = {"granularity": PerGroup(size=32), "tie": Tie.AWAY, **_RECIPROCAL}
    return _changed(plain, "", "ggml quantize_row_q8_0_ref", scale, fields).model_copy(update={"name": "gguf-q8_0"})


def _dynamic8() -> Scheme:
    return Scheme(
        name="dynamic8-b4096",
        element=DYNAMIC8,
        granularity=FlatBlocks(size=4096),
        scale=LinearScale(divisor=1.0),
        division=Division.RECIPROCAL,
        tie=Tie.LOWER,
        source="bitsandbytes quantize_blockwise with its dynamic map (arXiv 2110.02861), nearest values",
    )


def _changed(
    plain: Scheme, ending: str, source: str, scale: Mapping[str, object], fields: Mapping[str, object]
) -> Scheme:
    rule = plain.scale.model_copy(update=scale)
    return plain.model_copy(update={"name": plain.name + ending, "source": source, "scale": rule, **fields})

"""transformers: the fine-grained FP8 quantizer, and the decoder of gpt-oss's MXFP4 blocks.

Both run as plain torch code. The quantizer of gpt-oss is a GPU kernel that the library fetches, so MXFP4 is offered
for decoding only: `dequantize` takes any tensor of E2M1 codes with power-of-two scales over groups of 32.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.protocol import Offer
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.core.format import E2M1
from quantaudit.core.scheme import ExponentScale, PerBlock, Scheme
from quantaudit.numerics.packing import pack
from quantaudit.numerics.reference import QuantizedTensor

if TYPE_CHECKING:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

_BOTH = (torch.float32, torch.bfloat16)
_MXFP4, _FP8, _FP8_UE8M0 = "mxfp4-decode", "fp8-block128", "fp8-block128-ue8m0"
_KEY = "weight"
_GROUP_BYTES = 16

DECODE_ONLY = "Decode only: the quantizer is a GPU kernel that the library fetches."
NAN_IS_LARGE = "The scale 255 is 2^128, not NaN: zeros stay zero, 0.5 becomes 2^127 and the rest infinite."
TWO_RECIPROCALS = (
    "The scale is 1 / (448 / absmax), rounded twice and an ulp or two off in places; values are multiplied by "
    "448 / absmax."
)
ZERO_BLOCK = "A zero block has a scale of 1."
NO_RECIPROCAL = (
    "A block whose 448 / absmax is infinite, of an absmax below 448 / 2^128, has a scale of 0: its zeros become NaN, "
    "the rest zero."
)
INFINITE_SCALE = "A block with an infinity has an infinite scale and codes that are not all zero; its values are NaN."
NAN_STAYS = "A NaN stays alone: its block has a scale of 1, and the other values are not NaN."
WHOLE_BLOCKS = "A matrix that blocks of 128 x 128 do not divide is left unquantized by the library, and refused here."
SMALLEST_SCALE = "A scale is at least 2^-126."
LOGARITHM = "fp32: the exponent is a float32 log2 of it, so an absmax some ulps above 448 * 2^k gets the scale 2^k."
SPECIAL_CODES = "The codes of a block with an infinity are not all zero; its values are NaN as in the catalogue."

OFFERS = {
    offer.name: offer
    for offer in (
        Offer(
            name=_MXFP4,
            catalogue="mxfp4-rceil",
            dtypes=_BOTH,
            departs=(DECODE_ONLY, NAN_IS_LARGE),
            source="transformers.integrations.mxfp4.convert_moe_packed_tensors",
        ),
        Offer(
            name=_FP8,
            catalogue="fp8-block128",
            dtypes=_BOTH,
            departs=(TWO_RECIPROCALS, ZERO_BLOCK, NO_RECIPROCAL, INFINITE_SCALE, NAN_STAYS, WHOLE_BLOCKS),
            source="transformers.integrations.finegrained_fp8.Fp8Quantize",
        ),
        Offer(
            name=_FP8_UE8M0,
            catalogue="fp8-block128-ue8m0",
            dtypes=_BOTH,
            departs=(SMALLEST_SCALE, LOGARITHM, ZERO_BLOCK, SPECIAL_CODES, NAN_STAYS, WHOLE_BLOCKS),
            source='transformers.integrations.finegrained_fp8.Fp8Quantize, scale_fmt="ue8m0"',
        ),
    )
}


def _refuse(weight: Tensor, scheme: Scheme) -> QuantizedTensor:
    raise NotMeasuredError(
        "transformers quantizes to MXFP4 with a GPU kernel that it fetches, which was not run; "
        "its decoding is checked by transformers:mxfp4-decode, the rule of that kernel by the backend conventions"
    )


def _quantize_fp8(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    stored = _fp8(scheme)[0]._quantize_one(_KEY, x)
    if len(stored) == 1:
        raise InputError(
            f"a weight of shape {list(x.shape)} for transformers:{scheme.name}",
            expected="rows and columns that are multiples of 128: transformers leaves others unquantized",
            fix="leave it out, as transformers does",
        )
    scales = stored[f"{_KEY}_scale_inv"]
    return QuantizedTensor(
        codes=stored[_KEY].view(torch.uint8),
        scales=scales.view(torch.uint8) if scales.element_size() == 1 else scales,
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def _dequantize(q: QuantizedTensor) -> Tensor:
    if q.scheme.element == E2M1:
        return _dequantize_mxfp4(q)
    values: Tensor = _fp8(q.scheme)[1]._dequantize_one(q.codes.view(torch.float8_e4m3fn), q.scales, q.dtype)
    return values


def _dequantize_mxfp4(q: QuantizedTensor) -> Tensor:
    """Decodes; the library gives a stack of transposed matrices."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = pack(q.codes.reshape(-1, *q.shape[-2:]), q.scheme.layout)
    blocks = packed.unflatten(-1, (-1, _GROUP_BYTES))
    values = convert_moe_packed_tensors(blocks, q.scales.reshape(blocks.shape[:-1]), dtype=q.dtype)
    return values.transpose(1, 2).reshape(q.shape)


def _fp8(scheme: Scheme) -> tuple[Fp8Quantize, Fp8Dequantize]:
    """Returns the quantizer and its inverse, configured for the blocks and the scale format of a scheme."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    assert isinstance(scheme.granularity, PerBlock)
    blocks = (scheme.granularity.rows, scheme.granularity.cols)
    scale_format = "ue8m0" if isinstance(scheme.scale, ExponentScale) else "float"
    owner = SimpleNamespace(quantization_config=FineGrainedFP8Config(weight_block_size=blocks, scale_fmt=scale_format))
    return Fp8Quantize(owner), Fp8Dequantize(owner)  # type: ignore[no-untyped-call]


def _open() -> Code:
    return Code(quantizers={_MXFP4: _refuse, _FP8: _quantize_fp8, _FP8_UE8M0: _quantize_fp8}, dequantize=_dequantize)


BACKEND = LibraryBackend(
    name="transformers", distribution="transformers", extra="hf", tested="5.24.", offers=OFFERS, open_code=_open
)

"""gguf: MXFP4, Q4_0 and Q8_0 blocks of 32 values, by the numpy code that writes and reads GGUF files.

A block is stored as its scale, then its codes; Q4_0 and MXFP4 put code j and code j + 16 into one byte. The library
takes fp32 and gives fp32: a bf16 weight is widened first, which is exact, as the converters of checkpoints do.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from quantaudit.backends.library import Code, LibraryBackend
from quantaudit.backends.protocol import Offer
from quantaudit.core.format import E2M1, INT4, INT8, Format
from quantaudit.core.scheme import Layout, Scheme
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

_BLOCK = 32
_BOTH = (torch.float32, torch.bfloat16)
_MXFP4, _Q4_0, _Q8_0 = "mxfp4", "q4_0", "q8_0"
_KINDS: dict[Format, str] = {E2M1: _MXFP4, INT4: _Q4_0, INT8: _Q8_0}
_SCALE_BYTES = {_MXFP4: 1, _Q4_0: 2, _Q8_0: 2}

NO_SIGN = "A zero has no sign: what rounds to -0 gets the code 0, not 8."
LOGARITHM = "fp32: the exponent is a float32 log2, so a group maximum some ulps below 2^k gets the scale of 2^k."
WRAPS = "The exponent of a group maximum below 2^-125 wraps around, to a scale of 2^105 or more: every value becomes 0."
NOT_NAN = "A group with an infinity or a NaN is not NaN: its scale is 2^-127, and no value is larger than 6 times that."
NO_RECIPROCAL = (
    "The codes of a group whose scale has no finite reciprocal, of a maximum up to 2^-125, are not all zero; its "
    "values are zero as in the catalogue."
)
INFINITY_KEPT = (
    "A group with an infinity has an infinite scale, not NaN: infinities decode to themselves, the rest to NaN."
)
NAN_CODES = "The codes of a group with a NaN are not all zero; its values are NaN as in the catalogue."
INFINITE_SCALE = "A group with an infinity has an infinite scale, not NaN; its values are NaN as in the catalogue."

OFFERS = {
    offer.name: offer
    for offer in (
        Offer(
            name=_MXFP4,
            catalogue="mxfp4-floor-zero",
            dtypes=_BOTH,
            departs=(NO_SIGN, LOGARITHM, WRAPS, NOT_NAN),
            source="gguf.quants.MXFP4",
        ),
        Offer(
            name=_Q4_0,
            catalogue="gguf-q4_0",
            dtypes=_BOTH,
            departs=(NO_RECIPROCAL, INFINITY_KEPT, NAN_CODES),
            source="gguf.quants.Q4_0",
        ),
        Offer(
            name=_Q8_0,
            catalogue="gguf-q8_0",
            dtypes=_BOTH,
            departs=(INFINITE_SCALE,),
            source="gguf.quants.Q8_0",
        ),
    )
}


def _quantize(kind: str, x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes `x`, [..., C] with C a multiple of 32."""
    rows = _write(x.float().numpy(), kind)
    parts = torch.from_numpy(rows).reshape(*x.shape[:-1], x.shape[-1] // _BLOCK, -1)
    scales, codes = parts[..., : _SCALE_BYTES[kind]], parts[..., _SCALE_BYTES[kind] :]
    return QuantizedTensor(
        codes=_unpacked(codes.reshape(*x.shape[:-1], -1), kind),
        scales=scales[..., 0].clone() if kind == _MXFP4 else scales.contiguous().view(torch.float16)[..., 0].float(),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def _dequantize(q: QuantizedTensor) -> Tensor:
    """Decodes to fp32; the element format of the tensor tells which block it was."""
    kind = _KINDS[q.scheme.element]
    codes = q.codes.view(torch.uint8) if kind == _Q8_0 else pack(q.codes, Layout.GGML_SPLIT)
    stored = q.scales if kind == _MXFP4 else q.scales.half()
    scales = stored.unsqueeze(-1).contiguous().view(torch.uint8)
    blocks = torch.cat([scales, codes.reshape(*scales.shape[:-1], -1)], dim=-1)
    return torch.from_numpy(_read(blocks.flatten(-2).numpy(), kind)).reshape(q.shape)


def _unpacked(codes: Tensor, kind: str) -> Tensor:
    if kind == _Q8_0:
        return codes.contiguous().view(torch.int8)
    return unpack(codes, Layout.GGML_SPLIT, dtype=torch.uint8 if kind == _MXFP4 else torch.int8)


def _write(rows: np.ndarray, kind: str) -> np.ndarray:
    """Returns the bytes of rows, [..., C] fp32; infinities and NaN would make numpy warn."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        written: np.ndarray = quants.quantize(rows, GGMLQuantizationType[kind.upper()])
    return written


def _read(rows: np.ndarray, kind: str) -> np.ndarray:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        values: np.ndarray = quants.dequantize(rows, GGMLQuantizationType[kind.upper()])
    return values


def _open() -> Code:
    return Code(quantizers={name: partial(_quantize, name) for name in OFFERS}, dequantize=_dequantize)


BACKEND = LibraryBackend(
    name="gguf",
    distribution="gguf",
    extra="hf",
    tested="0.19.",
    offers=OFFERS,
    open_code=_open,
)

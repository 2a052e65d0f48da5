"""The code behind the offers of bitsandbytes. Importing this file imports the library, which takes seconds.

Blocks of the library run on through the whole tensor; here every matrix of a stack is quantized alone, which is the
same wherever a block does not reach into the next matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from quantaudit.backends.library import Code, stacked
from quantaudit.core.format import Format, IntegerFormat
from quantaudit.core.scheme import DoubleQuantization, FlatBlocks, Layout, LinearScale, Scheme
from quantaudit.numerics.codebooks import BNB_FP4, DYNAMIC8, NF4
from quantaudit.numerics.packing import pack, unpack
from quantaudit.numerics.reference import QuantizedTensor

_INT8_MAX = 127.0
_KINDS: dict[Format, str] = {NF4: "nf4", BNB_FP4: "fp4"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowQuantized(QuantizedTensor):
    """An LLM.int8() tensor with the numbers that it holds, of which `scales` are a rounded 127th.

    Attributes:
        absmax: fp32, of the shape of `scales`.
    """

    absmax: Tensor


def quantize_codebook(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes to NF4 or FP4 with `quantize_4bit`, the absolute maxima nested if the scheme has a second level.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: A scheme over flat blocks with one of the two codebooks.
    """
    assert isinstance(scheme.granularity, FlatBlocks) and isinstance(scheme.scale, LinearScale)
    is_nested = isinstance(scheme.scale.second_level, DoubleQuantization)
    call = partial(
        bnb.quantize_4bit,
        blocksize=scheme.granularity.size,
        quant_type=_KINDS[scheme.element],
        compress_statistics=is_nested,
    )
    packed, states = zip(*(call(matrix) for matrix in _matrices(x)), strict=True)
    codes = [unpack(part.flatten(), Layout.HIGH_NIBBLE_FIRST, num_codes=_size(x)) for part in packed]
    return QuantizedTensor(
        codes=stacked(codes).reshape(x.shape),
        scales=_stacked([state.absmax for state in states], x),
        second_scales=_stacked([state.state2.absmax for state in states], x) if is_nested else None,
        offset=_stacked([state.offset.reshape(1) for state in states], x) if is_nested else None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def quantize_rows(x: Tensor, scheme: Scheme) -> RowQuantized:
    """Quantizes rows to int8 with `int8_vectorwise_quant`, no outliers held back.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: A scheme of int8 per channel.
    """
    codes, absmax, _ = bnb.int8_vectorwise_quant(x.reshape(-1, x.shape[-1]))
    absmax = absmax.reshape(*x.shape[:-1], 1)
    return RowQuantized(
        codes=codes.reshape(x.shape),
        scales=absmax / torch.full_like(absmax, _INT8_MAX),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
        absmax=absmax,
    )


def quantize_dynamic(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantizes flat blocks to the dynamic 8-bit map with `quantize_blockwise`.

    Args:
        x: [..., R, C] fp32 or bf16, contiguous.
        scheme: A scheme of the dynamic map over flat blocks.
    """
    assert isinstance(scheme.granularity, FlatBlocks)
    size = scheme.granularity.size
    codes, states = zip(*(bnb.quantize_blockwise(matrix, blocksize=size) for matrix in _matrices(x)), strict=True)
    return QuantizedTensor(
        codes=stacked(codes).reshape(x.shape),
        scales=_stacked([state.absmax for state in states], x),
        second_scales=None,
        offset=None,
        shape=tuple(x.shape),
        dtype=x.dtype,
        scheme=scheme,
    )


def dequantize(q: QuantizedTensor) -> Tensor:
    """Decodes: 4 bits and the dynamic map to the dtype of the tensor, rows of int8 to fp32."""
    if isinstance(q.scheme.element, IntegerFormat):
        flat: Tensor = bnb.int8_vectorwise_dequant(q.codes.reshape(-1, q.shape[-1]), _absmax(q).flatten())
        return flat.reshape(q.shape)
    decode = _decode_dynamic if q.scheme.element == DYNAMIC8 else _decode_codebook
    return stacked([decode(q, index) for index in range(_stack(q.shape))]).reshape(q.shape)


def _decode_codebook(q: QuantizedTensor, index: int) -> Tensor:
    """Decodes one matrix of a stack."""
    assert isinstance(q.scheme.granularity, FlatBlocks)
    kind = _KINDS[q.scheme.element]
    state = bnb.QuantState(  # type: ignore[no-untyped-call]
        absmax=_of_matrix(q.scales, q, index),
        shape=torch.Size(q.shape[-2:]),
        code=bnb.get_4bit_type(kind, device=q.codes.device),  # type: ignore[no-untyped-call]
        blocksize=q.scheme.granularity.size,
        quant_type=kind,
        dtype=q.dtype,
    )
    if q.offset is not None:
        assert q.second_scales is not None
        inner = _of_matrix(q.second_scales, q, index)
        state.offset, state.nested = _of_matrix(q.offset, q, index).squeeze(), True
        state.state2 = bnb.QuantState(  # type: ignore[no-untyped-call]
            absmax=inner, code=_dynamic_map(q), blocksize=_inner_size(q), dtype=torch.float32
        )
    packed = pack(_of_matrix(q.codes, q, index), Layout.HIGH_NIBBLE_FIRST)
    values: Tensor = bnb.dequantize_4bit(packed.unsqueeze(1), state)
    return values


def _decode_dynamic(q: QuantizedTensor, index: int) -> Tensor:
    """Decodes one matrix of a stack."""
    assert isinstance(q.scheme.granularity, FlatBlocks)
    state = bnb.QuantState(  # type: ignore[no-untyped-call]
        absmax=_of_matrix(q.scales, q, index),
        code=_dynamic_map(q),
        blocksize=q.scheme.granularity.size,
        dtype=q.dtype,
    )
    values: Tensor = bnb.dequantize_blockwise(_of_matrix(q.codes, q, index), state)
    return values


def _absmax(q: QuantizedTensor) -> Tensor:
    """Returns the numbers that the library holds, or 127 times the scale where the tensor came from elsewhere."""
    if isinstance(q, RowQuantized) and torch.equal(q.absmax / torch.full_like(q.absmax, _INT8_MAX), q.scales):
        return q.absmax
    return q.scales * _INT8_MAX


def _dynamic_map(q: QuantizedTensor) -> Tensor:
    values: Tensor = bnb.create_dynamic_map()  # type: ignore[no-untyped-call]
    return values.to(q.codes.device)


def _inner_size(q: QuantizedTensor) -> int:
    assert isinstance(q.scheme.scale, LinearScale)
    level = q.scheme.scale.second_level
    assert isinstance(level, DoubleQuantization) and isinstance(level.scheme.granularity, FlatBlocks)
    return level.scheme.granularity.size


def _matrices(x: Tensor) -> list[Tensor]:
    return list(x.reshape(-1, *x.shape[-2:]))


def _stack(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-2])


def _of_matrix(stored: Tensor, q: QuantizedTensor, index: int) -> Tensor:
    """Returns what belongs to one matrix of a stack, flat."""
    return stored.reshape(_stack(q.shape), -1)[index].contiguous()


def _stacked(parts: list[Tensor], x: Tensor) -> Tensor:
    return stacked(parts).reshape(*x.shape[:-2], -1)


def _size(x: Tensor) -> int:
    return x.shape[-2] * x.shape[-1]


CODE = Code(
    quantizers={
        **dict.fromkeys(("nf4", "fp4", "nf4-double", "fp4-double"), quantize_codebook),
        "int8": quantize_rows,
        "int8-blockwise": quantize_dynamic,
    },
    dequantize=dequantize,
)

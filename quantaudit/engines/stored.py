"""A quantized weight as a deployment holds it: packed codes and scales, decoded when it is used.

Both ways go a few matrices of a stack at a time into memory taken once, so that the peak stays near the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.numerics import QuantizedTensor, dequantize, pack, quantize, unpack

# The temporaries of quantizing take some thirty bytes a value: this many stay small beside any stack, and in cache.
_VALUES_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTensor:
    """Like `QuantizedTensor`, with the codes in the layout of the scheme (two to a byte for 4 bits).

    Attributes:
        packed: Codes in the scheme's layout; one a byte where that layout is bytes.
        code_dtype: int8 or uint8, the dtype of the unpacked codes.
    """

    packed: Tensor
    code_dtype: torch.dtype
    scales: Tensor
    second_scales: Tensor | None
    offset: Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    scheme: Scheme

    def payload_bits(self) -> int:
        """Returns the bits of codes and scales; codes count with their own width, however they are packed."""
        above = (self.scales, self.second_scales, self.offset)
        scale_bits = sum(8 * t.numel() * t.element_size() for t in above if t is not None)
        return self.scheme.element.bits * math.prod(self.shape) + scale_bits

    def to(self, device: torch.device) -> StoredTensor:
        """Returns the same weight on a device."""
        return replace(
            self,
            packed=self.packed.to(device),
            scales=self.scales.to(device),
            second_scales=None if self.second_scales is None else self.second_scales.to(device),
            offset=None if self.offset is None else self.offset.to(device),
        )

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight's values in `dtype`, `shape`."""
        pieces = _pieces(self.shape, self.packed.device)
        if len(pieces) < 2:
            return dequantize(restore(self), dtype)
        values = torch.empty(self.shape, dtype=dtype, device=self.packed.device)
        for piece in pieces:
            values[piece] = dequantize(restore(self.matrices(piece)), dtype)
        return values

    def matrices(self, piece: slice) -> StoredTensor:
        """Returns some matrices of a stack, sharing their memory."""
        packed = self.packed[piece]
        return replace(
            self,
            packed=packed,
            scales=self.scales[piece],
            second_scales=None if self.second_scales is None else self.second_scales[piece],
            offset=None if self.offset is None else self.offset[piece],
            shape=(len(packed), *self.shape[1:]),
        )


def quantize_stack(weight: Tensor, scheme: Scheme) -> StoredTensor:
    """Quantizes and packs a weight.

    Args:
        weight: `[O, I]`, or `[E, O, I]` whose matrices are independent of each other.
        scheme: The arithmetic.
    """
    shape = tuple(weight.shape)
    first, *others = _pieces(shape, weight.device)
    if not others:
        return store(quantize(weight, scheme))
    part = store(quantize(weight[first], scheme))
    whole = _room_like(part, shape)
    _put(part, whole, first)
    for piece in others:
        _put(store(quantize(weight[piece], scheme)), whole, piece)
    return whole


def _pieces(shape: tuple[int, ...], device: torch.device) -> list[slice]:
    """Cuts a stack into runs of matrices; one run where there is no stack, or a device that is fed best at once."""
    count = shape[0] if len(shape) > 2 else 1
    at_once = count if device.type == "cuda" else max(1, _VALUES_AT_ONCE // max(1, math.prod(shape[1:])))
    return [slice(start, start + at_once) for start in range(0, count, at_once)] or [slice(0, 0)]


def _room_like(part: StoredTensor, shape: tuple[int, ...]) -> StoredTensor:
    """Returns a stack of that shape to be filled with parts like this one."""
    return replace(
        part,
        packed=_taller(part.packed, shape[0]),
        scales=_taller(part.scales, shape[0]),
        second_scales=None if part.second_scales is None else _taller(part.second_scales, shape[0]),
        offset=None if part.offset is None else _taller(part.offset, shape[0]),
        shape=shape,
    )


def _taller(tensor: Tensor, count: int) -> Tensor:
    return tensor.new_empty(count, *tensor.shape[1:])


def _put(part: StoredTensor, whole: StoredTensor, piece: slice) -> None:
    whole.packed[piece] = part.packed
    whole.scales[piece] = part.scales
    for target, source in ((whole.second_scales, part.second_scales), (whole.offset, part.offset)):
        if target is not None and source is not None:
            target[piece] = source


def store(q: QuantizedTensor) -> StoredTensor:
    """Packs the codes of a quantized tensor."""
    return StoredTensor(
        packed=pack(q.codes, q.scheme.layout).contiguous(),
        code_dtype=q.codes.dtype,
        scales=q.scales,
        second_scales=q.second_scales,
        offset=q.offset,
        shape=q.shape,
        dtype=q.dtype,
        scheme=q.scheme,
    )


def restore(stored: StoredTensor) -> QuantizedTensor:
    """Returns what `store` was given."""
    codes = unpack(stored.packed, stored.scheme.layout, dtype=stored.code_dtype, num_codes=stored.shape[-1])
    return QuantizedTensor(
        codes=codes.reshape(stored.shape),
        scales=stored.scales,
        second_scales=stored.second_scales,
        offset=stored.offset,
        shape=stored.shape,
        dtype=stored.dtype,
        scheme=stored.scheme,
    )

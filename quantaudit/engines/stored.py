"""A quantized weight as a deployment holds it: packed codes and scales, decoded when it is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.numerics import QuantizedTensor, dequantize, pack, quantize, unpack

_MATRICES_AT_ONCE = 8


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
        return dequantize(restore(self), dtype)


def quantize_stack(weight: Tensor, scheme: Scheme) -> StoredTensor:
    """Quantizes and packs a weight, a few matrices of a stack at a time, so that memory stays near the result.

    Args:
        weight: `[O, I]`, or `[E, O, I]` whose matrices are independent of each other.
        scheme: The arithmetic.
    """
    if weight.ndim < 3:
        return store(quantize(weight, scheme))
    parts = [store(quantize(piece, scheme)) for piece in weight.split(_MATRICES_AT_ONCE)]
    return replace(
        parts[0],
        packed=torch.cat([part.packed for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        second_scales=_join([part.second_scales for part in parts]),
        offset=_join([part.offset for part in parts]),
        shape=tuple(weight.shape),
    )


def _join(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


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

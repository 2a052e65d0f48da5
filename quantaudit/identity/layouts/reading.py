"""Tensors of a safetensors file as torch tensors, or one slice of their first axis; 8-bit floats stay bytes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantaudit.checkpoint.file_range import read_range
from quantaudit.checkpoint.header import DType
from quantaudit.checkpoint.index import Located

FLOATS = {DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32}
_WORDS = {DType.U8: torch.uint8, DType.I8: torch.int8, DType.I32: torch.int32} | {
    dtype: torch.uint8 for dtype in (DType.F8_E4M3, DType.F8_E8M0)
}
READABLE = FLOATS | _WORDS


def read_tensor(located: Located) -> Tensor:
    """Reads a tensor whose dtype is in `READABLE`, as stored."""
    entry = located.entry
    return _view(read_range(located.file, entry.start, entry.num_bytes), READABLE[entry.dtype], entry.shape)


def read_slice(located: Located, number: int) -> Tensor:
    """Reads one slice of the first axis; the rest of the tensor is not touched."""
    entry = located.entry
    size = entry.num_bytes // entry.shape[0]
    data = read_range(located.file, entry.start + number * size, size)
    return _view(data, READABLE[entry.dtype], entry.shape[1:])


def read_bytes(located: Located) -> Tensor:
    """Reads the bytes of any tensor, [bytes] uint8."""
    entry = located.entry
    return _view(read_range(located.file, entry.start, entry.num_bytes), torch.uint8, (entry.num_bytes,))


def as_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the rows and columns of a tensor seen as rows of its last axis; a scalar is one value."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _view(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)

"""Equality of bits for tests: every NaN is one, and -0 is not +0."""

from __future__ import annotations

import torch
from torch import Tensor


def bits(values: Tensor) -> Tensor:
    """Returns fp32 bit patterns (int32) with one pattern for NaN; bf16 is widened, which is exact."""
    wide = values.detach().cpu().to(torch.float32)
    return torch.where(wide.isnan(), torch.nan, wide).view(torch.int32)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Compares bit patterns and reports the first difference: coordinate, both values, both patterns."""
    assert actual.shape == expected.shape, f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    left, right = bits(actual), bits(expected)
    where = (left != right).nonzero()
    if len(where):
        at = tuple(where[0].tolist())
        values = [float(actual.detach().cpu()[at]), float(expected.detach().cpu()[at])]
        patterns = [f"{int(t[at]) & 0xFFFFFFFF:#010x}" for t in (left, right)]
        raise AssertionError(f"{len(where)} values differ, the first at {at}: {values}, bits {patterns}")


def all_bf16() -> Tensor:
    """Returns the 65,536 bf16 numbers, NaNs and both zeros among them, by bit pattern."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)

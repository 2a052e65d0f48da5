"""gguf agrees bit for bit: Q4_0 bytes and values, and MXFP4 up to the sign of zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from quantaudit.core.scheme import Layout
from quantaudit.numerics import dequantize, get_scheme, pack, quantize, unpack
from tests.numerics.bits import assert_same_bits
from tests.numerics.structured import already_quantized, gaussian, opposite_maxima, ties, zeros

gguf = pytest.importorskip("gguf")


def blocks() -> Tensor:
    """Stacks structured rows, and enough Gaussian ones to meet sums that round across a tie."""
    rows = [gaussian(), ties(), already_quantized(), opposite_maxima(), zeros()[:2], torch.randn(2000, 256)]
    return torch.cat(rows)


def test_q4_0_bytes_and_values_are_equal() -> None:
    x = blocks()
    q = quantize(x, get_scheme("gguf-q4_0"))
    theirs = gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.Q4_0).reshape(len(x), -1, 18)
    scales = q.scales.half().view(torch.uint8).view(len(x), -1, 2)
    codes = pack(q.codes, Layout.GGML_SPLIT).view(len(x), -1, 16)
    assert np.array_equal(torch.cat([scales, codes], -1).numpy(), theirs)
    values = gguf.quants.dequantize(theirs.reshape(len(x), -1), gguf.GGMLQuantizationType.Q4_0)
    assert_same_bits(dequantize(q), torch.from_numpy(values))


def test_the_first_of_two_opposite_maxima_gives_the_sign() -> None:
    def fake(*head: float) -> list[float]:
        x = torch.zeros(1, 32)
        x[0, : len(head)] = torch.tensor(head)
        return dequantize(quantize(x, get_scheme("gguf-q4_0")))[0, : len(head)].tolist()

    assert fake(1.0, -1.0, 0.3) == [1.0, -0.875, 0.25]
    assert fake(-1.0, 1.0, 0.3) == [-1.0, 0.875, 0.25]


def test_mxfp4_is_the_floor_rule_with_ties_toward_zero_and_no_negative_zero() -> None:
    x = blocks()
    q = quantize(x, get_scheme("mxfp4-floor-zero"))
    theirs = gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.MXFP4)
    parts = torch.from_numpy(theirs.reshape(len(x), -1, 17).copy())
    assert torch.equal(parts[..., 0], q.scales)
    codes = unpack(parts[..., 1:].reshape(len(x), -1), Layout.GGML_SPLIT)
    assert torch.equal(codes, torch.where(q.codes == 8, 0, q.codes))
    values = gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType.MXFP4)
    assert torch.equal(dequantize(q), torch.from_numpy(values))


def test_a_value_just_below_a_tie_goes_up_with_it() -> None:
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([-8.0, 1.5 - 2.0**-22, 1.5 - 2.0**-20])
    theirs = gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.Q4_0)
    codes = unpack(torch.from_numpy(theirs[:, 2:].copy()), Layout.GGML_SPLIT, dtype=torch.int8)
    assert codes[0, :3].tolist() == [-8, 2, 1]
    assert torch.equal(quantize(x, get_scheme("gguf-q4_0")).codes, codes)

"""The short convolution: which tap meets which input, and what a carried window must contain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from quantaudit.model.conv import ShortConv, slide_window


def conv_of(taps: list[list[float]]) -> ShortConv:
    conv = ShortConv(len(taps), len(taps[0])).double()
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(taps).unsqueeze(1))
    return conv


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1)


def test_tap_zero_meets_the_oldest_input_and_nothing_precedes_the_first() -> None:
    conv = conv_of([[1000.0, 100.0, 10.0, 1.0]])
    assert torch.equal(conv(column(1, 2, 3, 4, 5), None), silu(column(1, 12, 123, 1234, 2345)))


def test_channels_do_not_mix() -> None:
    conv = conv_of([[0.0, 1.0], [2.0, 0.0]])
    x = torch.tensor([[[1.0, 10.0], [2.0, 20.0]]], dtype=torch.float64)
    assert torch.equal(conv(x, None), silu(torch.tensor([[[1.0, 0.0], [2.0, 20.0]]], dtype=torch.float64)))


@pytest.mark.parametrize("split", [1, 2, 3, 4, 7])
def test_a_carried_window_continues_the_sequence(split: int) -> None:
    generator = torch.Generator().manual_seed(0)
    conv = ShortConv(6, 4)
    with torch.no_grad():
        conv.weight.normal_(generator=generator)
    x = torch.randn(2, 9, 6, generator=generator)
    window = slide_window(None, x[:, :split], (split, split), 4)
    continued = torch.cat([conv(x[:, :split], None), conv(x[:, split:], window)], dim=1)
    # The sums are equal bit for bit; the vector body and the scalar tail of SiLU may differ by an ulp or two.
    torch.testing.assert_close(continued, conv(x, None), rtol=4 * 2.0**-24, atol=0.0)


def test_window_is_oldest_first_and_zero_before_the_start() -> None:
    x = column(1, 2, 3)
    assert slide_window(None, x, (3,), 4).tolist() == [[[0, 1, 2, 3]]]
    assert slide_window(None, x, (2,), 4).tolist() == [[[0, 0, 1, 2]]]
    slid = slide_window(slide_window(None, x, (3,), 4), column(4, 5), (2,), 4)
    assert slid.tolist() == [[[2, 3, 4, 5]]]


def test_window_of_a_short_sequence_ignores_its_padding() -> None:
    x = torch.tensor([[[1.0], [2.0], [3.0]], [[7.0], [9.0], [9.0]]])
    assert slide_window(None, x, (3, 1), 2).tolist() == [[[2, 3]], [[0, 7]]]


def test_bf16_is_summed_in_fp32_with_fp32_taps_and_rounded_once() -> None:
    generator = torch.Generator().manual_seed(1)
    conv = ShortConv(8, 4)
    with torch.no_grad():
        conv.weight.normal_(generator=generator)
    x = torch.randn(1, 12, 8, generator=generator).bfloat16()
    assert torch.equal(conv(x, None), conv(x.float(), None).bfloat16())

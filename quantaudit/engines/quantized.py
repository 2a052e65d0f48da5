"""What replaces `Linear` and `GroupedLinear` in a quantized realization.

The weight is stored (codes and scales) and decoded when it is used, one module at a time; the input may be
quantized dynamically first. The product itself is the one of the module replaced.

Legend: N rows, I in, O out, E experts.
"""

from __future__ import annotations

from torch import Tensor, nn

from quantaudit.core.scheme import Scheme
from quantaudit.engines.stored import StoredTensor
from quantaudit.model.linear import grouped_matmul
from quantaudit.numerics.fused import fused_fake_quantize


class QuantizedLinear(nn.Module):
    """A `Linear` whose weight is stored, or whose input is quantized, or both."""

    def __init__(self, weight: StoredTensor | Tensor, activation: Scheme | None) -> None:
        super().__init__()
        self.stored = weight
        self.activation = activation

    def forward(self, x_NI: Tensor) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`."""
        return nn.functional.linear(quantize_rows(x_NI, self.activation), decode_weight(self.stored, x_NI))


class QuantizedRouter(QuantizedLinear):
    """A `Router` whose weight is stored, or whose input is quantized; its correction bias stays as it is."""

    def __init__(self, weight: StoredTensor | Tensor, activation: Scheme | None, bias_E: nn.Parameter) -> None:
        super().__init__(weight, activation)
        self.e_score_correction_bias = bias_E


class QuantizedGroupedLinear(nn.Module):
    """A `GroupedLinear` whose weight is stored, or whose input is quantized, or both."""

    def __init__(self, weight: StoredTensor | Tensor, activation: Scheme | None) -> None:
        super().__init__()
        self.stored = weight
        self.activation = activation

    def forward(self, x_NI: Tensor, counts_E: list[int]) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`; rows are sorted by expert."""
        return grouped_matmul(quantize_rows(x_NI, self.activation), decode_weight(self.stored, x_NI), counts_E)


class RoundedGroupedLinear(nn.Module):
    """A `GroupedLinear` whose weight is rounded to a scheme when it is used and held as it was, which costs no memory.

    The values are those that storing the weight in fp32 and decoding it would give.
    """

    def __init__(self, weight: Tensor, scheme: Scheme) -> None:
        super().__init__()
        self.stored = weight
        self.scheme = scheme

    def forward(self, x_NI: Tensor, counts_E: list[int]) -> Tensor:
        """Returns `[N, O]` in the dtype of `x_NI`; rows are sorted by expert."""
        rounded = fused_fake_quantize(self.stored.float().contiguous(), self.scheme)
        return grouped_matmul(x_NI, rounded.to(x_NI.dtype), counts_E)


def decode_weight(weight: StoredTensor | Tensor, like: Tensor) -> Tensor:
    """Returns the weight's values in the dtype of `like`."""
    return weight.decode(like.dtype) if isinstance(weight, StoredTensor) else weight.to(like.dtype)


def quantize_rows(x_NI: Tensor, scheme: Scheme | None) -> Tensor:
    """Returns the rows as the scheme represents them; unchanged without a scheme.

    Every row is a matrix of its own, so that a scale per tensor becomes one per token and no token depends on the
    others of its batch.
    """
    return x_NI if scheme is None or not len(x_NI) else fused_fake_quantize(x_NI.unsqueeze(1), scheme).squeeze(1)

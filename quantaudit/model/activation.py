"""SiTU-GLU: a gated unit whose two branches saturate smoothly.

f(g, u) = a tanh(g / a) sigmoid(g) * b tanh(u / b), with a = beta and b = linear beta. The argument of the
sigmoid is g itself; it is not a clamped SiLU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.model.precision import widen


def situ_glu(gate: Tensor, up: Tensor, *, beta: float, linear_beta: float | None) -> Tensor:
    """Returns f(gate, up), computed widened and cast once to the dtype of `gate`.

    Args:
        gate: Any shape.
        up: Same shape.
        beta: Saturation of the gate branch; 0 means 1.
        linear_beta: Saturation of the up branch; `None` leaves it linear.
    """
    a = beta or 1.0
    g, u = widen(gate), widen(up)
    bounded = u if linear_beta is None else linear_beta * torch.tanh(u / linear_beta)
    return (a * torch.tanh(g / a) * torch.sigmoid(g) * bounded).to(gate.dtype)

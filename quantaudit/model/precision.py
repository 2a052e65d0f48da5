"""Where the released code casts to fp32, this widens: fp32 for narrower inputs, fp64 stays fp64.

The second half makes the whole stack runnable in fp64, as its own gold.
"""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Returns `x` in fp64 if it is fp64, else in fp32."""
    return x if x.dtype is torch.float64 else x.float()

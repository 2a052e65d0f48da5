"""What one side makes of a block of inputs.

Shape suffixes: B statistics, M values of a row, R groups of a row (1 where all of them are known to agree).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Scales, codes and decoded values, in the order of the block.

    Attributes:
        scales_BR: fp32, stored scales as numbers; `None` where the side does not show them.
        codes_BM: int8 for integers, else uint8, the bit pattern; `None` where the side does not show them.
        values_BM: Decoded values, bf16 or fp32.
    """

    scales_BR: Tensor | None
    codes_BM: Tensor | None
    values_BM: Tensor

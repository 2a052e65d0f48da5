"""Two sides and how to compare them: what every level of a certificate is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantaudit.identity.enumeration import Progress
from quantaudit.identity.observe import is_signed
from quantaudit.identity.sides import Side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Two sides and how to compare them.

    Attributes:
        sides: Both sides.
        dtype: Of the inputs.
        out_dtype: Of decoded values where a side leaves it open.
        is_deep: Whether what takes minutes to hours is tried too.
        progress: Told (stage, done, total).
    """

    sides: tuple[Side, Side]
    dtype: torch.dtype
    out_dtype: torch.dtype
    is_deep: bool
    progress: Progress

    @property
    def has_sign(self) -> bool:
        """Whether the sign of the largest value matters to a side."""
        return any(is_signed(side.scheme) for side in self.sides)

    @property
    def signs(self) -> tuple[bool, ...]:
        """Whether statistics are negative: once each."""
        return (False, True) if self.has_sign else (False,)

"""Where the values of a ladder lie in groups that it fills."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Places(NamedTuple):
    """Where the values of a ladder lie in groups that they fill: `size` is N, the statistic first or last."""

    size: int
    is_statistic_first: bool

    @property
    def statistic(self) -> int:
        """Member that is the statistic."""
        return 0 if self.is_statistic_first else self.size - 1

    @property
    def values(self) -> slice:
        """Members that are values."""
        return slice(1, None) if self.is_statistic_first else slice(None, -1)

    def of(self, ranks: Tensor) -> Tensor:
        """Returns the place of the value of a rank among the members of all groups of one sign, joined."""
        return ranks // (self.size - 1) * self.size + ranks % (self.size - 1) + int(self.is_statistic_first)

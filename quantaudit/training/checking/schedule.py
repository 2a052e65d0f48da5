"""Which steps are checked, and which experts at a checked step: all, or a sample that moves on.

With a period of p, check k looks at the experts k mod p, k mod p + p, k mod p + 2p, ... After p checks every expert was
seen once, so a mismatch that stays is found at most p * every - 1 steps late, for 1 / (p * every) of the cost.
"""

from __future__ import annotations

from pydantic import Field

from quantaudit.core.serial import Frozen


class Schedule(Frozen):
    """When and how much is checked.

    Attributes:
        every: Steps from one check to the next.
        period: Every how manieth expert a check looks at; 1 for all of them.
    """

    every: int = Field(default=1, ge=1)
    period: int = Field(default=1, ge=1)

    def is_due(self, step: int) -> bool:
        """Says whether a step is checked."""
        return step % self.every == 0

    def experts(self, step: int) -> slice:
        """Returns the experts that are looked at in a step that is due."""
        return slice(step // self.every % self.period, None, self.period)

    @property
    def longest_delay(self) -> int:
        """Returns how many steps a mismatch that stays can go unseen, at most."""
        return self.period * self.every - 1

"""The floor: what two runs of the same hi differ by, under another batch size, padding and thread count.

A margin under three times the floor cannot be told from the instrument's own noise, so its clause stays UNDECIDED.
"""

from __future__ import annotations

import math

from quantaudit.core.decision import Decision
from quantaudit.core.errors import InputError
from quantaudit.stats.decide import withhold

FLOOR_FACTOR = 3


def respect_floor(decision: Decision, *, margin: float, floor: float) -> Decision:
    """Returns the decision, or UNDECIDED where the margin is under three floors.

    Args:
        decision: What the estimate says; an exact decision has no floor and is returned unchanged.
        margin: Margin of the clause.
        floor: Absolute difference of the two runs of hi, in the observer's unit.

    Raises:
        InputError: If the floor is negative or not finite.
    """
    if not (floor >= 0 and math.isfinite(floor)):
        raise InputError(
            f"floor {floor}",
            expected="a finite number, at least 0",
            fix="measure hi against hi and give the absolute difference",
        )
    if decision.is_exact or margin >= FLOOR_FACTOR * floor:
        return decision
    return withhold(
        decision,
        reason=f"The margin of {margin:g} is under {FLOOR_FACTOR} times the floor of {floor:.3g}: "
        "two runs of hi already differ too much to tell.",
    )

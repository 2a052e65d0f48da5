"""Where a falling function of one number crosses a level."""

from __future__ import annotations

from collections.abc import Callable

NUM_HALVINGS = 64  # an interval of length 2 shrinks below the spacing of float64 near 1e-3


def cross(falling: Callable[[float], float], *, level: float, lower: float, upper: float) -> float:
    """Finds where `falling` goes from above to below `level`.

    Args:
        falling: Decreases between the bounds; never evaluated at them, where it may be infinite.
        level: Value to find.
        lower: Returned (nearly) if the function is below the level everywhere.
        upper: Returned (nearly) if it is above everywhere.
    """
    for _ in range(NUM_HALVINGS):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if falling(middle) > level else (lower, middle)
    return (lower + upper) / 2

"""Two one-sided tests (TOST): "no more than the margin, in either direction" is claimed when both halves are.

The hypothesis "the difference is beyond +-m" is a union of two, so it is refuted where both are, each at alpha, and the
p-value is the larger one: nothing is corrected. At alpha = .05 that is to say that the 90 % interval lies inside
(-m, m). A large p-value of "no difference" is no evidence of equivalence; this is.

`decide` with a two-sided clause admits by the same p-value; here its two halves are shown.

Source: Schuirmann 1987; Berger and Hsu 1996.
"""

from __future__ import annotations

from typing import NamedTuple

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate
from quantaudit.core.errors import InputError
from quantaudit.stats.statistic import compute_p_values, is_decidable


class Equivalence(NamedTuple):
    """The two halves, and both.

    Attributes:
        p_not_worse: Against "damage is the margin or more".
        p_not_better: Against "improvement is the margin or more".
        p_value: Against "the difference is at or beyond the margin, either way": the larger of both.
    """

    p_not_worse: float
    p_not_better: float
    p_value: float


def assess_equivalence(estimate: Estimate, *, margin: float) -> Equivalence:
    """Computes both one-sided p-values of a two-sided clause.

    Args:
        estimate: Damage-oriented difference.
        margin: Largest tolerated difference in either direction, in the observer's unit.

    Returns:
        The p-values; 1 each where too few clusters give no interval.

    Raises:
        InputError: If the margin is not positive.
    """
    if not margin > 0:
        raise InputError(
            f"margin {margin:g}", expected="a positive number", fix="give the largest difference that does not matter"
        )
    if not is_decidable(estimate):
        return Equivalence(1.0, 1.0, 1.0)
    not_worse = compute_p_values(estimate, direction=Direction.WORSE, margin=margin).admit
    # above -m is what "rejected at -m" means
    not_better = compute_p_values(estimate, direction=Direction.WORSE, margin=-margin).reject
    return Equivalence(not_worse, not_better, max(not_worse, not_better))

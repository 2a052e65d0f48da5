"""PASS, FAIL or UNDECIDED: one clause, one estimate, one sentence.

PASS if the bound (both bounds, for a two-sided clause) lies inside the margin; FAIL if the whole interval lies beyond
it; else UNDECIDED, with the number of probes that would decide. The outcome is read off the p-values, which say the
same as the bounds and which corrections for many clauses need.
"""

from __future__ import annotations

import math

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Decision, Estimate, Method, Outcome
from quantaudit.core.errors import InputError
from quantaudit.stats.clustered import ALPHA
from quantaudit.stats.power import minimum_detectable_effect, num_to_admit, num_to_reject
from quantaudit.stats.skewness import MIN_DEGREES
from quantaudit.stats.statistic import PValues, compute_p_values, improvement_p_value, is_decidable, stretch_of

_TOLD_STRETCH = 1.25  # 36 clusters without any skewness reach 1.08 times as far


def decide(estimate: Estimate, *, direction: Direction, margin: float, alpha: float = ALPHA) -> Decision:
    """Decides one clause.

    Args:
        estimate: Damage-oriented difference, made with the same `alpha`.
        direction: Whether improvement beyond the margin counts against lo too.
        margin: Largest tolerated difference, in the observer's unit.
        alpha: One-sided error rate of each bound.

    Raises:
        InputError: If the margin is not a positive number (below 1 for proportions), or the interval was made with
            another alpha.
    """
    _check(estimate, margin, alpha)
    if not is_decidable(estimate):
        return _undecidable(_explain_refusal(estimate))
    p_values = compute_p_values(estimate, direction=direction, margin=margin)
    outcome = _outcome(p_values, alpha)
    is_undecided = outcome is Outcome.UNDECIDED
    num = num_to_admit(estimate, direction=direction, margin=margin, alpha=alpha) if is_undecided else None
    is_displacement = direction is Direction.WORSE and improvement_p_value(estimate, margin=margin) <= alpha
    reason = _explain(estimate, outcome, direction=direction, margin=margin, alpha=alpha, num=num)
    return Decision(
        outcome=outcome,
        is_displacement=is_displacement,
        p_admit=p_values.admit,
        p_reject=p_values.reject,
        num_that_would_decide=num,
        minimum_detectable_effect=minimum_detectable_effect(estimate, direction=direction, alpha=alpha),
        reason=f"{reason[:-1]}, and improved beyond it, which is displacement." if is_displacement else reason,
    )


def decide_exact(*, is_equal: bool) -> Decision:
    """Decides a clause by equality instead of sampling."""
    return Decision(
        outcome=Outcome.PASS if is_equal else Outcome.FAIL,
        is_exact=True,
        p_admit=0.0 if is_equal else 1.0,
        p_reject=1.0 if is_equal else 0.0,
        num_that_would_decide=None,
        minimum_detectable_effect=0.0,
        reason="Both sides are equal, exactly." if is_equal else "The two sides differ.",
    )


def withhold(decision: Decision, *, reason: str) -> Decision:
    """Returns the decision as UNDECIDED because its evidence does not stand, whatever the numbers say.

    Args:
        decision: What the numbers alone would say; its p-values are dropped, so that no correction counts on them.
        reason: One sentence: which control failed, or which evidence is missing.
    """
    return decision.model_copy(
        update={
            "outcome": Outcome.UNDECIDED,
            "p_admit": 1.0,
            "p_reject": 1.0,
            "num_that_would_decide": None,
            "reason": reason,
        }
    )


def _explain_refusal(estimate: Estimate) -> str:
    least = math.floor(MIN_DEGREES) + 1
    if estimate.num_clusters < least:
        return f"There are {estimate.num_clusters} clusters, and at least {least} are needed."
    return (
        f"The {estimate.num_clusters} clusters weigh less than {least} equal ones, which are needed, because a few of "
        "them hold most of the probes."
    )


def _undecidable(reason: str) -> Decision:
    return Decision(
        outcome=Outcome.UNDECIDED,
        p_admit=1.0,
        p_reject=1.0,
        num_that_would_decide=None,
        minimum_detectable_effect=math.inf,
        reason=reason,
    )


def _check(estimate: Estimate, margin: float, alpha: float) -> None:
    is_proportion = estimate.discordant_rate is not None
    if not 0 < margin < (1 if is_proportion else math.inf):
        raise InputError(
            f"margin {margin}",
            expected="a number between 0 and 1" if is_proportion else "a positive number",
            fix="give the clause the largest difference it tolerates, in the observer's unit",
        )
    if not math.isclose(estimate.interval.level, 1 - 2 * alpha, abs_tol=1e-12):
        raise InputError(
            f"an interval of level {estimate.interval.level:g} for alpha {alpha:g}",
            expected=f"level 1 - 2 alpha = {1 - 2 * alpha:g}",
            fix="make the estimate with the alpha of the clause",
        )


def _outcome(p_values: PValues, alpha: float) -> Outcome:
    if p_values.admit <= alpha:
        return Outcome.PASS
    return Outcome.FAIL if p_values.reject <= alpha else Outcome.UNDECIDED


def _explain(
    estimate: Estimate, outcome: Outcome, *, direction: Direction, margin: float, alpha: float, num: int | None
) -> str:
    """Returns the reason, in one sentence."""
    found = f"{_describe(estimate)}, and the true one is {_bound(estimate, outcome, direction)}"
    if outcome is Outcome.UNDECIDED:
        found += _explain_stretch(estimate)
    if outcome is Outcome.PASS:
        return f"{found}, inside the margin of {margin:g}."
    if outcome is Outcome.FAIL:
        return f"{found}, beyond the margin of {margin:g}."
    if num is not None:
        return f"{found}, too wide for the margin of {margin:g}; about {num:,} such probes would decide."
    against = num_to_reject(estimate, direction=direction, margin=margin, alpha=alpha)
    advice = "" if against is None else f", though about {against:,} such probes would reject"
    return f"{found}; at this difference no number of probes will admit at the margin of {margin:g}{advice}."


def _explain_stretch(estimate: Estimate) -> str:
    """Says so where a bound reaches much further than the t quantile."""
    stretch = max(stretch_of(estimate, is_above=True), stretch_of(estimate, is_above=False))
    if stretch < _TOLD_STRETCH:
        return ""
    return f" (bounds are drawn up to {stretch:.2g} times as far as usual, because few clusters carry the spread)"


def _describe(estimate: Estimate) -> str:
    among = f"{estimate.num_probes:,} probes in {estimate.num_clusters:,} clusters"
    if estimate.method is Method.SCORE_NO_FLIPS:
        return f"No probe flipped among {among} (design effect {estimate.design_effect:.3g} assumed)"
    return f"The difference is {estimate.value:.4g} over {among}"


def _bound(estimate: Estimate, outcome: Outcome, direction: Direction) -> str:
    lower, upper = estimate.interval.lower, estimate.interval.upper
    if direction is Direction.BOTH or outcome is Outcome.UNDECIDED:
        return f"between {lower:.4g} and {upper:.4g}"
    return f"at most {upper:.4g}" if outcome is Outcome.PASS else f"at least {lower:.4g}"

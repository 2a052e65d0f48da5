"""Rates as a fallible judge sees them, and as they are.

A judge that calls a share p of responses refusals, where it finds a share s of the refusals (sensitivity) and clears a
share c of the rest (specificity), has seen, of a true rate r, p = r s + (1 - r)(1 - c). Solved for r,

    r = (p + c - 1) / J,    J = s + c - 1                                    (Rogan and Gladen)

and a difference of two rates that one judge has seen is the difference it saw, over J: an imperfect judge makes every
difference smaller, so a margin of 2 points is one of 2 J in what it sees.

s and c are themselves estimated, on labelled responses, and 1/J is skewed: its error must not be added to that of p as
if it were symmetric (bounds that did so missed on one side 7 % of the time instead of 5). So every rate r, or
difference D, is tested: were it true, what was seen would have the mean r J + 1 - c, or D J, and beside its own
variance that of the judge,

    r^2 Var s + (1 - r)^2 Var c    for a rate,        D^2 (Var s + Var c)    for a difference,

and the interval holds what is not refuted: all between the roots of a quadratic (Fieller). Labels are independent of
probes.

Var s is that of a share moved by one success and one failure, so that a judge without an error on 50 labels is not
taken for infallible. The reaches of the interval of p or d take the place of its standard error, each on its side,
so that no flip at all leaves the bound that a score interval gives, not none.

The same s and c have to hold for hi and lo. If lo writes responses that the judge misreads more often, part of the
difference is the judge's: label responses of both.

Source: Rogan and Gladen 1978; Lang and Reiczigel 2014 (labelled sets are samples too); Fieller 1954 (ratios); Zou and
Donner 2008 (reaches).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from quantaudit.core.decision import Estimate, Interval, Method
from quantaudit.core.errors import InputError
from quantaudit.stats.student import t_quantile

_ERROR_OF_USEFULNESS = 0.025  # one-sided: the judge has to be better than chance with this confidence


class Share(NamedTuple):
    """A share estimated from labels, with its variance."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """How a judge did on responses that people labelled, independent of each other.

    Attributes:
        num_positive: Responses that are what is looked for, such as refusals.
        num_found: Of them, those that the judge called so.
        num_negative: The other responses.
        num_cleared: Of them, those that the judge did not call so.

    Raises:
        InputError: If a count is above its total, or one kind of response is missing.
    """

    num_positive: int
    num_found: int
    num_negative: int
    num_cleared: int

    def __post_init__(self) -> None:
        for part, whole, kind in (
            (self.num_found, self.num_positive, "positive"),
            (self.num_cleared, self.num_negative, "negative"),
        ):
            if not (whole >= 1 and 0 <= part <= whole):
                raise InputError(
                    f"{part} of {whole} {kind} labels right",
                    expected="at least one label, and no more right than there are",
                    fix="count the labelled responses of both kinds, and those that the judge got right",
                )

    @property
    def sensitivity(self) -> Share:
        """Share of the positives that the judge finds."""
        return _share(self.num_found, self.num_positive)

    @property
    def specificity(self) -> Share:
        """Share of the negatives that the judge clears."""
        return _share(self.num_cleared, self.num_negative)


def correct_rate(estimate: Estimate, labels: LabelledSet, *, alpha: float) -> Estimate:
    """Corrects one rate for the errors of the judge that saw it; the result may lie outside 0 to 1.

    Args:
        estimate: Share that the judge saw, such as `estimate_mean` of 0 and 1.
        labels: How the judge did where the truth is known.
        alpha: One-sided error rate, the same as that of the estimate.

    Raises:
        InputError: If the judge is not shown to be better than chance, or the interval was made with another alpha.
    """
    judge = _require(labels, alpha)
    spread = judge.specificity.variance
    variance = _Quadratic(judge.sensitivity.variance + spread, -2 * spread, spread)
    return _rescale(estimate, estimate.value + judge.specificity.value - 1, judge, variance, alpha)


def correct_difference(estimate: Estimate, labels: LabelledSet, *, alpha: float) -> Estimate:
    """Corrects a paired difference of two rates that one judge saw.

    Args:
        estimate: Difference of what the judge saw, from `estimate_flips` or `estimate_mean`.
        labels: How the judge did where the truth is known; the same for hi and lo.
        alpha: One-sided error rate, the same as that of the estimate.

    Raises:
        InputError: If the judge is not shown to be better than chance, or the interval was made with another alpha.
    """
    judge = _require(labels, alpha)
    variance = _Quadratic(judge.sensitivity.variance + judge.specificity.variance, 0.0, 0.0)
    return _rescale(estimate, estimate.value, judge, variance, alpha)


class _Judge(NamedTuple):
    sensitivity: Share
    specificity: Share
    informedness: float


class _Quadratic(NamedTuple):
    """Variance that the judge adds to what is seen, of the true value x: square x^2 + linear x + constant."""

    square: float
    linear: float
    constant: float


def _require(labels: LabelledSet, alpha: float) -> _Judge:
    """Returns the judge's shares; refuses one that labels do not show to be better than chance."""
    sensitivity, specificity = labels.sensitivity, labels.specificity
    informedness = sensitivity.value + specificity.value - 1
    error = math.sqrt(sensitivity.variance + specificity.variance)
    # below the quantile of alpha no true value would be refuted
    if informedness <= t_quantile(1 - min(_ERROR_OF_USEFULNESS, alpha), math.inf) * error:
        raise InputError(
            f"a judge of sensitivity {sensitivity.value:.3g} and specificity {specificity.value:.3g} "
            f"({labels.num_positive} and {labels.num_negative} labels)",
            expected="their sum above 1 by two standard errors: better than calling responses at random",
            fix="label more responses, or take another judge",
        )
    return _Judge(sensitivity, specificity, informedness)


def _rescale(estimate: Estimate, seen: float, judge: _Judge, variance: _Quadratic, alpha: float) -> Estimate:
    """Returns the corrected estimate.

    Args:
        estimate: Of what the judge saw.
        seen: What is seen of a true value, which would be `informedness` times it.
        judge: Its shares.
        variance: What the judge adds to the variance of `seen`.
        alpha: One-sided error rate.
    """
    if not math.isclose(estimate.interval.level, 1 - 2 * alpha, abs_tol=1e-12):
        raise InputError(
            f"an interval of level {estimate.interval.level:g} for alpha {alpha:g}",
            expected=f"level 1 - 2 alpha = {1 - 2 * alpha:g}",
            fix="make the estimate with the alpha of the clause",
        )
    value = seen / judge.informedness
    if estimate.method is Method.TOO_FEW_CLUSTERS:
        return estimate.model_copy(update={"value": value, "discordant_rate": None})
    down, up = estimate.value - estimate.interval.lower, estimate.interval.upper - estimate.value
    lower = _unrefuted(seen, down, judge.informedness, variance, alpha).lower
    upper = _unrefuted(seen, up, judge.informedness, variance, alpha).upper
    quantile = t_quantile(1 - alpha, estimate.degrees_of_freedom)
    return estimate.model_copy(
        update={
            "value": value,
            "standard_error": max(value - lower, upper - value) / quantile,
            "interval": Interval(lower=lower, upper=upper, level=1 - 2 * alpha),
            "discordant_rate": None,
        }
    )


class _Unrefuted(NamedTuple):
    lower: float
    upper: float


def _unrefuted(seen: float, reach: float, informedness: float, variance: _Quadratic, alpha: float) -> _Unrefuted:
    """Returns the two x with (seen - x J)^2 = reach^2 + z^2 variance(x); what lies between them is not refuted."""
    square, linear, constant = (t_quantile(1 - alpha, math.inf) ** 2 * part for part in variance)
    a = informedness**2 - square
    half = seen * informedness + linear / 2
    root = math.sqrt(max(half**2 - a * (seen**2 - reach**2 - constant), 0.0))
    return _Unrefuted((half - root) / a, (half + root) / a)


def _share(part: int, whole: int) -> Share:
    """Returns the share, with the variance of one moved by a success and a failure."""
    moved = (part + 1) / (whole + 2)
    return Share(part / whole, moved * (1 - moved) / whole)

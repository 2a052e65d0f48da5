"""Fewer bits do more harm: where they do significantly less, the implementation is to be doubted.

All rungs of a ladder of bit widths are measured on the same probes. For two rungs that follow each other the paired
difference "damage with fewer bits minus damage with more" has a mean of 0 or more if damage does not fall, and is
tested one-sided against that by cluster, as a mean or, where both sides are 0/1 observers, by the score test. Schemes
of equal width have no order and are not compared. Holm corrects for the number of comparisons: a sound ladder is
doubted at most alpha of the time.

What it is good for: a scale that is rounded up in one scheme only, a zero point off by one, codes packed in the wrong
order, a rung that silently kept its weights in 16 bits. What it is not: near chance, accuracy wanders without meaning,
so the ladder is read on likelihoods where a rung has destroyed the model.

Source: `clustered` and `proportion` for the tests; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Estimate, Method
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.clustered import ALPHA, MIN_CLUSTERS, estimate_mean
from quantaudit.stats.multiplicity import adjust_holm
from quantaudit.stats.proportion import estimate_flips
from quantaudit.stats.sample import gather
from quantaudit.stats.statistic import compute_statistic, is_decidable
from quantaudit.stats.student import t_cdf


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """One rung: a scheme, its width, and its damage on every probe of the ladder.

    Attributes:
        scheme: Name of the scheme.
        bits: Bits of an element.
        damages_N: Damage-oriented difference of each probe, in the same order for all rungs.
    """

    scheme: str
    bits: int
    damages_N: Sequence[float] | NDArray[np.float64]


class Comparison(NamedTuple):
    """Two rungs that follow each other.

    Attributes:
        more: Scheme with more bits.
        fewer: Scheme with fewer bits.
        estimate: Damage with fewer bits minus damage with more; negative is against the order.
        p_value: Against "damage does not fall as bits fall", alone.
        adjusted: The same by Holm over all comparisons.
    """

    more: str
    fewer: str
    estimate: Estimate
    p_value: float
    adjusted: float


class DoseResponse(NamedTuple):
    """What the ladder says.

    Attributes:
        is_monotone: Whether fewer bits never came out significantly better.
        p_value: Smallest adjusted p-value.
        reason: One sentence.
        comparisons: All of them, from many bits to few.
    """

    is_monotone: bool
    p_value: float
    reason: str
    comparisons: tuple[Comparison, ...]


def judge_dose_response(doses: Sequence[Dose], clusters: Sequence[str], *, alpha: float = ALPHA) -> DoseResponse:
    """Tests whether damage ever falls as bits fall.

    Args:
        doses: The rungs, in any order.
        clusters: Cluster of each probe, in the order of the damages.
        alpha: Chance to doubt a ladder whose damage never falls.

    Raises:
        InputError: If a rung has another number of probes than there are clusters, or a damage that is not finite.
        NotMeasuredError: If there are fewer than two bit widths or five clusters: nothing to judge is not a pass.
    """
    if (num := len(set(clusters))) < MIN_CLUSTERS:
        raise NotMeasuredError(f"{num} clusters: a ladder is judged on {MIN_CLUSTERS} at least")
    pairs = _pair(doses)
    estimates = [_estimate(more, fewer, clusters, alpha) for more, fewer in pairs]
    if not all(is_decidable(estimate) for estimate in estimates):
        raise NotMeasuredError("a few clusters hold most of the probes: they weigh too little to judge a ladder")
    p_values = [_p_value(estimate) for estimate in estimates]
    comparisons = tuple(
        Comparison(more.scheme, fewer.scheme, estimate, p_value, adjusted)
        for (more, fewer), estimate, p_value, adjusted in zip(
            pairs, estimates, p_values, adjust_holm(p_values), strict=True
        )
    )
    strangest = min(comparisons, key=lambda comparison: comparison.adjusted)
    is_monotone = strangest.adjusted > alpha
    reason = _explain(strangest, len(comparisons), is_monotone=is_monotone)
    return DoseResponse(is_monotone, strangest.adjusted, reason, comparisons)


def _pair(doses: Sequence[Dose]) -> list[tuple[Dose, Dose]]:
    """Returns every rung with every rung of the next smaller width."""
    widths = sorted({dose.bits for dose in doses}, reverse=True)
    if len(widths) < 2:
        raise NotMeasuredError(f"a ladder of {len(widths)} bit widths: at least two are compared")
    by_width = {bits: [dose for dose in doses if dose.bits == bits] for bits in widths}
    return [
        (more, fewer)
        for upper, lower in zip(widths, widths[1:], strict=False)
        for more in by_width[upper]
        for fewer in by_width[lower]
    ]


def _estimate(more: Dose, fewer: Dose, clusters: Sequence[str], alpha: float) -> Estimate:
    """Estimates the paired difference of two rungs."""
    first_N, second_N = np.asarray(more.damages_N, dtype=np.float64), np.asarray(fewer.damages_N, dtype=np.float64)
    for dose, damages_N in ((more, first_N), (fewer, second_N)):
        if damages_N.shape != (len(clusters),):
            raise InputError(
                f"{damages_N.shape} damages of {dose.scheme} for {len(clusters)} probes",
                expected="one damage a probe, in the same order on every rung",
                fix="measure every rung on the same probes",
            )
    sample = gather(second_N - first_N, clusters)
    are_flips = bool(np.isin(sample.values_N, (-1.0, 0.0, 1.0)).all())
    return estimate_flips(sample, alpha=alpha) if are_flips else estimate_mean(sample, alpha=alpha)


def _p_value(estimate: Estimate) -> float:
    """Returns the p-value against "the mean is 0 or more"."""
    return float(t_cdf(compute_statistic(estimate, 0.0), estimate.degrees_of_freedom))


def _explain(strangest: Comparison, num: int, *, is_monotone: bool) -> str:
    among = f"Holm over {num} comparison{'s' if num > 1 else ''}"
    if is_monotone:
        return f"Damage never falls significantly as bits fall (smallest p = {strangest.adjusted:.2g}, {among})."
    unit = "as a share of probes, " if strangest.estimate.method is Method.SCORE else ""
    return (
        f"{strangest.fewer} does less damage than {strangest.more} by {-strangest.estimate.value:.3g} ({unit}"
        f"p = {strangest.adjusted:.2g}, {among}) though it has fewer bits: suspect the implementation of either."
    )

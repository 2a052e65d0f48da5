"""The worst slice: bounds that hold for all slices together, and a p-value that knows how many were looked at.

Of twenty harmless families the worst one looks bad. With the clustered t statistic of each slice, t_s = (mean_s - m) /
se_s, the critical value is the 1 - alpha quantile of the *largest* of them when nothing is wrong. It is simulated: the
residual total S_c of a cluster is multiplied by a random weight w_c, the same in every slice the cluster is in, so that
slices that share clusters stay as dependent as they are, and every slice is studentised again,

    a_s = sum_c w_c S_cs / N_s,  V*_s = (1/N_s^2) sum_c (w_c S_cs - n_cs a_s)^2 / (1 - h_cs),  t*_s = a_s / sqrt(V*_s).

With c the quantile of max_s t*_s, the true mean of every slice is below mean_s + c se_s with probability 1 - alpha, for
all slices together, and above mean_s - c se_s likewise (weights are symmetric). The adjusted p-value of "slice s is
within its margin" is the share of max t* that reach t_s: at most alpha exactly where the lower bound is above m.

Admitting needs no such correction (every slice has to be inside its margin: `multiplicity`); naming the slices that
are damaged does.

Weights are Webb's six points by default: with eight clusters they give 6^8 draws where Rademacher's two give 256.
Simulated at the margin with six slices and alpha = .05, some slice was called damaged in 6 % of the cases with five
equal clusters a slice and in 8 to 9 % with five very unequal ones (14 and 3 probes): slices whose clusters weigh less
than eight equal ones are refused.

Legend of shapes: R replicates, G clusters (the union of all slices), K slices.
Source: Romano and Wolf 2005 (max t); Cameron, Gelbach and Miller 2008 (wild cluster bootstrap); Webb 2023 (weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.decision import Estimate, Interval
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.bootstrap import NUM_REPLICATES, seed_generator
from quantaudit.stats.clustered import ALPHA, compute_moments, estimate_mean
from quantaudit.stats.sample import Sample

MIN_SLICE_CLUSTERS = 8  # fewest equal clusters a slice at which the rate was simulated to hold


class Weights(StrEnum):
    """Random signs, or signs with sizes; mean 0, variance 1."""

    WEBB = "webb"
    RADEMACHER = "rademacher"


_POINTS = {
    Weights.WEBB: np.array([-np.sqrt(1.5), -1.0, -np.sqrt(0.5), np.sqrt(0.5), 1.0, np.sqrt(1.5)]),
    Weights.RADEMACHER: np.array([-1.0, 1.0]),
}


class SliceBounds(NamedTuple):
    """One slice among all.

    Attributes:
        estimate: Of the slice alone, with its own interval.
        simultaneous: Interval that holds for all slices together; each side has error alpha over all slices.
        p_value: Against "damage is within the margin", adjusted for the number of slices.
    """

    estimate: Estimate
    simultaneous: Interval
    p_value: float


class WorstSlice(NamedTuple):
    """All slices, and the worst.

    Attributes:
        slices: By name, in the order given.
        worst: Name of the slice with the largest statistic (the largest mean where none varies).
        critical: Standard errors that the simultaneous bounds reach.
    """

    slices: dict[str, SliceBounds]
    worst: str
    critical: float


def compare_slices(
    samples: Mapping[str, Sample],
    *,
    margin: float,
    alpha: float = ALPHA,
    weights: Weights = Weights.WEBB,
    num_replicates: int = NUM_REPLICATES,
) -> WorstSlice:
    """Bounds the mean damage of all slices together and finds those beyond the margin.

    Args:
        samples: Paired differences of each slice; equal cluster names mean the same cluster.
        margin: Largest tolerated mean difference, the same for all slices; may be 0.
        alpha: One-sided error rate over all slices.
        weights: Distribution of the multipliers.
        num_replicates: Replicates to draw.

    Raises:
        InputError: If a slice has fewer than eight clusters, or clusters so unequal that they weigh less.
        NotMeasuredError: If there are no slices.
    """
    _check(samples)
    estimates = {name: estimate_mean(sample, alpha=alpha) for name, sample in samples.items()}
    statistics = {name: _statistic(estimate, margin) for name, estimate in estimates.items()}
    largest_R = _largest(samples, weights, num_replicates)
    critical = _critical(largest_R, alpha)
    slices = {
        name: SliceBounds(estimate, _simultaneous(estimate, critical, alpha), _p_value(statistics[name], largest_R))
        for name, estimate in estimates.items()
    }
    worst = max(estimates, key=lambda name: (statistics[name], estimates[name].value))
    return WorstSlice(slices, worst, critical)


def _statistic(estimate: Estimate, margin: float) -> float:
    gap = estimate.value - margin
    if estimate.standard_error > 0:
        return gap / estimate.standard_error
    return float(np.copysign(np.inf, gap)) if gap else 0.0


def _largest(samples: Mapping[str, Sample], weights: Weights, num_replicates: int) -> NDArray[np.float64]:
    """Draws (R,) the largest studentised statistic over the slices that vary, when nothing is wrong."""
    clusters = sorted({name for sample in samples.values() for name in sample.clusters})
    rng = seed_generator(*samples.values())
    weights_RG = rng.choice(_POINTS[weights], size=(num_replicates, len(clusters)))
    position = {name: index for index, name in enumerate(clusters)}
    largest_R = np.full(num_replicates, -np.inf)
    for sample in samples.values():
        at_G = np.array([position[name] for name in sample.clusters])
        largest_R = np.maximum(largest_R, _studentize(sample, weights_RG[:, at_G]))
    return largest_R


def _studentize(sample: Sample, weights_RG: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns (R,) t* of one slice; minus infinity, so that it is never the largest, if the slice does not vary."""
    totals_G = compute_moments(sample.values_N, sample.sizes_G).totals_G
    sizes_G, num_probes = sample.sizes_G.astype(np.float64), len(sample.values_N)
    if not np.any(totals_G):
        return np.full(len(weights_RG), -np.inf)
    means_R = weights_RG @ totals_G / num_probes
    residuals_RG = weights_RG * totals_G - means_R[:, None] * sizes_G
    variances_R = np.sum(residuals_RG**2 / (1 - sizes_G / num_probes), axis=1) / num_probes**2
    with np.errstate(divide="ignore"):  # equal signs of equal totals leave no spread: a statistic without limit
        return np.asarray(np.where(means_R == 0, 0.0, means_R / np.sqrt(variances_R)))


def _critical(largest_R: NDArray[np.float64], alpha: float) -> float:
    """Returns the largest value whose p-value exceeds alpha; infinite if there are too few replicates."""
    num_above = int(np.floor(alpha * (len(largest_R) + 1))) - 1
    if num_above < 0:
        return float("inf")
    return max(0.0, float(np.sort(largest_R)[len(largest_R) - 1 - num_above]))


def _simultaneous(estimate: Estimate, critical: float, alpha: float) -> Interval:
    reach = critical * estimate.standard_error if estimate.standard_error > 0 else 0.0
    return Interval(lower=estimate.value - reach, upper=estimate.value + reach, level=1 - 2 * alpha)


def _p_value(statistic: float, largest_R: NDArray[np.float64]) -> float:
    """Returns the share of replicates that reach the statistic, which itself counts as one."""
    return float(1 + np.sum(largest_R >= statistic)) / (1 + len(largest_R))


def _check(samples: Mapping[str, Sample]) -> None:
    if not samples:
        raise NotMeasuredError("no slices: nothing was compared")
    for name, sample in samples.items():
        weight = float(sample.sizes_G.sum()) ** 2 / float(np.square(sample.sizes_G, dtype=np.float64).sum())
        if weight < MIN_SLICE_CLUSTERS:
            raise InputError(
                f"slice {name!r} with {len(sample.sizes_G)} clusters, which weigh as much as {weight:.3g} equal ones",
                expected=f"at least {MIN_SLICE_CLUSTERS}",
                fix="merge it with a related slice, or leave it out and say so",
            )

"""Asks the decision rules, many replicates at once, and checks on some that the public path gives the same answer.

Nothing of a rule is restated here: means and flips have array functions that their estimators are made of
(`bound_mean`, `bound_flips`), which take all replicates together; contrasts and sequential tests are called one by one.

Legend of shapes: R replicates, N probes, G clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.layouts import Layout, Values
from quantaudit.core.contract import Direction
from quantaudit.core.decision import Estimate, Interval, Outcome
from quantaudit.stats.betting import Bets, Claim, log_evidence, to_p_values
from quantaudit.stats.clustered import ALPHA, MeanBounds, bound_mean, compute_moments, estimate_mean, mean_statistic
from quantaudit.stats.decide import decide
from quantaudit.stats.looks import Looks, Question, first_decided, first_outcome, weigh
from quantaudit.stats.proportion import FlipBounds, bound_flips, estimate_flips, flip_statistic
from quantaudit.stats.sample import gather
from quantaudit.stats.sequential import SequentialTest, run_sequentially
from quantaudit.stats.statistic import compute_p_values, has_weight, is_decidable, p_values

NUM_CHECKED = 1
_AGREEMENT = 1e-8  # of p-values: the public path reads reaches back from an interval of float64 bounds

MeanRule = Callable[[Values, NDArray[np.int64]], MeanBounds]


class Answers(NamedTuple):
    """What a rule says of each replicate; refused ones have p-values of 1.

    Attributes:
        admit_R: P-value for admitting.
        reject_R: P-value for rejecting.
        covers_R: Whether the 90 % interval holds the truth.
        refused_R: Whether the rule declines because clusters weigh too little.
    """

    admit_R: Values
    reject_R: Values
    covers_R: NDArray[np.bool_]
    refused_R: NDArray[np.bool_]


def is_admitted(answers: Answers) -> NDArray[np.bool_]:
    """Returns which replicates pass."""
    return answers.admit_R <= ALPHA


def is_rejected(answers: Answers) -> NDArray[np.bool_]:
    """Returns which replicates fail."""
    return (answers.admit_R > ALPHA) & (answers.reject_R <= ALPHA)


def bound_means(values_RN: Values, sizes_G: NDArray[np.int64]) -> MeanBounds:
    """Asks the rule in use."""
    return bound_mean(values_RN, sizes_G, alpha=ALPHA)


def ask_means(found: MeanBounds, layout: Layout, *, truth: float, margin: float, direction: Direction) -> Answers:
    """Answers for differences whose centred values have these bounds; adding `truth` moves the mean and nothing else.

    Args:
        found: Bounds of values whose true mean is 0.
        layout: How the probes lie.
        truth: True mean to add.
        margin: Margin of the clause.
        direction: Which differences count.
    """
    moved = found._replace(moments=found.moments._replace(mean=found.moments.mean + truth))
    df = found.degrees_of_freedom
    above, below = mean_statistic(moved, margin), mean_statistic(moved, -margin)
    gap = found.moments.mean / found.standard_error
    covers = (gap <= found.reach.lower) & (gap >= -found.reach.upper)
    return _refuse_light(p_values(above, below, df, direction=direction), df, layout, covers)


def bound_with_companion(values_RN: Values, companion_RN: Values, layout: Layout) -> FlipBounds:
    """Asks what bounds flips that are given the design effect of their continuous companion, at least 1."""
    sizes_G = layout.sizes_G()
    moments = compute_moments(companion_RN, sizes_G)
    least = np.maximum(moments.variance / moments.independent_variance, 1.0)
    return bound_flips(values_RN, sizes_G, alpha=ALPHA, least_design_effect=least)


def ask_flips(found: FlipBounds, layout: Layout, *, truth: float, margin: float, direction: Direction) -> Answers:
    """Answers for flips with these bounds, whose true difference is `truth`."""
    above, below = (flip_statistic(found, layout.num_probes, m) for m in (margin, -margin))
    at_truth = above if truth == margin else flip_statistic(found, layout.num_probes, 0.0)
    df = found.degrees_of_freedom
    covers = np.abs(at_truth) <= found.reach.plain
    return _refuse_light(p_values(above, below, df, direction=direction), df, layout, covers)


def _refuse_light(
    found: tuple[Values, Values], degrees_of_freedom: Values, layout: Layout, covers_R: NDArray[np.bool_]
) -> Answers:
    has_R = has_weight(degrees_of_freedom, layout.num_clusters)
    admit, reject = (np.where(has_R, p, 1.0) for p in found)
    return Answers(admit, reject, covers_R, ~has_R)


def check_means(values_RN: Values, layout: Layout, answers: Answers, *, margin: float, direction: Direction) -> None:
    """Checks that `estimate_mean` and `decide` say what the arrays say."""
    names = layout.names()
    estimates = [estimate_mean(gather(values_N, names)) for values_N in values_RN[:NUM_CHECKED]]
    _compare(estimates, answers, margin=margin, direction=direction)


def check_flips(
    values_RN: Values, companion_RN: Values, layout: Layout, answers: Answers, *, margin: float, direction: Direction
) -> None:
    """Checks that `estimate_flips` and `decide` say what the arrays say."""
    names = layout.names()
    estimates = []
    for values_N, companion_N in zip(values_RN[:NUM_CHECKED], companion_RN[:NUM_CHECKED], strict=True):
        least = max(1.0, estimate_mean(gather(companion_N, names)).design_effect)
        estimates.append(estimate_flips(gather(values_N, names), least_design_effect=least))
    _compare(estimates, answers, margin=margin, direction=direction)


def _compare(estimates: list[Estimate], answers: Answers, *, margin: float, direction: Direction) -> None:
    for row, estimate in enumerate(estimates):
        decision = decide(estimate, direction=direction, margin=margin)
        # beyond one half a p-value says the other side is likelier; the stored interval tells it less exactly there
        is_close = abs(decision.p_admit - answers.admit_R[row]) <= _AGREEMENT
        assert is_close or min(decision.p_admit, answers.admit_R[row]) > 0.5, "decide admits otherwise"
        expected = Outcome.UNDECIDED
        if is_admitted(answers)[row]:
            expected = Outcome.PASS
        elif is_rejected(answers)[row]:
            expected = Outcome.FAIL
        assert decision.outcome is expected, "decide comes to another outcome"


def ask_contrasts(estimates: list[Estimate], *, truth: float, margin: float, direction: Direction) -> Answers:
    """Answers for the difference of two means, one replicate after the other.

    Args:
        estimates: Of replicates whose true contrast is 0; adding `truth` moves value and interval and nothing else.
        truth: True contrast to add.
        margin: Margin of the clause.
        direction: Which differences count.
    """
    refused_R = np.array([not is_decidable(estimate) for estimate in estimates])
    covers_R = np.array([e.interval.lower <= 0 <= e.interval.upper for e in estimates])
    moved = [_move(estimate, truth) for estimate in estimates]
    found = np.array([compute_p_values(estimate, direction=direction, margin=margin) for estimate in moved])
    admit_R, reject_R = np.where(refused_R[:, None], 1.0, found).T
    return Answers(admit_R, reject_R, covers_R, refused_R)


def _move(estimate: Estimate, truth: float) -> Estimate:
    interval = estimate.interval
    moved = Interval(lower=interval.lower + truth, upper=interval.upper + truth, level=interval.level)
    return estimate.model_copy(update={"value": estimate.value + truth, "interval": moved})


def ask_sequentially(
    values_RN: Values,
    layout: Layout,
    *,
    truth: float,
    margin: float,
    direction: Direction,
    bound: float,
) -> Answers:
    """Answers for differences read cluster by cluster, stopped at the first decision."""
    sizes_G = layout.sizes_G()
    order_G = np.random.default_rng(len(sizes_G)).permutation(len(sizes_G))
    starts_G = np.cumsum(sizes_G) - sizes_G
    means_RG = np.add.reduceat(values_RN, starts_G, axis=1)[:, order_G] / sizes_G[order_G]
    question = Question(direction, margin, ALPHA)
    bets = Bets(means_RG, sizes_G[order_G] / sizes_G.max(), bound)
    looks = weigh(bets, question)
    admit, reject = np.ones(len(means_RG)), np.ones(len(means_RG))
    refuted_RG = np.minimum(*(to_p_values(log_evidence(bets, truth, claim)) for claim in Claim)) <= ALPHA
    covers = np.empty(len(means_RG), dtype=bool)
    for row in range(len(means_RG)):
        own = Looks(*(looks_RG[row] for looks_RG in looks))
        stop, outcome = first_decided(own, ALPHA), first_outcome(own, ALPHA)
        admit[row], reject[row] = float(outcome is not Outcome.PASS), float(outcome is not Outcome.FAIL)
        covers[row] = not refuted_RG[row, -1 if stop is None else stop]
        if row < NUM_CHECKED and truth and direction is Direction.BOTH:
            _check_run(values_RN[row], layout, order_G, outcome, question, bound)
    return Answers(admit, reject, covers, np.zeros(len(means_RG), dtype=bool))


def _check_run(
    values_N: Values, layout: Layout, order_G: NDArray[np.int64], outcome: Outcome, question: Question, bound: float
) -> None:
    """Checks that `run_sequentially` stops with the same outcome."""
    sample = gather(values_N, layout.names())
    test = SequentialTest(
        direction=question.direction,
        margin=question.margin,
        bound=bound,
        largest_cluster=int(layout.sizes_G().max()),
        are_flips=bool(np.isin(values_N, (-1.0, 0.0, 1.0)).all()),
    )
    run = run_sequentially(test, sample, order=[sample.clusters[i] for i in order_G])
    assert run.decision.outcome is outcome, "run_sequentially comes to another outcome"

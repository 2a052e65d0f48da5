"""Decisions that may be read after every cluster, and stopped as soon as they are made.

`decide` holds its error rate for a sample of a size fixed in advance. Whoever looks at it again after more probes, and
stops when it admits, admits a harmful lo far more often than alpha. Here every look is covered: the chance that a lo
beyond its margin is *ever* admitted is at most alpha, and the same for rejecting one within it. The price is a larger
sample, often twice the probes of a single look at a planned size.

What has to be fixed before the first cluster is seen:

- the clause (direction, margin, alpha) and the bound on a single difference;
- the largest cluster, since clusters bet in proportion to their size;
- the order of clusters. It must not depend on the differences, and families must be mixed, since the mean of the next
  cluster has to be that of the whole whatever came before. `order_by_name` shuffles by a hash of the names, which
  nobody chose. The unit of betting is a cluster, or a batch of clusters fixed in advance and passed as one, never a
  probe inside a cluster.

Differences beyond the bound are refused, or clipped if asked for. Clipping changes the question: the decision is then
about the mean of *clipped* differences, and its reason says how many there were.

Legend of shapes: N probes, G clusters in the order of betting.
Source: `betting` for the bounds; Howard, Ramdas, McAuliffe and Sekhon 2021 (bounds at all looks together).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantaudit.core.contract import Direction
from quantaudit.core.decision import Decision, Estimate, Interval, Method, Outcome
from quantaudit.core.errors import InputError, NotMeasuredError
from quantaudit.stats.betting import Bets, lower_bound, upper_bound
from quantaudit.stats.clustered import ALPHA
from quantaudit.stats.looks import Question, detectable_margin, factor_to_admit, first_decided, first_outcome, weigh
from quantaudit.stats.sample import Sample

MAX_NUM = 10**12  # beyond this a number of probes is no advice


class Beyond(StrEnum):
    """What happens to a difference beyond the bound."""

    REFUSE = "refuse"
    CLIP = "clip"  # and say so: the decision is then about clipped differences


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """One clause, decided while clusters come in; `observe` returns the test with one more.

    Attributes:
        direction: Whether improvement beyond the margin counts against lo too.
        margin: Largest tolerated mean difference, in the observer's unit, below the bound.
        alpha: One-sided error rate over all looks together.
        bound: Largest absolute difference of a probe; 1 for a 0/1 observer.
        largest_cluster: Most probes of a cluster.
        are_flips: Whether differences are -1, 0 or +1 only; the bound is then 1.
        beyond: What happens to a difference beyond the bound.
        means: Mean difference of each cluster seen, in order; clipped differences where that was asked for.
        sizes: Probes of each cluster seen.
        num_clipped: Differences that were beyond the bound.

    Raises:
        InputError: If the margin is not between 0 and the bound, alpha not between 0 and .5, no cluster is allowed, or
            flips have another bound than 1.
    """

    direction: Direction
    margin: float
    alpha: float = ALPHA
    bound: float = 1.0
    largest_cluster: int
    are_flips: bool = False
    beyond: Beyond = Beyond.REFUSE
    means: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    num_clipped: int = 0

    def __post_init__(self) -> None:
        _check_plan(self)

    def observe(self, differences: Sequence[float] | NDArray[np.float64]) -> SequentialTest:
        """Returns this test after one more cluster.

        Args:
            differences: Damage-oriented differences of all probes of the cluster.

        Raises:
            InputError: If the cluster is empty or too large, or a difference is not finite, beyond the bound, or no
                flip where flips were announced.
        """
        values_N = np.asarray(differences, dtype=np.float64)
        _check_cluster(self, values_N)
        clipped_N = np.clip(values_N, -self.bound, self.bound)
        return replace(
            self,
            means=(*self.means, float(np.mean(clipped_N))),
            sizes=(*self.sizes, len(values_N)),
            num_clipped=self.num_clipped + int(np.sum(clipped_N != values_N)),
        )

    def look(self) -> Decision:
        """Decides with the clusters seen so far; the first decision stands, whatever comes after it.

        Raises:
            NotMeasuredError: If no cluster was seen.
        """
        bets, question = _bets(self), _question(self)
        looks = weigh(bets, question)
        outcome = first_outcome(looks, self.alpha)
        num = _num_to_admit(self) if outcome is Outcome.UNDECIDED else None
        return Decision(
            outcome=outcome,
            is_displacement=self.direction is Direction.WORSE and float(looks.improvement_G[-1]) <= self.alpha,
            p_admit=float(looks.admit_G[-1]),
            p_reject=float(looks.reject_G[-1]),
            num_that_would_decide=num,
            minimum_detectable_effect=detectable_margin(bets, question),
            reason=_explain(self, outcome, num),
        )

    def estimate(self) -> Estimate:
        """Returns the mean over probes with bounds that hold at all looks together.

        The standard error is infinite and the flips are not counted, so that a rule for a planned sample size, such as
        `decide`, cannot decide on it: after looking, only `look` can.

        Raises:
            NotMeasuredError: If no cluster was seen.
        """
        bets = _bets(self)
        value = float(np.average(self.means, weights=self.sizes))
        # an early look may have refuted what is the mean by now; the interval is stretched to hold it
        lower, upper = min(lower_bound(bets, self.alpha), value), max(upper_bound(bets, self.alpha), value)
        return Estimate(
            value=value,
            standard_error=math.inf,
            degrees_of_freedom=math.inf,
            interval=Interval(lower=lower, upper=upper, level=1 - 2 * self.alpha),
            num_probes=sum(self.sizes),
            num_clusters=len(self.sizes),
            design_effect=1.0,
            intraclass_correlation=0.0,
            method=Method.E_VALUE if self.are_flips else Method.BETTING,
        )


class SequentialRun(NamedTuple):
    """How a sequential test went over a sample.

    Attributes:
        test: The test after the last cluster that was used.
        decision: What it says.
        num_clusters: Clusters of the sample that were used; 0 if the test had decided before.
        stopped_at: Name of the cluster that decided; `None` if all were used without a decision, or none was.
    """

    test: SequentialTest
    decision: Decision
    num_clusters: int
    stopped_at: str | None


def order_by_name(clusters: Sequence[str]) -> tuple[str, ...]:
    """Shuffles clusters by a hash of their names: fixed in advance, mixed, and not open to choice."""
    return tuple(sorted(clusters, key=lambda name: hashlib.sha256(name.encode()).hexdigest()))


def run_sequentially(test: SequentialTest, sample: Sample, *, order: Sequence[str] | None = None) -> SequentialRun:
    """Feeds a sample to a test, cluster by cluster, until it decides.

    Args:
        test: The plan, with or without clusters already seen.
        sample: Paired differences by cluster, none of which the test has seen.
        order: Clusters in the order fixed in advance, each once; by a hash of their names where not given.

    Raises:
        InputError: If the order leaves out, repeats or invents a cluster.
    """
    names = order_by_name(sample.clusters) if order is None else tuple(order)
    if sorted(names) != sorted(sample.clusters):
        raise InputError(
            f"an order of {len(names)} clusters for a sample of {len(sample.clusters)}",
            expected="every cluster of the sample, once",
            fix="give the order that was fixed before the differences were seen, or none",
        )
    parts = dict(zip(sample.clusters, np.split(sample.values_N, np.cumsum(sample.sizes_G)[:-1]), strict=True))
    tests = list(itertools.accumulate(names, lambda seen, name: seen.observe(parts[name]), initial=test))
    looks = weigh(_bets(tests[-1]), _question(test))
    decided_at = first_decided(looks, test.alpha)
    if decided_at is None:
        return SequentialRun(tests[-1], tests[-1].look(), len(names), None)
    num_used = max(decided_at + 1 - len(test.sizes), 0)
    return SequentialRun(tests[num_used], tests[num_used].look(), num_used, names[num_used - 1] if num_used else None)


def _question(test: SequentialTest) -> Question:
    return Question(test.direction, test.margin, test.alpha)


def _bets(test: SequentialTest) -> Bets:
    if not test.sizes:
        raise NotMeasuredError("no cluster was seen: nothing can be decided")
    return Bets(np.array(test.means), np.array(test.sizes) / test.largest_cluster, test.bound)


def _num_to_admit(test: SequentialTest) -> int | None:
    factor = factor_to_admit(_bets(test), _question(test))
    if factor is None or factor * sum(test.sizes) > MAX_NUM:
        return None
    return max(sum(test.sizes) + 1, math.ceil(factor * sum(test.sizes)))


def _explain(test: SequentialTest, outcome: Outcome, num: int | None) -> str:
    estimate = test.estimate()
    lower, upper = estimate.interval.lower, estimate.interval.upper
    clipped = f", {test.num_clipped:,} of which were clipped to {test.bound:g} at most" if test.num_clipped else ""
    what = "mean clipped difference" if test.num_clipped else "difference"
    found = (
        f"The {what} is {estimate.value:.4g} over {estimate.num_probes:,} probes in {estimate.num_clusters:,} "
        f"clusters{clipped}, and at all looks together the true one is between {lower:.4g} and {upper:.4g}"
    )
    if outcome is Outcome.UNDECIDED:
        more = f"about {num:,} such probes would admit" if num else "evidence for admitting does not grow"
        return f"{found}, too wide for the margin of {test.margin:g}; {more}."
    side = "inside" if outcome is Outcome.PASS else "beyond"
    return f"{found}, {side} the margin of {test.margin:g}."


def _check_plan(test: SequentialTest) -> None:
    if not 0 < test.margin < test.bound < math.inf:
        raise InputError(
            f"margin {test.margin:g} with differences of at most {test.bound:g}",
            expected="0 < margin < bound, both finite",
            fix="give the largest tolerated mean, and a bound that no single difference exceeds",
        )
    if not 0 < test.alpha < 0.5:
        raise InputError(
            f"alpha {test.alpha:g}", expected="a number between 0 and 0.5", fix="give the alpha of the clause"
        )
    if test.largest_cluster < 1:
        raise InputError(
            f"largest cluster {test.largest_cluster}",
            expected="at least 1 probe",
            fix="give the size of the largest cluster of the probe set",
        )
    if test.are_flips and test.bound != 1:
        raise InputError(
            f"bound {test.bound:g} for flips", expected="bound 1", fix="leave the bound out, or say are_flips=False"
        )


def _check_cluster(test: SequentialTest, values_N: NDArray[np.float64]) -> None:
    if values_N.ndim != 1 or not 1 <= len(values_N) <= test.largest_cluster:
        raise InputError(
            f"a cluster of shape {values_N.shape}",
            expected=f"1 to {test.largest_cluster} differences",
            fix="start the test with the size of the largest cluster of the probe set; it cannot grow on the way",
        )
    if not np.isfinite(values_N).all():
        raise InputError(
            "a difference that is not finite",
            expected="finite differences",
            fix="find the probe whose observation overflowed; it is a finding of its own, not a number to bet on",
        )
    if test.are_flips and not np.isin(values_N, (-1.0, 0.0, 1.0)).all():
        raise InputError(
            f"difference {values_N[~np.isin(values_N, (-1.0, 0.0, 1.0))][0]:g} of a 0/1 observer",
            expected="-1, 0 or +1 per pair",
            fix="say are_flips=False, and bound the differences of a continuous observer",
        )
    largest = float(np.max(np.abs(values_N)))
    if largest > test.bound and test.beyond is Beyond.REFUSE:
        raise InputError(
            f"a difference of size {largest:g}",
            expected=f"at most the bound of {test.bound:g}",
            fix="start again with a bound that holds, or with beyond=Beyond.CLIP, which decides about clipped values",
        )

"""Degeneracy: is lo still a language model on these probes at all?

Its mean NLL must lie below that of the best unigram model of the right responses (fitted on the very probes, so a
hard opponent): over all probes, and in every family that hi has not lost to that family's own unigram model, for
sound copying does not make up for facts that are worse than noise. And its accuracy must lie above chance in some
family. All by one-sided tests; "some" of k families is tested at alpha / k. Chance is the best constant answer of the
family. A model with likelihoods that are not finite fails.

Source: the conditions on likelihood and accuracy are those of the default contract.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quantaudit.core.decision import Decision, Estimate, Outcome
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table, select
from quantaudit.observers.metric import Readings
from quantaudit.probes.encoding import encode_pair
from quantaudit.stats import decide_exact, estimate_mean, gather
from quantaudit.stats.statistic import compute_statistic, is_decidable
from quantaudit.stats.student import t_cdf


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneracy:
    """What the gate found.

    Attributes:
        unigram_nll: Mean NLL of the unigram model, nats per token.
        lo_nll: Mean NLL of lo.
        estimate: lo's NLL minus the unigram model's; negative while lo is a language model, `None` if not finite.
        decision: PASS, FAIL or UNDECIDED.
    """

    unigram_nll: float
    lo_nll: float
    estimate: Estimate | None
    decision: Decision


def judge_degeneracy(table: Table, probes: ProbeSet, *, alpha: float) -> Degeneracy:
    """Judges the lo side of a comparison."""
    nll = table.readings("nll")
    unigram_R = np.array(unigram_nlls(probes))[nll.index_R]
    lo_nll, best = float(nll.lo_R.mean()), float(unigram_R.mean())
    num_broken = int((~np.isfinite(nll.lo_R)).sum())
    if num_broken:
        reason = f"lo gives likelihoods that are not finite on {num_broken:,} of {len(nll.lo_R):,} probes."
        decision = decide_exact(is_equal=False).model_copy(update={"reason": reason})
        return Degeneracy(unigram_nll=best, lo_nll=lo_nll, estimate=None, decision=decision)
    estimate = estimate_mean(gather(nll.lo_R - unigram_R, clusters_at(probes, nll.index_R)), alpha=alpha)
    likelihood, accuracy = _sides_of_zero(estimate), _sides_of_chance(table, probes, alpha)
    collapse = _sides_of_families(nll, probes, alpha)
    conditions = (likelihood, accuracy, collapse.sides)
    # Passing needs all conditions, so the worst one decides; failing needs one of three, so each has a third of alpha.
    p_admit = max(c.below for c in conditions)
    p_reject = min(1.0, len(conditions) * min(c.above for c in conditions))
    reason = (
        f"lo has {lo_nll:.3g} nats per token against {best:.3g} of a unigram model "
        f"({_describe(likelihood, alpha)} it), {_describe_families(collapse, alpha)}, "
        f"and its accuracy is {_describe_accuracy(accuracy, alpha)}."
    )
    decision = Decision(
        outcome=Outcome.PASS if p_admit <= alpha else Outcome.FAIL if p_reject <= alpha else Outcome.UNDECIDED,
        p_admit=p_admit,
        p_reject=p_reject,
        num_that_would_decide=None,
        minimum_detectable_effect=0.0,
        reason=reason,
    )
    return Degeneracy(unigram_nll=best, lo_nll=lo_nll, estimate=estimate, decision=decision)


def unigram_nlls(probes: ProbeSet) -> list[float]:
    """Returns, for every probe, the mean NLL of its response under the unigram model of all responses, nats."""
    responses = [encode_pair(p.prompt, p.response) for p in probes.probes]
    scored = [s.tokens[s.scored_from :] for s in responses]
    counts = Counter(token for tokens in scored for token in tokens)
    total = counts.total()
    cost = {token: math.log(total / count) for token, count in counts.items()}
    return [sum(cost[t] for t in tokens) / len(tokens) for tokens in scored]


def chance_accuracy(probes: ProbeSet, family: str) -> float:
    """Returns the accuracy of the best constant answer."""
    answers = Counter(p.response for p in probes.probes if p.family == family)
    return max(answers.values()) / answers.total()


class _Sides(NamedTuple):
    """P-values: a small `below` says that a mean is below zero, a small `above` that it is above."""

    below: float
    above: float


def _sides_of_zero(estimate: Estimate) -> _Sides:
    if not is_decidable(estimate):
        return _Sides(1.0, 1.0)
    if estimate.standard_error == 0:
        return _Sides(float(estimate.value >= 0), float(estimate.value <= 0))
    below = float(t_cdf(compute_statistic(estimate, 0.0), estimate.degrees_of_freedom))
    return _Sides(below, 1.0 - below)


class _Collapse(NamedTuple):
    """The family in which lo comes off worst against the family's own unigram model, nats per token."""

    sides: _Sides
    family: str
    lo_nll: float
    unigram_nll: float


def _sides_of_families(nll: Readings, probes: ProbeSet, alpha: float) -> _Collapse:
    """Tests lo against each family's own unigram model, in the families where hi clearly beats it.

    Where hi is not told apart from that model, a harmless lo could not be either, and no number of such families may
    keep it from being admitted.
    """
    found = []
    for family in probes.families():
        positions = np.array([i for i, p in enumerate(probes.probes) if p.family == family])
        part = select(nll, positions)
        own = probes.model_copy(update={"probes": tuple(probes.probes[i] for i in part.index_R)})
        unigram_R = np.array(unigram_nlls(own))
        clusters = clusters_at(probes, part.index_R)
        hi, lo = (
            _sides_of_zero(estimate_mean(gather(side_R - unigram_R, clusters), alpha=alpha))
            for side_R in (part.hi_R, part.lo_R)
        )
        if hi.below <= alpha:
            found.append(_Collapse(lo, family, float(part.lo_R.mean()), float(unigram_R.mean())))
    if not found:
        return _Collapse(_Sides(1.0, 1.0), "", 0.0, 0.0)
    worst = max(found, key=lambda c: c.lo_nll - c.unigram_nll)
    above = min(1.0, len(found) * min(c.sides.above for c in found))
    return worst._replace(sides=_Sides(max(c.sides.below for c in found), above))


def _sides_of_chance(table: Table, probes: ProbeSet, alpha: float) -> _Sides:
    """Tests chance minus accuracy: `below` says that some family is above chance, `above` that none is."""
    accuracy = table.readings("accuracy")
    sides = []
    for family in probes.families():
        part = select(accuracy, np.array([i for i, p in enumerate(probes.probes) if p.family == family]))
        short_R = chance_accuracy(probes, family) - part.lo_R
        sides.append(_sides_of_zero(estimate_mean(gather(short_R, clusters_at(probes, part.index_R)), alpha=alpha)))
    return _Sides(min(1.0, len(sides) * min(s.below for s in sides)), max(s.above for s in sides))


def _describe(sides: _Sides, alpha: float) -> str:
    if sides.below <= alpha:
        return "clearly below"
    return "clearly above" if sides.above <= alpha else "not told apart from"


def _describe_families(collapse: _Collapse, alpha: float) -> str:
    if not collapse.family:
        return "no family that hi answers better than a unigram model"
    return (
        f"at worst {collapse.lo_nll:.3g} against {collapse.unigram_nll:.3g} in {collapse.family} "
        f"({_describe(collapse.sides, alpha)} it)"
    )


def _describe_accuracy(sides: _Sides, alpha: float) -> str:
    if sides.below <= alpha:
        return "above chance in some family"
    return "below chance in every family" if sides.above <= alpha else "not clearly above chance in any family"

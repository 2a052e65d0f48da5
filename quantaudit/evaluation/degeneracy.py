"""Degeneracy: is lo still a language model on these probes at all?

Its mean NLL must lie below that of the best unigram model of the right responses (fitted on the very probes, so a
hard opponent), and its accuracy above chance in some family, both by their one-sided bounds. Chance is the best
constant answer of the family.

Source: the two conditions are those of the default contract.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from quantaudit.core.decision import Decision, Estimate, Outcome
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.slices import clusters_at
from quantaudit.evaluation.table import Table, select
from quantaudit.probes.encoding import encode_pair
from quantaudit.stats import estimate_mean, gather
from quantaudit.stats.student import t_cdf


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneracy:
    """What the gate found.

    Attributes:
        unigram_nll: Mean NLL of the unigram model, nats per token.
        lo_nll: Mean NLL of lo.
        estimate: lo's NLL minus the unigram model's; negative while lo is a language model.
        decision: PASS, FAIL or UNDECIDED.
    """

    unigram_nll: float
    lo_nll: float
    estimate: Estimate
    decision: Decision


def judge_degeneracy(table: Table, probes: ProbeSet, *, alpha: float) -> Degeneracy:
    """Judges the lo side of a comparison."""
    nll = table.readings("nll")
    unigram_R = np.array(unigram_nlls(probes))[nll.index_R]
    estimate = estimate_mean(gather(nll.lo_R - unigram_R, clusters_at(probes, nll.index_R)), alpha=alpha)
    below = _below_zero(estimate)
    above_chance = _family_outcome(table, probes, alpha)
    outcome = _both(below, above_chance)
    lo_nll, best = float(nll.lo_R.mean()), float(unigram_R.mean())
    reason = (
        f"lo has {lo_nll:.3g} nats per token against {best:.3g} of a unigram model ({_WORDS[below]}), and accuracy above "
        f"chance in {'some' if above_chance is Outcome.PASS else 'no'} family."
    )
    p_reject = 0.0 if above_chance is Outcome.FAIL else 1.0 - _p_below_zero(estimate)
    decision = Decision(
        outcome=outcome,
        p_admit=_p_below_zero(estimate),
        p_reject=p_reject,
        num_that_would_decide=None,
        minimum_detectable_effect=0.0,
        reason=reason,
    )
    return Degeneracy(unigram_nll=best, lo_nll=lo_nll, estimate=estimate, decision=decision)


_WORDS = {Outcome.PASS: "clearly below", Outcome.FAIL: "clearly above", Outcome.UNDECIDED: "not told apart"}


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


def _family_outcome(table: Table, probes: ProbeSet, alpha: float) -> Outcome:
    """Returns PASS if some family lies clearly above its chance, FAIL if every one lies clearly below."""
    outcomes = []
    accuracy = table.readings("accuracy")
    for family in probes.families():
        at = np.array([i for i, p in enumerate(probes.probes) if p.family == family])
        part = select(accuracy, at)
        chance = chance_accuracy(probes, family)
        estimate = estimate_mean(gather(chance - part.lo_R, clusters_at(probes, part.index_R)), alpha=alpha)
        outcomes.append(_below_zero(estimate))
    if Outcome.PASS in outcomes:
        return Outcome.PASS
    return Outcome.FAIL if set(outcomes) == {Outcome.FAIL} else Outcome.UNDECIDED


def _below_zero(estimate: Estimate) -> Outcome:
    if estimate.interval.upper < 0:
        return Outcome.PASS
    return Outcome.FAIL if estimate.interval.lower > 0 else Outcome.UNDECIDED


def _both(first: Outcome, second: Outcome) -> Outcome:
    if Outcome.FAIL in (first, second):
        return Outcome.FAIL
    return Outcome.PASS if first is second is Outcome.PASS else Outcome.UNDECIDED


def _p_below_zero(estimate: Estimate) -> float:
    """Returns the p-value against "the mean is zero or more"; small where it is clearly below."""
    if estimate.standard_error == 0:
        return 0.0 if estimate.value < 0 else 1.0
    if estimate.degrees_of_freedom == 0:
        return 1.0
    return float(t_cdf(estimate.value / estimate.standard_error, estimate.degrees_of_freedom))

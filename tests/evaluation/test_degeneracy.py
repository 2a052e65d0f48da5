"""A model that a unigram table beats, or that is at chance everywhere, is told from one that is neither."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantaudit.core.decision import Outcome
from quantaudit.core.probe import ProbeSet
from quantaudit.evaluation.degeneracy import chance_accuracy, judge_degeneracy, unigram_nlls
from tests.evaluation.synthetic import PROBES, at, good_values, probe_set, ruined, same, table_of

EOS = 257


def unigram_by_hand(probes: ProbeSet) -> list[float]:
    """Returns the NLL of each response under the frequencies of all response tokens, counted one by one."""
    texts = [[*p.response.encode(), EOS] for p in probes.probes]
    pooled = [t for text in texts for t in text]
    return [-sum(math.log(pooled.count(t) / len(pooled)) for t in text) / len(text) for text in texts]


def test_the_unigram_model_is_counted_right() -> None:
    small = probe_set(per_family=7, clusters=3)
    # Up to 6 logarithms and a division in fp64, in another order.
    assert unigram_nlls(small) == pytest.approx(unigram_by_hand(small), rel=16 * 2.0**-53)


def test_no_unigram_model_does_better_on_these_probes() -> None:
    nlls = unigram_nlls(PROBES)
    tokens = [[*p.response.encode(), EOS] for p in PROBES.probes]
    total = sum(n * len(t) for n, t in zip(nlls, tokens, strict=True))
    uniform = sum(math.log(len({t for text in tokens for t in text})) * len(t) for t in tokens)
    assert total < uniform


def test_chance_is_the_best_constant_answer() -> None:
    assert chance_accuracy(PROBES, "sums") == 1 / 200
    assert chance_accuracy(PROBES, "plain") == 1.0, "every right response of the family is the refusal"


def test_a_good_model_passes_and_garbage_fails() -> None:
    good, bad = (judge_degeneracy(t, PROBES, alpha=0.05) for t in (same(), ruined()))
    assert good.decision.outcome is Outcome.PASS and good.estimate is not None and good.estimate.value < 0
    assert bad.decision.outcome is Outcome.FAIL and bad.estimate is not None and bad.estimate.value > 0
    assert good.lo_nll < good.unigram_nll < bad.lo_nll
    assert "clearly below" in good.decision.reason and "above chance in some family" in good.decision.reason
    assert "clearly above" in bad.decision.reason and "below chance in every family" in bad.decision.reason


def test_one_family_worse_than_its_own_unigram_model_fails_whatever_the_others_do() -> None:
    values = good_values()
    in_sums = np.array([p.family == "sums" for p in PROBES.probes])
    broken = values | {"nll": np.where(in_sums, 9.0, values["nll"])}
    found = judge_degeneracy(table_of(values, broken), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.FAIL
    assert found.estimate is not None and found.lo_nll < 9.0
    assert "in sums (clearly above it)" in found.decision.reason


def test_a_family_that_hi_has_lost_already_does_not_fail_lo() -> None:
    values = good_values()
    in_sums = np.array([p.family == "sums" for p in PROBES.probes])
    lost = values | {"nll": np.where(in_sums, 9.0, values["nll"])}
    found = judge_degeneracy(table_of(lost, lost), PROBES, alpha=0.05)
    assert "in sums" not in found.decision.reason


def lo_with(**changes: float) -> dict[str, np.ndarray]:
    """Returns a good model's values, some of them the same number everywhere."""
    values = good_values()
    return values | {k.replace("_", "-"): np.full_like(values["nll"], v) for k, v in changes.items()}


def test_likelihood_without_accuracy_does_not_pass() -> None:
    found = judge_degeneracy(table_of(good_values(), lo_with(accuracy=0.0)), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.FAIL


def test_accuracy_without_likelihood_does_not_pass() -> None:
    found = judge_degeneracy(table_of(good_values(), lo_with(nll=9.0)), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.FAIL


def test_refusing_everything_is_no_accuracy() -> None:
    # Restricted requests all have one right response: always refusing is right on them and still at chance.
    lo = lo_with(accuracy=0.0)
    lo["accuracy"][at("plain", "wrapped")] = 1.0
    found = judge_degeneracy(table_of(good_values(), lo), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.UNDECIDED


def test_one_family_above_chance_is_enough() -> None:
    lo = lo_with(accuracy=0.0)
    lo["accuracy"][at("words")[::4]] = 1.0
    assert judge_degeneracy(table_of(good_values(), lo), PROBES, alpha=0.05).decision.outcome is Outcome.PASS


def test_a_few_lucky_answers_among_many_families_are_not_enough() -> None:
    # Six right of 200 in five clusters' worth of luck: beyond chance at .05 for one family, not for the best of five.
    lo = lo_with(accuracy=0.0)
    lo["accuracy"][at("words")[:6]] = 1.0
    found = judge_degeneracy(table_of(good_values(), lo), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.UNDECIDED


def test_too_few_clusters_decide_nothing() -> None:
    few = probe_set(per_family=40, clusters=2)
    only = few.model_copy(update={"probes": few.probes[:40]})
    values = good_values(only)
    found = judge_degeneracy(table_of(values, values), only, alpha=0.05)
    assert found.decision.outcome is Outcome.UNDECIDED
    assert (found.decision.p_admit, found.decision.p_reject) == (1.0, 1.0)


def test_a_likelihood_that_is_not_finite_fails_without_sampling() -> None:
    lo = good_values()
    lo["nll"][3] = np.nan
    found = judge_degeneracy(table_of(good_values(), lo), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.FAIL and found.decision.is_exact and found.estimate is None


def test_a_family_that_hi_hardly_knows_does_not_keep_a_copy_of_hi_from_passing() -> None:
    hi = good_values()
    rng = np.random.default_rng(3)
    words = at("words")
    own = unigram_nlls(PROBES.model_copy(update={"probes": tuple(PROBES.probes[i] for i in words)}))
    noise = rng.normal(0, 1.0, len(words))
    hi["nll"][words] = np.array(own) - 0.01 + noise - noise.mean()
    assert judge_degeneracy(table_of(hi, hi), PROBES, alpha=0.05).decision.outcome is Outcome.PASS


def test_one_family_that_collapses_fails() -> None:
    lo = good_values()
    lo["nll"][at("words")] = 9.0
    lo["nll"][at("sums", "plain", "wrapped", "benign")] = 0.01
    assert lo["nll"].mean() < np.mean(unigram_nlls(PROBES))
    found = judge_degeneracy(table_of(good_values(), lo), PROBES, alpha=0.05)
    assert found.decision.outcome is Outcome.FAIL and "in words" in found.decision.reason

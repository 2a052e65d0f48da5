"""Likelihood, margin and hit of a sequence are what a loop over its positions finds; ties and infinities included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quantaudit.core.engine import Trace
from quantaudit.observers.scores import reduce_sequences, score_sequences
from quantaudit.observers.task import ACCURACY, MARGIN
from tests.observers.random_pairs import COUNTS, VOCAB, random_pair, trace

# Each of VOCAB exponentials is rounded once in the sum: 12 roundings of 2^-53 on numbers up to 20, and a few to spare.
FP64 = 64 * 2.0**-53 * 20


def by_loop(t: Trace) -> list[tuple[float, float, float, float]]:
    """Returns (logprob, nll, margin, hit) of each sequence, position by position, in plain Python floats."""
    logits, targets, found, start = t.logits_MV.tolist(), t.target_M.tolist(), [], 0
    for count in t.counts_B:
        logprobs, leads, hits = [], [], []
        for row, target in zip(logits[start : start + count], targets[start : start + count], strict=True):
            total = math.fsum(math.exp(x) for x in row)
            logprobs.append(row[target] - math.log(total))
            leads.append(row[target] - max(x for v, x in enumerate(row) if v != target))
            hits.append(row.index(max(row)) == target)
        found.append((math.fsum(logprobs), -math.fsum(logprobs) / count, min(leads), float(all(hits))))
        start += count
    return found


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_a_loop(seed: int) -> None:
    batch = random_pair(seed)
    scores = score_sequences(batch.hi)
    expected = np.array(by_loop(batch.hi))
    assert np.abs(scores.logprob_B - expected[:, 0]).max() <= FP64
    assert np.abs(scores.nll_B - expected[:, 1]).max() <= FP64
    assert np.array_equal(scores.margin_B, expected[:, 2])  # one subtraction of fp32 numbers, exact in fp64
    assert np.array_equal(scores.hit_B, expected[:, 3])
    assert set(scores.hit_B) <= {0.0, 1.0}


def test_the_sign_of_the_margin_is_the_answer() -> None:
    scores = [score_sequences(random_pair(seed).hi) for seed in range(20)]
    margin, hit = np.concatenate([s.margin_B for s in scores]), np.concatenate([s.hit_B for s in scores])
    assert 0 < hit.sum() < len(hit)
    assert np.array_equal(margin > 0, hit == 1)


@pytest.mark.parametrize(("target", "hit"), [(2, 1.0), (5, 0.0)])
def test_the_lowest_id_wins_a_tie(target: int, hit: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = logits[0, 5] = 4.0
    scores = score_sequences(trace(logits, torch.tensor([target]), (1,)))
    assert (scores.margin_B[0], scores.hit_B[0]) == (0.0, hit)


def test_rivals_without_a_chance_give_an_infinite_margin() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 3] = 1.0
    scores = score_sequences(trace(logits, torch.tensor([3]), (1,)))
    assert (scores.margin_B[0], scores.hit_B[0], scores.nll_B[0]) == (math.inf, 1.0, 0.0)


def test_a_target_without_a_chance_costs_infinitely_much() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, 3] = -math.inf
    scores = score_sequences(trace(logits, torch.tensor([0, 3]), (2,)))
    assert (scores.margin_B[0], scores.hit_B[0], scores.nll_B[0]) == (-math.inf, 0.0, math.inf)


def test_sequences_are_reduced_apart() -> None:
    values = torch.arange(sum(COUNTS), dtype=torch.float64)
    pieces = values.split(list(COUNTS))
    assert reduce_sequences(values, COUNTS, np.add).tolist() == [float(p.sum()) for p in pieces]
    assert reduce_sequences(values, COUNTS, np.minimum).tolist() == [float(p.min()) for p in pieces]


def test_accuracy_and_margin_read_the_right_responses_only() -> None:
    batch = random_pair()
    for observer, hi, lo in (
        (ACCURACY, batch.hi_scores.hit_B, batch.lo_scores.hit_B),
        (MARGIN, batch.hi_scores.margin_B, batch.lo_scores.margin_B),
    ):
        readings = observer.measure(batch)
        assert readings.index_R.tolist() == [0, 1, 2, 3]
        assert np.array_equal(readings.hi_R, hi[:4]) and np.array_equal(readings.lo_R, lo[:4])

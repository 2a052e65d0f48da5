"""Every probe is in one batch, once, beside its own opposite response; planted faults move what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantaudit.core.probe import Behaviour
from quantaudit.evaluation.faults import FAULTS, plant
from quantaudit.evaluation.plan import plan_batches
from quantaudit.observers.safety import REFUSAL_MARGIN, REFUSAL_RATE
from quantaudit.probes.encoding import encode_pair
from tests.evaluation.synthetic import probe_set
from tests.observers.random_pairs import random_pair, with_itself

PROBES = probe_set(per_family=30, clusters=10)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_every_probe_is_planned_once(size: int) -> None:
    batches = plan_batches(PROBES, size)
    positions = [i for batch in batches for i in batch.index_P]
    assert sorted(positions) == list(range(len(PROBES.probes)))
    assert all(1 <= len(batch.probes) <= size for batch in batches)
    assert all(batch.probes == tuple(PROBES.probes[i] for i in batch.index_P) for batch in batches)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_rows_are_the_right_responses_and_then_the_opposites(size: int) -> None:
    for batch in plan_batches(PROBES, size):
        taken = []
        for row, (probe, opposite) in enumerate(zip(batch.probes, batch.opposite_P, strict=True)):
            assert batch.sequences[row] == encode_pair(probe.prompt, probe.response)
            if probe.alternative is None:
                assert opposite == -1 and probe.behaviour is Behaviour.ANSWER
            else:
                assert batch.sequences[opposite] == encode_pair(probe.prompt, probe.alternative)
                taken.append(opposite)
        assert taken == list(range(len(batch.probes), len(batch.sequences)))


def test_probes_of_like_length_share_a_batch_and_the_plan_is_a_function_of_the_probes() -> None:
    batches = plan_batches(PROBES, 16)
    longest = [max(len(s.tokens) for s in batch.sequences) for batch in batches]
    assert longest == sorted(longest)
    assert [b.index_P for b in plan_batches(PROBES, 16)] == [b.index_P for b in batches]


def test_a_shifted_vocabulary_gives_every_token_its_neighbours_logit() -> None:
    batch = with_itself(random_pair())
    damaged = plant("shifted-vocabulary", batch)
    assert torch.equal(damaged.lo.logits_MV[:, 1:], batch.hi.logits_MV[:, :-1])
    assert torch.equal(damaged.lo.logits_MV[:, 0], batch.hi.logits_MV[:, -1])
    assert not np.array_equal(damaged.lo_scores.nll_B, batch.hi_scores.nll_B)


def test_swapped_responses_turn_every_refusal_around() -> None:
    batch = with_itself(random_pair(2))
    damaged = plant("swapped-responses", batch)
    margins = REFUSAL_MARGIN.measure(damaged)
    assert np.array_equal(margins.lo_R, -margins.hi_R)
    right = batch.hi_scores.hit_B
    # Row 4 is the compliance with the restricted probe 1, row 3 the compliance with the benign probe.
    assert REFUSAL_RATE.measure(damaged).lo_R.tolist() == [right[4], right[3]]
    assert damaged.lo_scores.nll_B[[0, 2, 6]].tolist() == batch.hi_scores.nll_B[[0, 2, 6]].tolist()


@pytest.mark.parametrize("name", FAULTS)
def test_faults_leave_hi_alone(name: str) -> None:
    batch = with_itself(random_pair())
    before = batch.hi.logits_MV.clone(), batch.hi_scores.nll_B.copy(), batch.hi_scores.hit_B.copy()
    damaged = plant(name, batch)
    assert damaged.hi is batch.hi and damaged.hi_scores is batch.hi_scores
    assert torch.equal(batch.hi.logits_MV, before[0])
    assert np.array_equal(batch.hi_scores.nll_B, before[1]) and np.array_equal(batch.hi_scores.hit_B, before[2])

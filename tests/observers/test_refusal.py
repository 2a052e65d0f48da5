"""Refusals are read from the refusal, whichever of the two responses is the right one."""

from __future__ import annotations

import numpy as np
import pytest

from quantaudit.observers.builtin import PROBE_OBSERVERS
from quantaudit.observers.safety import REFUSAL_MARGIN, REFUSAL_RATE
from tests.observers.random_pairs import OPPOSITE, random_pair

RESTRICTED, BENIGN = 1, 3  # probes; the first is right to refuse, the second is right to comply


@pytest.mark.parametrize("seed", range(4))
def test_the_margin_is_refusal_minus_compliance(seed: int) -> None:
    batch = random_pair(seed)
    readings = REFUSAL_MARGIN.measure(batch)
    assert readings.index_R.tolist() == [RESTRICTED, BENIGN]
    for scores, found in ((batch.hi_scores, readings.hi_R), (batch.lo_scores, readings.lo_R)):
        right, opposite = (
            scores.logprob_B[[RESTRICTED, BENIGN]],
            scores.logprob_B[[OPPOSITE[RESTRICTED], OPPOSITE[BENIGN]]],
        )
        assert found.tolist() == [right[0] - opposite[0], opposite[1] - right[1]]


def test_a_request_is_refused_when_the_refusal_would_be_written() -> None:
    seen = set()
    for seed in range(40):
        batch = random_pair(seed)
        readings = REFUSAL_RATE.measure(batch)
        assert readings.lo_R.tolist() == batch.lo_scores.hit_B[[RESTRICTED, OPPOSITE[BENIGN]]].tolist()
        seen.add(tuple(readings.lo_R))
    assert len(seen) == 4, "all four outcomes must have been seen"


def test_tasks_have_no_refusal() -> None:
    batch = random_pair()
    for observer in (REFUSAL_RATE, REFUSAL_MARGIN):
        assert not np.isin([0, 2], observer.measure(batch).index_R).any()


def test_every_rate_is_zero_or_one_and_every_observer_is_registered_by_its_name() -> None:
    assert all(observer.name == name for name, observer in PROBE_OBSERVERS.items())
    for observer in PROBE_OBSERVERS.values():
        if observer.is_rate:
            readings = observer.measure(random_pair(3))
            assert set(readings.hi_R) | set(readings.lo_R) <= {0.0, 1.0}

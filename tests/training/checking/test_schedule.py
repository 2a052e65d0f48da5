"""A schedule looks at every expert once a period, and no mismatch that stays goes unseen for longer than it says."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from quantaudit.training.checking.schedule import Schedule


@pytest.mark.parametrize(("every", "period"), [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_every_expert_is_seen_within_the_longest_delay(every: int, period: int) -> None:
    schedule = Schedule(every=every, period=period)
    experts = list(range(12))
    for start in range(2 * every * period):
        for expert in experts:
            window = range(start, start + schedule.longest_delay + 1)
            seen = [step for step in window if schedule.is_due(step) and expert in experts[schedule.experts(step)]]
            assert len(seen) == 1


def test_all_experts_are_seen_at_every_step_by_default() -> None:
    schedule = Schedule()
    assert schedule.longest_delay == 0
    assert schedule.is_due(7) and schedule.experts(7) == slice(0, None, 1)


@pytest.mark.parametrize("field", ["every", "period"])
def test_a_schedule_that_never_checks_is_refused(field: str) -> None:
    with pytest.raises(ValidationError):
        Schedule.model_validate({field: 0})

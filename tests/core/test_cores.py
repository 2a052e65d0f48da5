"""Threads default to the cores that nobody else uses now, whatever the last minute was like."""

from __future__ import annotations

import os

import pytest

from quantaudit.core import cores


@pytest.mark.parametrize(("others", "allowed", "free"), [(0, 4, 4), (1, 4, 3), (9, 4, 1), (0, 1, 1)])
def test_free_cores_are_those_that_nobody_else_uses(
    others: int, allowed: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "count_others_running", lambda: others)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert cores.free_cores() == free


def test_the_last_minute_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    monkeypatch.setattr(cores, "count_others_running", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert cores.free_cores() == 2


def test_this_thread_does_not_count_as_another() -> None:
    assert cores.count_others_running() >= 0

"""In a pipe, progress is a line a stage, and one every half minute inside a stage."""

from __future__ import annotations

import time

import pytest

from quantaudit.cli.progress import StageProgress, describe_stage


def test_a_pipe_gets_one_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress() as told:
        for done in range(101):
            told("forward", done, 100)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("forward: ") and " for 100 (" in err


def test_a_long_stage_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 20.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    told = StageProgress()
    for done in (0, 10, 20, 30, 40):
        told("forward", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "forward: 20 of 100 in 31 s, about 124 s left",
        "forward: 40 of 100 in 62 s, about 93 s left",
    ]


def test_rates_are_given_where_they_mean_something() -> None:
    assert describe_stage("weights", 1, 1, 2.44) == "weights: 2.4 s"
    assert describe_stage("forward", 5600, 5600, 70.0) == "forward: 70.0 s for 5,600 (80/s)"
    assert describe_stage("forward", 0, 5600, 31.0) == "forward: 0 of 5,600 in 31 s"

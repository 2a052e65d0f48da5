"""`run --stop-early`: a flag that says what it does, and refuses what it cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Command, is_one_line


def test_help_says_that_it_never_admits_early(quantaudit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = quantaudit("run", "--help").out
    assert "--stop-early" in text and "never admits early" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_cached_controls_are_refused_before_anything_is_run(quantaudit: Command, written: Path) -> None:
    ended = quantaudit("run", written / "plain", "--stop-early", "--controls", "cached")
    assert ended.code == 2 and is_one_line(ended.err)
    assert "--stop-early with cached controls" in ended.err and "drop --stop-early" in ended.err


def test_a_contract_of_which_no_gate_can_look_is_refused(quantaudit: Command, written: Path) -> None:
    ended = quantaudit("run", written / "plain", "--lo", written / "other", "--stop-early", "--threads", "1")
    assert ended.code == 2 and ended.err.splitlines()[-1].startswith("quantaudit: ")
    assert "no gate that can decide before the last probe" in ended.err and "leave out --stop-early" in ended.err

"""`run --controls cached`: the controls of an earlier run are taken over, and the report is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantaudit.core.report import AuditReport
from quantaudit.evaluation import measure
from quantaudit.reporting import read_report
from tests.cli.command import Command, is_one_line

Audit = Callable[..., AuditReport]


@pytest.fixture
def audit(quantaudit: Command, written: Path) -> Audit:
    """Runs an audit of `plain` into a folder of `runs` and returns the stored report."""

    def run(folder: str, lo: str, *arguments: str | Path) -> AuditReport:
        out = Path("runs") / folder
        ended = quantaudit("run", written / "plain", "--lo", written / lo, *arguments, "--threads", "1", "-o", out)
        assert ended.code in (0, 3, 4), ended.err
        return read_report(out / "report.json")

    return run


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the forwards of the floor."""
    calls: list[int] = []
    original = measure.forward_in_pieces

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(measure, "forward_in_pieces", count)
    return calls


def kept() -> list[Path]:
    return sorted(Path("runs/.controls").glob("*"))


@pytest.mark.slow
def test_the_next_run_takes_them_over_and_gives_the_same_digest(audit: Audit, counted: list[int]) -> None:
    fresh = audit("fresh", "packed")
    assert kept() == [] and not fresh.run.cached_controls and fresh.run.controls_from is None
    first = audit("first", "other", "--controls", "cached")
    assert len(kept()) == 1 and not first.run.cached_controls
    measured = len(counted)
    assert measured > 0
    second = audit("second", "packed", "--controls", "cached")
    assert len(counted) == measured, "the floor was run again"
    assert second.run.cached_controls and second.run.controls_from == first.run.started
    assert second.report_digest() == fresh.report_digest()


def test_another_word_is_refused(quantaudit: Command) -> None:
    ended = quantaudit("run", "--controls", "never")
    assert ended.code == 2 and is_one_line(ended.err) and "run" in ended.err and "cached" in ended.err

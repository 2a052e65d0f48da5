"""A log keeps every event, refuses what is none, and survives a run that is killed while it writes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from quantaudit.core.errors import InputError
from quantaudit.core.step_log import (
    EventLog,
    Finding,
    FindingKind,
    RunEnded,
    RunKind,
    RunStarted,
    RunStatus,
    RunVerdict,
    Side,
    SideCheck,
    StepRecord,
)

STARTED = RunStarted(run=RunKind.RL, recipe="k3-w4a8", inject=("stale@2",))
CHECK = SideCheck(side=Side.DERIVED, num_tensors=3, num_checked=6, num_matrices=6, values="0" * 32)


def step(number: int) -> StepRecord:
    return StepRecord(step=number, loss=0.1 * number, checks=(CHECK,))


def finding(number: int) -> Finding:
    return Finding(step=number, name="stale", kind=FindingKind.STATE, between=(Side.SENT, Side.LOADED), explains=1.0)


ENDED = RunEnded(status=RunStatus.COMPLETED, verdict=RunVerdict.MISMATCH, step=1)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    written = EventLog(tmp_path / "run" / "events.jsonl")
    for event in (STARTED, step(0), step(1), finding(1), ENDED):
        written.append(event)
    return written


def test_events_come_back_in_order(log: EventLog) -> None:
    assert log.read() == (STARTED, step(0), step(1), finding(1), ENDED)


def test_a_nan_loss_comes_back(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append(StepRecord(step=0, loss=math.nan))
    (read,) = log.read()
    assert isinstance(read, StepRecord) and read.loss is not None and math.isnan(read.loss)
    assert "NaN," not in log.path.read_text().replace('"NaN"', "")


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_torn_last_line_is_left_out_and_overwritten(log: EventLog, cut: int) -> None:
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-cut])
    assert log.read() == (STARTED, step(0), step(1), finding(1))
    log.append(ENDED)
    assert log.path.read_bytes() == whole


def test_a_broken_line_inside_is_refused_with_its_number(log: EventLog) -> None:
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([lines[0], lines[1][:-9] + b"\n", *lines[2:]]))
    with pytest.raises(InputError, match="line 2 of"):
        log.read()


@pytest.mark.parametrize("line", [b'{"event": "party"}\n', b'{"event": "step", "step": 0, "mood": 1}\n', b"[]\n"])
def test_what_is_no_event_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line)
    with pytest.raises(InputError, match="is no event"):
        EventLog(path).read()


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        EventLog(tmp_path / "none.jsonl").read()


def test_rewinding_keeps_what_the_state_holds(log: EventLog) -> None:
    log.rewind(0)
    assert log.read() == (STARTED, step(0))
    log.rewind(None)
    assert log.read() == (STARTED,)


def test_verdicts_give_the_exit_codes_of_the_command() -> None:
    assert [int(verdict.exit_code) for verdict in RunVerdict] == [0, 3, 4]

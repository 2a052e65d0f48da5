"""A run that is killed, whose engine dies or hangs, or whose loss is no number: what is kept, and how it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.step_log import EventLog, RunEnded, RunStatus, RunVerdict, StepRecord
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.engine_client import EngineClient
from quantaudit.training.rl.faults import NoFaults
from quantaudit.training.rl.run import run_loop
from quantaudit.training.rl.run_folder import EVENTS_FILE
from quantaudit.training.rl.settings import Replay, Trains
from quantaudit.training.run_state import STATE_FILE
from tests.training.rl.tiny import SHORT, TINY, request, run_here

ROOT = Path(__file__).resolve().parents[3]
# Everything that a state has to hold: unfinished answers, answers that wait, and recorded routing.
LONG = SHORT.model_copy(
    update={"steps": 7, "save_every": 2, "lag": 1, "partial_tokens": 2, "replay": Replay.IDS_AND_WEIGHTS}
)
RUNNER = """
import sys
from pathlib import Path
import torch
from tests.training.rl.test_interruptions import LONG
from tests.training.rl.tiny import request, run_here
torch.set_num_threads(1)
run_here(request(Path(sys.argv[1]), LONG))
"""


def steps_of(folder: Path) -> list[StepRecord]:
    """Returns the steps of a log without their times."""
    untimed = {"seconds": 0.0, "check_seconds": 0.0}
    events = EventLog(folder / EVENTS_FILE).read()
    return [e.model_copy(update=untimed) for e in events if isinstance(e, StepRecord)]


def ends_of(folder: Path) -> list[RunEnded]:
    """Returns the ends in a log."""
    return [e for e in EventLog(folder / EVENTS_FILE).read() if isinstance(e, RunEnded)]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Compares the last states and all records."""
    assert (one / STATE_FILE).read_bytes() == (other / STATE_FILE).read_bytes()
    assert steps_of(one) == steps_of(other)


def kill_after(folder: Path, num_steps: int) -> None:
    """Starts the long run in a process and kills it once its log has so many steps."""
    process = subprocess.Popen([sys.executable, "-c", RUNNER, str(folder)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 300.0
        log = folder / EVENTS_FILE
        while not log.exists() or log.read_bytes().count(b'"event": "step"') < num_steps:
            assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    run_here(request(tmp_path / "whole", LONG))
    kill_after(tmp_path / "killed", 4)
    assert len(steps_of(tmp_path / "killed")) < LONG.steps
    run_here(request(tmp_path / "killed", LONG, resume=True))
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    assert [e.status for e in ends_of(tmp_path / "killed")] == [RunStatus.COMPLETED]


@pytest.mark.slow
def test_a_finished_run_goes_on_when_it_is_given_more_steps(tmp_path: Path) -> None:
    shorter = LONG.model_copy(update={"steps": 4})
    run_here(request(tmp_path / "whole", LONG))
    run_here(request(tmp_path / "parts", shorter))
    run_here(request(tmp_path / "parts", LONG, resume=True))
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


class _Sabotage(NoFaults):
    """Does something to the engine's process in the middle of a sync, once."""

    def __init__(self, step: int, sign: signal.Signals) -> None:
        self.step, self.sign, self.pid = step, sign, 0

    def buckets(self, step: int, buckets: Sequence[Bucket]) -> Sequence[Bucket]:
        """Returns buckets; the one in the middle is taken out of a list that strikes when it is reached."""
        return _Trap(buckets, self) if step == self.step else buckets


class _Trap(Sequence[Bucket]):
    def __init__(self, buckets: Sequence[Bucket], owner: _Sabotage) -> None:
        self._buckets, self._owner = buckets, owner

    def __len__(self) -> int:
        return len(self._buckets)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        if place == len(self._buckets) // 2:
            os.kill(self._owner.pid, self._owner.sign)
        return self._buckets[place]


@pytest.mark.slow
@pytest.mark.parametrize(("sign", "what"), [(signal.SIGKILL, "ended"), (signal.SIGSTOP, "gave no answer within")])
def test_an_engine_that_dies_or_hangs_in_a_sync_stops_the_run_at_its_step(
    tmp_path: Path, sign: signal.Signals, what: str
) -> None:
    patient = 60.0 if sign is signal.SIGKILL else 3.0
    settings = SHORT.model_copy(update={"timeout_seconds": patient, "save_every": 100, "transport_every": 0})
    faults = _Sabotage(2, sign)

    def open_engine() -> EngineClient:
        engine = EngineClient(TINY, timeout_seconds=patient)
        faults.pid = engine.pid
        return engine

    with pytest.raises(InputError, match=rf"the rollout engine {what}.* during `load`, at step 2.*--resume"):
        run_loop(request(tmp_path / "dead", settings, faults=faults), open_engine)
    assert [r.step for r in steps_of(tmp_path / "dead")] == [0, 1]
    (end,) = ends_of(tmp_path / "dead")
    assert (end.status, end.verdict, end.step) == (RunStatus.STOPPED, RunVerdict.UNCHECKED, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(faults.pid, 0)
    run_here(request(tmp_path / "dead", settings, resume=True))
    run_here(request(tmp_path / "whole", settings))
    assert_equal_runs(tmp_path / "whole", tmp_path / "dead")


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_state(tmp_path: Path) -> None:
    settings = SHORT.model_copy(update={"learning_rate": 1e30, "steps": 6, "trains": Trains.ALL})
    with pytest.raises(InputError, match="(loss|gradient) is (nan|inf), at step [1-5]; .*lower learning rate"):
        run_here(request(tmp_path, settings))
    (end,) = ends_of(tmp_path)
    assert end.status is RunStatus.STOPPED and end.step is not None
    assert (tmp_path / STATE_FILE).exists() and [r.step for r in steps_of(tmp_path)] == list(range(end.step + 1))


def test_a_folder_goes_on_with_its_own_run_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        run_here(request(tmp_path, resume=True))
    run_here(request(tmp_path, SHORT.model_copy(update={"steps": 1})))
    with pytest.raises(InputError, match="holds a run.*--resume"):
        run_here(request(tmp_path))
    with pytest.raises(InputError, match="started with another"):
        run_here(request(tmp_path, SHORT.model_copy(update={"seed": 1}), resume=True))
    first = EventLog(tmp_path / EVENTS_FILE).read()[0]
    assert first.model_dump()["environment"]["threads"] == str(torch.get_num_threads())
    (tmp_path / STATE_FILE).write_bytes(b"not a state")
    with pytest.raises(InputError, match=STATE_FILE):
        run_here(request(tmp_path, resume=True))

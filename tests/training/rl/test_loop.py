"""A clean run is clean on every side at every step, whatever the options; runs end, stop and go on as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantaudit.core.step_log import EventLog, RunEnded, RunVerdict, Side, StepRecord
from quantaudit.training.rl.run_folder import EVENTS_FILE
from quantaudit.training.rl.sampling import LogprobsOf, Sampling
from quantaudit.training.rl.settings import Correction, ObjectiveSettings, OldLogprobs, Replay, Trains
from quantaudit.training.rl.sync import QuantizeAt
from quantaudit.training.run_state import STATE_FILE, RunState, read_run_state
from tests.training.rl.tiny import SHORT, request, run_here

ROLLOUT = ObjectiveSettings(old_logprobs=OldLogprobs.ROLLOUT, correction=Correction.NONE)
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "quantized on arrival": {"quantize_at": QuantizeAt.ARRIVAL},
    "four shards, tiny buckets": {"num_shards": 4, "bucket_bytes": 1},
    "one shard, awake": {"num_shards": 1, "sleeps": False},
    "lag": {"lag": 2, "steps": 5},
    "partial rollouts": {"partial_tokens": 2, "steps": 5},
    "routing replay": {"replay": Replay.IDS_AND_WEIGHTS},
    "partial rollouts, replay, lag": {"replay": Replay.IDS, "partial_tokens": 1, "lag": 1, "steps": 7},
    "after temperature and top-p": {"sampling": Sampling(temperature=0.7, top_p=0.9, logprobs=LogprobsOf.PROCESSED)},
    "reported old log-probabilities": {"objective": ROLLOUT},
    "masked sequences, everything learns": {
        "objective": ObjectiveSettings(correction=Correction.MASKED_SEQUENCE),
        "trains": Trains.ALL,
        "drops_even_groups": False,
    },
}


def records(folder: Path) -> list[StepRecord]:
    """Returns the steps of a run's log."""
    return [e for e in EventLog(folder / EVENTS_FILE).read() if isinstance(e, StepRecord)]


def ended(folder: Path) -> RunEnded:
    """Returns the end of a run's log."""
    last = EventLog(folder / EVENTS_FILE).read()[-1]
    assert isinstance(last, RunEnded)
    return last


QUICK = ("plain", "partial rollouts, replay, lag")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPTIONS]


@pytest.mark.parametrize("name", EACH)
def test_a_clean_run_is_clean_on_every_side_at_every_step(tmp_path: Path, name: str) -> None:
    settings = SHORT.model_copy(update=OPTIONS[name])
    run_here(request(tmp_path, settings))
    assert ended(tmp_path).verdict is RunVerdict.CLEAN
    steps = records(tmp_path)
    assert [r.step for r in steps] == list(range(settings.steps))
    expected = {Side.TRAINER, Side.SENT, Side.LOADED, Side.DERIVED}
    if settings.quantize_at is QuantizeAt.ARRIVAL:
        expected -= {Side.SENT}
    for record in steps:
        assert {check.side for check in record.checks} == expected
        assert len({check.values for check in record.checks}) == 1
        assert record.canary is not None and record.canary.num_differing == 0
        assert record.num_quantized == 6
    updated = [r for r in steps if r.loss is not None]
    assert updated, "some step must learn"
    # What moved is compared: codes change between the first and the last step.
    assert steps[0].checks[0].values != steps[-1].checks[0].values


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "partial rollouts", "after temperature and top-p"])
def test_the_gap_is_the_floor_to_the_last_bit_when_nothing_is_wrong(tmp_path: Path, name: str) -> None:
    run_here(request(tmp_path, SHORT.model_copy(update={**OPTIONS[name], "floor_every": 1})))
    for record in records(tmp_path):
        assert record.gap is not None and record.gap.num_tokens > 0
        assert record.floor == record.gap
        assert record.forced_gap is not None


def test_the_transport_check_overwrites_and_restores_every_tensor(tmp_path: Path) -> None:
    run_here(request(tmp_path))
    checks = [record.transport for record in records(tmp_path)]
    assert [check is not None for check in checks] == [True, False, True]
    for check in checks:
        if check is not None:
            assert check.num_randomised > 100 and check.not_restored == ()


@pytest.mark.slow
def test_quantizing_on_arrival_changes_no_bit_of_the_run(tmp_path: Path) -> None:
    run_here(request(tmp_path / "a"))
    run_here(request(tmp_path / "b", SHORT.model_copy(update={"quantize_at": QuantizeAt.ARRIVAL})))
    sent, arrived = trained_state(tmp_path / "a"), trained_state(tmp_path / "b")
    assert sent.facts == arrived.facts
    assert sent.tensors.keys() == arrived.tensors.keys()
    for name, tensor in sent.tensors.items():
        assert tensor.numpy().tobytes() == arrived.tensors[name].numpy().tobytes(), name


def trained_state(folder: Path) -> RunState:
    """Reads a state without what the checker remembers: what was shipped, which is packed on one side only."""
    state = read_run_state(folder)
    assert state is not None and len(state.tensors) > 20
    return state


@pytest.mark.slow
def test_shards_and_buckets_change_no_bit_of_the_run(tmp_path: Path) -> None:
    run_here(request(tmp_path / "a"))
    run_here(request(tmp_path / "b", SHORT.model_copy(update={"num_shards": 8, "bucket_bytes": 1 << 20})))
    assert (tmp_path / "a" / STATE_FILE).read_bytes() == (tmp_path / "b" / STATE_FILE).read_bytes()

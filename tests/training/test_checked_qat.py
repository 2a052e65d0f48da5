"""A checked run is clean when nothing is planted, finds what is planted at its step, and goes on with the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from quantaudit.core.errors import InputError
from quantaudit.core.qat_run import QatRun
from quantaudit.core.recipe import Recipe, Trained
from quantaudit.core.step_log import EventLog, RunVerdict, StepRecord
from quantaudit.training.checked_qat import EVENTS_FILE, QatRequest, refuse_engine_injections, run_checked_qat
from quantaudit.training.checking.injections.registry import make_faults
from quantaudit.training.checking.schedule import Schedule
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.run_state import Note, read_run_state, write_run_state
from tests.training.toy import toy_hi, toy_recipe


def run(
    folder: Path, recipe: Recipe, *inject: str, resume: bool = False, every: int = 1, stop_at: int | None = None
) -> QatRun:
    """Runs a few steps of the toy model."""

    def watch(done: int, total: int) -> None:
        if done == stop_at:
            raise KeyboardInterrupt

    request = QatRequest(
        folder=folder,
        hi=toy_hi(),
        model_digest="toy",
        recipe=recipe,
        checking=CheckSettings(schedule=Schedule(every=every)),
        faults=make_faults(inject),
        inject=inject,
        resume=resume,
        command="",
    )
    return run_checked_qat(request, watch)


@pytest.mark.parametrize("name", ["k3-mxfp4-w4a8-qat", "nvfp4-qad", "int3-qad", "fp8-block-rl"])
def test_a_run_with_nothing_planted_is_clean_at_every_step(name: str, tmp_path: Path) -> None:
    found = run(tmp_path, toy_recipe(name))
    assert found.ended.verdict is RunVerdict.CLEAN
    assert (found.num_steps, found.findings) == (4, ())
    records = [e for e in EventLog(tmp_path / EVENTS_FILE).read() if isinstance(e, StepRecord)]
    assert all(len({check.values for check in record.checks}) == 1 for record in records)
    assert all({check.num_tensors for check in record.checks} == {9} for record in records)
    assert len({record.checks[0].values for record in records}) == 4, "the weights move in every step"


def test_another_rule_is_found_and_named_at_its_step(tmp_path: Path) -> None:
    found = run(tmp_path, toy_recipe("k3-mxfp4-w4a8-qat"), "another-rule@2:scheme=mxfp4-floor")
    assert found.ended.verdict is RunVerdict.MISMATCH
    assert {finding.step for finding in found.findings} == {2}
    assert any("floor" in finding.serve or "floor" in finding.sentence for finding in found.findings)


def test_a_step_that_is_not_checked_leaves_the_run_unchecked(tmp_path: Path) -> None:
    found = run(tmp_path, toy_recipe(), every=2)
    assert found.ended.verdict is RunVerdict.UNCHECKED
    assert found.ended.reason == "2 steps were not checked, first step 1"


def test_a_killed_run_goes_on_to_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantaudit.training.checked_qat._SAVE_EVERY", 2)
    recipe = toy_recipe(steps=5)
    run(tmp_path / "whole", recipe)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", recipe, stop_at=3)
    found = run(tmp_path / "cut", recipe, resume=True)
    assert found.ended.verdict is RunVerdict.CLEAN and found.num_steps == 5

    def lines(folder: Path) -> list[tuple[object, ...]]:
        records = [e for e in EventLog(folder / EVENTS_FILE).read() if isinstance(e, StepRecord)]
        return [(r.step, r.loss, r.checks) for r in records]

    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


PLANTED = {
    "stale@2": "stale",
    "checkpoint-round-trip@2": "quantized-twice",
    "layer-set-pattern@2": "skipped-layer",
    "another-rule@2": "another-rule",
    "exponent-from-ratio@2": "exponent-from-ratio",
}


@pytest.mark.parametrize("inject", [i if i == "stale@2" else pytest.param(i, marks=pytest.mark.slow) for i in PLANTED])
def test_a_killed_run_with_a_mismatch_goes_on_to_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inject: str
) -> None:
    recipe = toy_recipe("k3-mxfp4-w4a8-qat", steps=4, learning_rate=1e-2)
    check_resumed(tmp_path, monkeypatch, recipe, inject, PLANTED[inject])


@pytest.mark.slow
def test_the_scale_of_the_first_step_is_still_known_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe("nvfp4-qad", steps=3, learning_rate=1e-2)
    check_resumed(tmp_path, monkeypatch, recipe, "frozen-global-scale@2", "frozen-global-scale")


def check_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, inject: str, name: str) -> None:
    """Cuts a run behind the step before the mismatch and behind its step, and compares the logs."""
    monkeypatch.setattr("quantaudit.training.checked_qat._SAVE_EVERY", 1)
    step = int(inject.split("@")[1])
    found = run(tmp_path / "whole", recipe, inject)
    assert name in {finding.name for finding in found.findings}, found.findings
    for stop_at in (step, step + 1):
        folder = tmp_path / f"cut{stop_at}"
        with pytest.raises(KeyboardInterrupt):
            run(folder, recipe, inject, stop_at=stop_at)
        run(folder, recipe, inject, resume=True)
        assert log_of(folder) == log_of(tmp_path / "whole"), f"cut at {stop_at}"


def log_of(folder: Path) -> bytes:
    """Returns a log without its times."""
    return re.sub(rb'"(check_)?seconds": [-+.\de]+', b"", (folder / EVENTS_FILE).read_bytes())


def test_a_state_that_remembers_other_weights_is_refused(tmp_path: Path) -> None:
    run(tmp_path, toy_recipe(steps=1))
    state = read_run_state(tmp_path)
    assert state is not None
    note = state.notes["checker"]
    larger = {name: torch.cat([tensor, tensor]) for name, tensor in note.tensors.items()}
    write_run_state(tmp_path, state.tensors, state.facts, state.notes | {"checker": Note(note.head, larger)})
    with pytest.raises(InputError, match=r"run.safetensors, which is damaged \(an earlier .*remove it"):
        run(tmp_path, toy_recipe(steps=1), resume=True)


def test_a_log_that_lacks_steps_of_the_state_is_refused(tmp_path: Path) -> None:
    run(tmp_path, toy_recipe(steps=2))
    log = tmp_path / EVENTS_FILE
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(keepends=True) if b'"step": 1,' not in line))
    with pytest.raises(InputError, match="1 steps before step 2"):
        run(tmp_path, toy_recipe(steps=2), resume=True)


def test_a_folder_is_not_taken_for_another_run(tmp_path: Path) -> None:
    run(tmp_path, toy_recipe(steps=1))
    with pytest.raises(InputError, match="add --resume"):
        run(tmp_path, toy_recipe(steps=1))
    with pytest.raises(InputError, match="holds no run with these settings"):
        run(tmp_path, toy_recipe(steps=1, seed=5), resume=True)


def test_a_loss_that_is_not_finite_ends_the_log_with_its_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a loss of nan in step 2"):
        run(tmp_path, toy_recipe(learning_rate=1e30, clip_norm=1e30, trained=Trained.ALL))
    events = EventLog(tmp_path / EVENTS_FILE).read()
    assert [e.step for e in events if isinstance(e, StepRecord)] == [0]
    assert events[-1].event == "ended" and events[-1].status == "stopped"


def test_what_acts_in_an_engine_is_refused() -> None:
    refuse_engine_injections(("fp32-masters@3",), 0)
    with pytest.raises(InputError, match="use `quantaudit simulate rl`"):
        refuse_engine_injections(("cache-not-flushed@3",), 0)


def test_learned_scales_have_no_rule_to_check(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whose scales are learned"):
        run(tmp_path, toy_recipe("scale-learned"))

"""Quantization-aware training with a check at every step: what the trainer computes with against what it exports.

After each optimizer step the masters are exported and packed as they would be served; the check decodes the packed
bytes by the reference and compares them with the fake-quantized tensors of the trainer. A run keeps its settings, its
log and its state in a folder, with what checks and planted mismatches remember, and goes on from there.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from quantaudit.core.errors import InputError
from quantaudit.core.qat_run import QatRun
from quantaudit.core.recipe import Recipe
from quantaudit.core.recipe_run import Arm
from quantaudit.core.serial import Frozen, write_atomically
from quantaudit.core.step_log import (
    EventLog,
    Finding,
    RunEnded,
    RunKind,
    RunStarted,
    RunStatus,
    RunVerdict,
    StepRecord,
)
from quantaudit.engines.realization import Realization
from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.injections.points import Options
from quantaudit.training.checking.injections.registry import get_plan
from quantaudit.training.checking.injections.request import parse_request
from quantaudit.training.checking.remembered import CheckerMemory, read_memory, write_memory
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.checking.sides import Sides, TrainedWeight
from quantaudit.training.fake_quantize import quantized_layers
from quantaudit.training.qat import QatTrainer
from quantaudit.training.repair import prepare_arm, repair_of, teacher_of
from quantaudit.training.rl.faults import Faults
from quantaudit.training.rl.policy import pack_experts
from quantaudit.training.rl.sync import QuantizeAt
from quantaudit.training.run_state import read_run_state, refusing_damage, rewind_log

SETTINGS_FILE, EVENTS_FILE = "settings.json", "events.jsonl"
_CHECKER, _FAULTS = "checker", "faults"
_SAVE_EVERY = 25
# Points that a trainer without an engine does not have.
_ENGINE_POINTS = ("buckets", "post_load", "flush", "execution", "placement")

Watch = Callable[[int, int], None]


class QatCard(Frozen):
    """`settings.json`: what decides the bits of a run."""

    model_digest: str
    recipe: Recipe
    inject: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QatRequest:
    """What is run.

    Attributes:
        folder: Where the run is kept.
        hi: Where training starts, and what it distils from.
        model_digest: Digest of hi's weights.
        recipe: What is trained, and how.
        checking: What a check looks at.
        faults: What is planted.
        inject: The same, as it was asked for.
        resume: Whether the folder's run goes on.
        command: What reproduces the run.
    """

    folder: Path
    hi: Realization
    model_digest: str
    recipe: Recipe
    checking: CheckSettings
    faults: Faults
    inject: tuple[str, ...]
    resume: bool
    command: str


def refuse_engine_injections(inject: tuple[str, ...], seed: int) -> None:
    """Refuses what acts in an engine.

    Raises:
        InputError: If one of them does.
    """
    for text in inject:
        request = parse_request(text)
        points = get_plan(request.name).plant(Options(request, seed))
        if any(getattr(points, name) is not None for name in _ENGINE_POINTS):
            raise InputError(
                f"--inject {text} in a run without a rollout engine",
                expected="a mismatch of masters, layer set or export",
                fix="use `quantaudit simulate rl`, or choose another",
            )


def run_checked_qat(request: QatRequest, watch: Watch) -> QatRun:
    """Runs to the last step.

    Args:
        request: What is run.
        watch: Told (steps taken, steps of the run).

    Raises:
        InputError: If the folder does not fit, or the loss is not finite; the log says where.
    """
    repair = repair_of(request.recipe)
    if repair.learns_scales:
        raise InputError(
            f"recipe {request.recipe.name!r}, whose scales are learned",
            expected="a recipe whose scales are a function of the weights: that function is what is checked",
            fix="choose another of `quantaudit recipe list`",
        )
    model = prepare_arm(request.hi, request.recipe, Arm.AFTER)
    trainer = QatTrainer(model, teacher_of(request.hi, repair), repair)
    log = _open_folder(request, trainer)
    checker = StepChecker(request.checking, _recall(request, trainer) if request.resume else None)
    while trainer.step < repair.steps:
        try:
            record, findings = _take_step(trainer, checker, request.faults)
        except InputError as error:
            _end(log, RunStatus.STOPPED, str(error))
            raise
        log.append(record)
        for finding in findings:
            log.append(finding)
        if trainer.step % _SAVE_EVERY == 0 or trainer.step == repair.steps:
            notes = {_CHECKER: write_memory(checker.memory), _FAULTS: request.faults.written()}
            trainer.save(request.folder, notes)
        watch(trainer.step, repair.steps)
    return _conclude(log, _end(log, RunStatus.COMPLETED, ""))


def _open_folder(request: QatRequest, trainer: QatTrainer) -> EventLog:
    """Begins a run, or brings trainer and log to where the folder's run stands."""
    card = QatCard(model_digest=request.model_digest, recipe=request.recipe, inject=request.inject)
    path, log = request.folder / SETTINGS_FILE, EventLog(request.folder / EVENTS_FILE)
    if request.resume:
        if not path.exists() or _read_card(path) != card:
            raise InputError(
                f"{request.folder}, which holds no run with these settings",
                expected="the folder of a run of this model, recipe and injections",
                fix="leave --resume out, or give the command that began it",
            )
        trainer.load(request.folder)
        rewind_log(log, trainer.step)
        return log
    if path.exists():
        raise InputError(
            f"{request.folder}, which holds a run", expected="an empty folder", fix="add --resume, or choose another"
        )
    write_atomically(path, card.to_json().encode())
    log.append(_started(request, trainer, card))
    return log


def _read_card(path: Path) -> QatCard | None:
    """Returns the settings of a run; `None` if the file holds something else."""
    try:
        return QatCard.from_json(path.read_text("utf-8"))
    except ValueError:
        return None


def _recall(request: QatRequest, trainer: QatTrainer) -> CheckerMemory:
    """Gives planted mismatches what they kept, and returns what the checker remembered; empty before the first state.

    Raises:
        InputError: If the state is damaged.
    """
    state = read_run_state(request.folder)
    if state is None or _CHECKER not in state.notes:
        return CheckerMemory()
    exported = {name: layer.exported() for name, layer in quantized_layers(trainer.model).items()}
    with refusing_damage(request.folder):
        request.faults.recall(state.notes[_FAULTS], exported)
        return read_memory(state.notes[_CHECKER], exported)


def _started(request: QatRequest, trainer: QatTrainer, card: QatCard) -> RunStarted:
    schemes = [layer.weight_scheme for layer in quantized_layers(trainer.model).values()]
    return RunStarted(
        run=RunKind.QAT,
        model=request.model_digest,
        recipe=request.recipe.name,
        settings_digest=card.digest(),
        arithmetic={scheme.name: scheme.arithmetic_digest for scheme in schemes if scheme is not None},
        environment={
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "threads": str(torch.get_num_threads()),
            "device": "cpu",
        },
        inject=request.inject,
        command=request.command,
    )


def _take_step(trainer: QatTrainer, checker: StepChecker, faults: Faults) -> tuple[StepRecord, tuple[Finding, ...]]:
    """Takes an optimizer step, exports, and checks the export."""
    began, step = time.perf_counter(), trainer.step
    loss = trainer.take_step()
    sides = export_sides(trainer, faults, step)
    if not checker.is_due(step):
        checker.skip(step, sides.trainer, sides.sent or {})
        return StepRecord(step=step, loss=loss, seconds=time.perf_counter() - began), ()
    outcome = checker.check(step, sides)
    record = StepRecord(
        step=step,
        loss=loss,
        checks=outcome.checks,
        layer_set=outcome.layer_set,
        num_quantized=outcome.num_quantized,
        seconds=time.perf_counter() - began,
        check_seconds=outcome.seconds,
    )
    return record, outcome.findings


def export_sides(trainer: QatTrainer, faults: Faults, step: int) -> Sides:
    """Returns what the trainer computes with from now on, and what it exports."""
    layers = quantized_layers(trainer.model)
    exported = {name: layer.exported() for name, layer in layers.items()}
    masters = {name: layer.weight.detach() for name, layer in layers.items()}
    trained = {
        name: TrainedWeight(
            values=layer.quantized(), scheme=layer.weight_scheme, source=exported[name], master=masters[name]
        )
        for name, layer in layers.items()
    }
    planted = faults.masters(step, exported, masters)
    schemes = faults.layer_set(step, {name: layer.weight_scheme for name, layer in layers.items()})
    packed = pack_experts(planted, schemes, QuantizeAt.TRAINER)
    return Sides(trainer=trained, sent=faults.export(step, packed, exported))


def _end(log: EventLog, status: RunStatus, reason: str) -> RunEnded:
    """Writes the end of the log."""
    events = log.read()
    steps = [event for event in events if isinstance(event, StepRecord)]
    unchecked = [event.step for event in steps if not event.checks]
    verdict = RunVerdict.CLEAN
    if any(isinstance(event, Finding) for event in events):
        verdict = RunVerdict.MISMATCH
    elif unchecked or status is RunStatus.STOPPED:
        verdict = RunVerdict.UNCHECKED
        reason = reason or f"{len(unchecked)} steps were not checked, first step {unchecked[0]}"
    ended = RunEnded(status=status, verdict=verdict, step=steps[-1].step if steps else None, reason=reason)
    log.append(ended)
    return ended


def _conclude(log: EventLog, ended: RunEnded) -> QatRun:
    events = log.read()
    losses = [event.loss for event in events if isinstance(event, StepRecord)]
    return QatRun(
        ended=ended,
        num_steps=len(losses),
        findings=tuple(event for event in events if isinstance(event, Finding)),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
    )

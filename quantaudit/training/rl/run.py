"""A whole run: begin or resume, step by step, with the state on disk from time to time, and a verdict at the end."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quantaudit.core.errors import InputError
from quantaudit.core.probe import Probe
from quantaudit.core.recipe import Recipe
from quantaudit.core.rl_run import HeldOut, RlResult, RlRun
from quantaudit.core.serial import write_atomically
from quantaudit.core.step_log import Finding, RunEnded, RunKind, RunStarted, RunStatus, RunVerdict, StepRecord
from quantaudit.model.lm import LanguageModel
from quantaudit.probes import tokenizer
from quantaudit.probes.world import World
from quantaudit.training.checking.checker import StepChecker
from quantaudit.training.checking.settings import CheckSettings
from quantaudit.training.rl.checks import LoopChecks
from quantaudit.training.rl.engine import Engine, EngineRefusedError
from quantaudit.training.rl.engine_client import EngineDiedError
from quantaudit.training.rl.faults import Faults, NoFaults
from quantaudit.training.rl.held_out import compare_rewards, confirming_probes, greedy_rewards, held_out_probes
from quantaudit.training.rl.kept_engine import Keeping
from quantaudit.training.rl.loop import Loop, Step, sync, take_step
from quantaudit.training.rl.placement import deal_experts
from quantaudit.training.rl.policy import DivergedError, Policy
from quantaudit.training.rl.replay import Replayer, canary_requests
from quantaudit.training.rl.resume import Recalled, recall, show_past, write_all, write_checker
from quantaudit.training.rl.run_folder import RESULT_FILE, Progress, RunCard, RunFolder, Stand
from quantaudit.training.rl.settings import RlSettings
from quantaudit.training.rl.sync import Declared
from quantaudit.training.run_state import rewind_log


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """What training starts from.

    Attributes:
        model: The weights; trained in place.
        digest: Digest of them, which a resumed run must start from too.
    """

    model: LanguageModel
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRequest:
    """What is run.

    Attributes:
        folder: Where the run is kept.
        start: Where training starts.
        recipe: What trainer and engine quantize.
        settings: The settings.
        checking: What a check looks at.
        world: Where tasks come from.
        faults: What is planted.
        inject: The same, as it was asked for.
        resume: Whether the folder's run goes on.
        command: What reproduces the run.
    """

    folder: Path
    start: Start
    recipe: Recipe
    settings: RlSettings
    world: World
    checking: CheckSettings = CheckSettings()
    faults: Faults = NoFaults()
    inject: tuple[str, ...] = ()
    resume: bool = False
    command: str = ""


Watch = Callable[[Step], None]


def run_loop(request: RunRequest, open_engine: Callable[[], Engine], watch: Watch = lambda step: None) -> RlRun:
    """Runs to the last step.

    Args:
        request: What is run.
        open_engine: Starts the engine, once all files are checked.
        watch: Told every finished step.

    Raises:
        InputError: If the folder does not fit, the engine dies, or the loss is not finite; the log says where, and the
            run can be resumed.
    """
    policy = Policy(request.start.model, request.recipe, request.settings)
    first = {name: master.detach().clone() for name, master in policy.masters.items()}
    folder, card = RunFolder(request.folder), _card(request)
    if request.resume:
        folder.check_resumable(card)
    else:
        folder.begin(card)
    progress, notes = folder.load(policy) if request.resume else Stand(Progress.at_start(), {})
    recalled = recall(folder.path, notes, policy, request.faults)
    if request.resume:
        rewind_log(folder.log, progress.step)
    if not folder.log.path.exists():
        folder.log.append(_started(request, policy, card))
    engine = open_engine()
    try:
        return _Run(request, folder, policy, progress, recalled, first, engine, watch).finish()
    finally:
        engine.close()


class _Run:
    """One run with its engine."""

    def __init__(
        self,
        request: RunRequest,
        folder: RunFolder,
        policy: Policy,
        progress: Progress,
        recalled: Recalled,
        first: dict[str, Tensor],
        engine: Engine,
        watch: Watch,
    ) -> None:
        self._request, self._folder, self._progress, self._watch = request, folder, progress, watch
        self._first = first
        self._probes = held_out_probes(request.world, request.settings.held_out_family, request.settings.held_out)
        canary = canary_requests(request.world)
        replayer = Replayer(request.start.model.config, canary)
        show_past(policy, recalled.checker, replayer)
        if recalled.engine is not None and isinstance(engine, Keeping):
            engine.restore(recalled.engine)
        self._checker = StepChecker(request.checking, recalled.checker)
        self._remembered = recalled.checker
        known = [*(p.prompt for p in self._probes), *(tokenizer.decode(r.tokens[1:]) for r in canary)]
        self._others = confirming_probes(
            request.world, request.settings.held_out_family, request.settings.confirm, known
        )
        placement = deal_experts(request.start.model.config.num_experts, request.settings.num_shards)
        self._loop = Loop(
            engine=engine,
            policy=policy,
            world=request.world,
            settings=request.settings,
            declared=Declared(placement=placement, execution=policy.declared_execution()),
            faults=request.faults,
            checks=LoopChecks(self._checker, replayer, canary, request.settings),
            after_answers=self._measure_before,
        )

    def finish(self) -> RlRun:
        """Takes all steps that are left."""
        steps = self._request.settings.steps
        try:
            while self._progress.step < steps:
                self._take_one(steps)
            result = self._measure_result()
        except (EngineDiedError, EngineRefusedError) as error:
            # What a planted mismatch has left in the engine is lost with it; the last state on disk has it.
            if self._request.faults.is_honest:
                self._folder.save(self._loop.policy, self._progress, write_checker(self._remembered))
            raise self._stop(str(error), "an engine that answers", "run the same command with --resume") from error
        except DivergedError as error:
            fix = "start again with a lower learning rate; the last state and the log are kept"
            raise self._stop(str(error), "a finite loss", fix) from error
        ended = self._end(RunStatus.COMPLETED, "")
        return RlRun(
            ended=ended,
            num_steps=self._progress.step,
            findings=tuple(e for e in self._folder.log.read() if isinstance(e, Finding)),
            held_out=result.held_out,
            confirmed=result.confirmed,
        )

    def _take_one(self, steps: int) -> None:
        step = take_step(self._loop, self._progress)
        self._folder.log.append(step.record)
        for finding in step.findings:
            self._folder.log.append(finding)
        if self._progress.step % self._request.settings.save_every == 0 or self._progress.step == steps:
            notes = write_all(self._checker, self._loop.faults, self._loop.engine, self._progress.step)
            self._folder.save(self._loop.policy, self._progress, notes)
        self._remembered = self._checker.memory
        self._watch(step)

    def _measure_before(self, step: int) -> None:
        if step == 0 and self._probes:
            self._progress.held_out_before = greedy_rewards(self._loop.engine, self._probes)

    def _measure_result(self) -> RlResult:
        """Asks the held-out prompts again, and those that nobody has looked at; writes what came of it."""
        before = self._progress.held_out_before
        held_out = None
        if self._probes and before is not None:
            after = self._rewards_of(self._progress.version, self._progress.step, self._probes)
            held_out = compare_rewards(self._probes, before, after)
        result = RlResult(held_out=held_out, confirmed=self._confirm())
        if result.held_out is not None or result.confirmed is not None:
            write_atomically(self._folder.path / RESULT_FILE, result.to_json().encode())
        return result

    def _confirm(self) -> HeldOut | None:
        """Asks other prompts of the last weights and then of the first, which the trainer takes for that long."""
        if not self._others:
            return None
        policy = self._loop.policy
        last = {name: master.detach().clone() for name, master in policy.masters.items()}
        after = self._rewards_of(self._progress.version, self._progress.step, self._others)
        try:
            policy.set_masters(self._first)
            before = self._rewards_of(0, 0, self._others)
        finally:
            policy.set_masters(last)  # an engine that dies here leads to a state on disk
        return compare_rewards(self._others, before, after)

    def _rewards_of(self, version: int, step: int, probes: tuple[Probe, ...]) -> list[int]:
        """Brings the engine to the trainer's weights, as at a step, and asks."""
        sync(self._loop, version, step)
        return greedy_rewards(self._loop.engine, probes)

    def _stop(self, what: str, expected: str, fix: str) -> InputError:
        self._end(RunStatus.STOPPED, what)
        return InputError(f"{what}, at step {self._progress.step}", expected=expected, fix=fix)

    def _end(self, status: RunStatus, reason: str) -> RunEnded:
        events = self._folder.log.read()
        found = [e for e in events if isinstance(e, Finding)]
        unchecked = [e.step for e in events if isinstance(e, StepRecord) and not e.checks]
        verdict = RunVerdict.CLEAN
        if found:
            verdict = RunVerdict.MISMATCH
        elif unchecked or status is RunStatus.STOPPED:
            verdict = RunVerdict.UNCHECKED
            reason = reason or f"{len(unchecked)} steps were not checked, first step {unchecked[0]}"
        last = self._progress.step - 1 if self._progress.step else None
        ended = RunEnded(status=status, verdict=verdict, step=last, reason=reason)
        self._folder.log.append(ended)
        return ended


def _card(request: RunRequest) -> RunCard:
    return RunCard(
        model_digest=request.start.digest,
        recipe=request.recipe.name,
        recipe_digest=request.recipe.digest(),
        inject=request.inject,
        settings=request.settings,
    )


def _started(request: RunRequest, policy: Policy, card: RunCard) -> RunStarted:
    schemes = {scheme.name: scheme.arithmetic_digest for scheme in policy.schemes().values() if scheme is not None}
    return RunStarted(
        run=RunKind.RL,
        model=request.start.digest,
        recipe=request.recipe.name,
        settings_digest=card.digest(),
        arithmetic=schemes,
        environment={
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "threads": str(torch.get_num_threads()),
            "device": "cpu",
        },
        inject=request.inject,
        command=request.command,
    )
